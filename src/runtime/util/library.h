// Opens shared libraries (cuBLASLt, NVRTC, the driver, NVTX, NCCL) at run time, and knows where CUDA's libraries and
// programs are installed.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ingot/api.h"

namespace ingot {

// RAII over dlopen. Move-only.
class INGOT_API Library {
 public:
  Library() = default;
  ~Library();
  Library(Library&& other) noexcept;
  Library& operator=(Library&& other) noexcept;

  // Opens the first of `names` found in: `explicit_root` (and its lib64, lib), CUDA_PATH / CUDA_HOME, the loader's own
  // path, /usr/local/cuda, Python's nvidia wheels ($VIRTUAL_ENV, the environment that Ingot is installed in, the user's
  // and the system's site-packages). If there is none, returns an empty library and sets `problem` to the paths
  // searched and what to do. If `explicit_root` is kNowhere (INGOT_CUDA_ROOT=none), no CUDA library is used at all.
  static constexpr std::string_view kNowhere = "none";
  static Library open_cuda(const std::vector<std::string>& names, const std::string& explicit_root,
                           std::string& problem);
  // The same for a library of CUDA's toolkit ("libnvrtc.so"), of the newest version that works with a driver of this
  // version (12080; 0: any): that of CUDA 13 needs a driver of CUDA 13. `problem` names one that is too new.
  static Library open_cuda(const std::string& stem, int driver_version, const std::string& explicit_root,
                           std::string& problem);
  // The library of this bare name that the process has loaded already, from wherever; empty if there is none.
  static Library loaded(const std::string& name);
  // The dynamic loader searches its path for a bare name.
  static Library open(const std::string& name_or_path, std::string& problem);

  explicit operator bool() const { return handle_ != nullptr; }
  void* symbol(const char* name) const;  // null where there is none
  // The file that was opened.
  const std::string& path() const { return path_; }

 private:
  static Library of(void* handle, const std::string& name);

  void* handle_ = nullptr;
  std::string path_;
};

// The path of one of the toolkit's programs ("nvdisasm"), looked for next to the libraries (see open_cuda) and in PATH.
// If there is none, returns an empty string and sets `problem` to the paths searched and what to do.
INGOT_API std::string find_cuda_program(const std::string& name, const std::string& explicit_root,
                                        std::string& problem);

}  // namespace ingot
