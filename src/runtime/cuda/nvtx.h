// Ranges that a profiler shows above the kernels (NVTX), opened at run time like CUDA's other libraries. Without a
// profiler, a range costs a call of an empty function; without the library there are no ranges.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "ingot/api.h"
#include "ingot/runtime/util/library.h"

namespace ingot {

class INGOT_API Nvtx {
 public:
  // libnvtx3interop.so of CUDA 12.9 and later, or libnvToolsExt.so.1 of those before. Null if there is neither, with
  // the reason and the paths searched in `problem`.
  static std::unique_ptr<Nvtx> open(const std::string& cuda_root, std::string& problem);

  // Opens a range of this thread, within the one that it pushed last. (NVTX 3: nvtxRangePushA, nvtxRangePop.)
  void push(const char* text) const { push_(text); }
  void pop() const noexcept { pop_(); }

  const std::string& path() const { return library_.path(); }
  std::string version() const;  // of the interface: "3", or "2" of libnvToolsExt

 private:
  using Push = int (*)(const char*);
  using Pop = int (*)();
  explicit Nvtx(Library library) : library_(std::move(library)) {}

  Library library_;
  Push push_ = nullptr;
  Pop pop_ = nullptr;
};

}  // namespace ingot
