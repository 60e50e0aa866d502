// A dry run of PyTorch's layers: while a thread is in one, its operators run on the CUDA backend without a GPU
// (runtime/context/dry_run.h), which notes what they ask for and computes nothing. Their tensors are on the CPU and
// nobody reads or writes them, so large ones take no memory of the system.
#pragma once

#include <atomic>
#include <string>

#include "ingot/codegen/types/target.h"
#include "ingot/runtime/context/dry_run.h"
#include "ingot/runtime/util/error.h"
#include "torch_abi/torch_streams.h"

namespace ingot::python {

class TorchDryRun {
 public:
  // Throws Error{invalid_argument} that lists the names.
  explicit TorchDryRun(const std::string& gpu) : dry_(gpu_named(gpu)), stream_(dry_.backend(), nullptr) {}
  ~TorchDryRun() { leave(); }
  TorchDryRun(const TorchDryRun&) = delete;
  TorchDryRun& operator=(const TorchDryRun&) = delete;

  // The dry run that this thread is in; nearly always null, by one load and one comparison.
  static TorchDryRun* of_thread() { return running_.load(std::memory_order_relaxed) == 0 ? nullptr : current_; }

  // Of this thread, until leave().
  void enter() {
    if (current_ != nullptr) throw Error(ErrorCode::invalid_argument, "dry run", "this thread is in one already");
    current_ = this;
    ++running_;
  }
  void leave() {
    if (current_ != this) return;
    current_ = nullptr;
    --running_;
  }

  Device device() { return dry_.backend().device(); }
  Backend& backend() { return dry_.backend(); }
  Stream& stream() { return stream_.stream(); }
  Tensor one() { return one_.of(dry_.backend()); }
  Recording recording() const { return dry_.recording(); }

 private:
  static inline std::atomic<int> running_{0};  // threads that are in one
  static inline thread_local TorchDryRun* current_ = nullptr;

  DryRun dry_;
  TorchStream stream_;
  TorchOne one_;
};

}  // namespace ingot::python
