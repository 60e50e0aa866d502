// A shared library opened by name, and where such libraries lie.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ingot {

// RAII over dlopen. Move-only.
class Library {
 public:
  Library() = default;
  ~Library();
  Library(Library&& other) noexcept;
  Library& operator=(Library&& other) noexcept;

  // The first of `names` found in: `explicit_root` (and its lib64, lib), CUDA_PATH / CUDA_HOME, the loader's own path,
  // /usr/local/cuda, Python's nvidia wheels ($VIRTUAL_ENV, the user's and the system's site-packages). An empty library
  // with `problem` = the places looked in and what to do, where there is none. An `explicit_root` of kNowhere
  // (INGOT_CUDA_ROOT=none) says to use no CUDA library at all.
  static constexpr std::string_view kNowhere = "none";
  static Library open_cuda(const std::vector<std::string>& names, const std::string& explicit_root,
                           std::string& problem);
  // A bare name is looked up in the loader's path.
  static Library open(const std::string& name_or_path, std::string& problem);

  explicit operator bool() const { return handle_ != nullptr; }
  void* symbol(const char* name) const;  // null where there is none
  // The file that was opened.
  const std::string& path() const { return path_; }

 private:
  void* handle_ = nullptr;
  std::string path_;
};

}  // namespace ingot
