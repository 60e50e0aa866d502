// Ranges that a profiler shows above the kernels (NVTX), opened at run time like CUDA's other libraries. Where no
// profiler listens a range costs a call of an empty function; where the library is missing there are none.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "ingot/runtime/util/library.h"

namespace ingot {

class Nvtx {
 public:
  // libnvtx3interop.so of CUDA 12.9 and later, or libnvToolsExt.so.1 of those before. Null with the reason and the
  // places looked in in `problem`.
  static std::unique_ptr<Nvtx> open(const std::string& cuda_root, std::string& problem);

  // A range of this thread's, within the one that it pushed last. (NVTX 3: nvtxRangePushA, nvtxRangePop.)
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
