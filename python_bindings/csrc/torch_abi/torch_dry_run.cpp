#include "torch_abi/torch_dry_run.h"

#include "ingot/codegen/types/gpu.h"
#include "ingot/runtime/error.h"

namespace ingot::python {
namespace {

thread_local TorchDryRun* of_this_thread = nullptr;

}  // namespace

std::atomic<int> TorchDryRun::running_{0};

TorchDryRun::TorchDryRun(const std::string& gpu) : dry_(gpu_named(gpu)), stream_(dry_.backend(), nullptr) {}

TorchDryRun::~TorchDryRun() { leave(); }

TorchDryRun* TorchDryRun::current() { return of_this_thread; }

void TorchDryRun::enter() {
  if (of_this_thread != nullptr) throw Error(ErrorCode::invalid_argument, "dry run", "this thread is in one already");
  of_this_thread = this;
  ++running_;
}

void TorchDryRun::leave() {
  if (of_this_thread != this) return;
  of_this_thread = nullptr;
  --running_;
}

}  // namespace ingot::python
