// Where an operator's call runs, and who watches it: what the calls of all operators begin with.
#pragma once

#include <memory>
#include <optional>

#include "context.h"
#include "ingot/nn/linear_functions.h"
#include "torch_dry_run.h"
#include "torch_observers.h"
#include "torch_streams.h"

namespace ingot::python {

class TorchRun {
 public:
  // context_of(device) is asked for where the call runs, unless this thread's calls are a dry run's.
  TorchRun(Device device, PythonContext& (*context_of)(Device))
      : dry_(TorchDryRun::of_thread()),
        context_(dry_ == nullptr ? &context_of(device) : nullptr),
        backend_(dry_ == nullptr ? context_->context().backend() : dry_->backend()),
        stream_(dry_ == nullptr ? context_->torch_streams().current(backend_, own_) : dry_->stream()),
        observer_(TorchObservers::of_process().of(backend_)) {}

  Backend& backend() const { return backend_; }
  Stream& stream() const { return stream_; }
  LinearRun run() const { return {.stream = stream_, .observer = observer_.get()}; }
  // Whether values that a cast computes on the way are written for an observer: the scratch memory needs room for them.
  bool observes_values() const { return observer_ != nullptr && observer_->wants_values(); }

 private:
  TorchDryRun* dry_;
  PythonContext* context_;
  Backend& backend_;
  std::optional<TorchStream> own_{};
  Stream& stream_;
  std::shared_ptr<LayerObserver> observer_;
};

}  // namespace ingot::python
