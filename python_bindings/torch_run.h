// Where an operator's call runs, and who watches it: what the calls of all operators begin with.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "context.h"
#include "ingot/nn/linear_functions.h"
#include "torch_dry_run.h"
#include "torch_observers.h"
#include "torch_operator.h"
#include "torch_streams.h"

namespace ingot::python {

class TorchRun {
 public:
  // On the device's context and PyTorch's current stream, unless this thread's calls are a dry run's. `tokens`: how
  // many rows the call's matrices have, for a call of GEMMs.
  explicit TorchRun(Device device, std::int64_t tokens = 0)
      : device_(device),
        dry_(TorchDryRun::of_thread()),
        context_(dry_ == nullptr ? &torch_context(device) : nullptr),
        backend_(dry_ == nullptr ? context_->context().backend() : dry_->backend()),
        stream_(dry_ == nullptr ? context_->torch_streams().current(backend_, own_, tokens) : dry_->stream()),
        observer_(TorchObservers::of_process().of(backend_)) {}

  Device device() const { return device_; }
  Backend& backend() const { return backend_; }
  Stream& stream() const { return stream_; }
  // The constants of a plan. PyTorch's layers have no fixed scales: a static one is given.
  LinearScales constants(const LinearPlan& plan) const {
    if (!plan.folds()) return {};
    return {.one = dry_ == nullptr ? context_->torch_one() : dry_->one()};
  }
  LinearRun run() const { return {.stream = stream_, .observer = observer_.get()}; }
  // Whether values that a cast computes on the way are written for an observer: the scratch memory needs room for them.
  bool observes_values() const { return observer_ != nullptr && observer_->wants_values(); }

 private:
  Device device_;
  TorchDryRun* dry_;
  PythonContext* context_;
  Backend& backend_;
  std::optional<TorchStream> own_{};
  Stream& stream_;
  std::shared_ptr<LayerObserver> observer_;
};

}  // namespace ingot::python
