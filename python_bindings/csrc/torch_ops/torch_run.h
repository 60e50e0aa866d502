// Where an operator's call runs, and who watches it: the start of every operator's call.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "context.h"
#include "ingot/nn/linear/linear_functions.h"
#include "ingot/nn/modules/float8_linear.h"
#include "ingot/runtime/util/error.h"
#include "torch_abi/torch_dry_run.h"
#include "torch_abi/torch_streams.h"
#include "torch_ops/torch_observers.h"
#include "torch_ops/torch_operator.h"

namespace ingot::python {

class TorchRun {
 public:
  // On the device's context and PyTorch's current stream, unless this thread's calls are a dry run's. `tokens`: how
  // many rows the call's matrices have, for a call of GEMMs. `arguments`: they say what observers call the layers.
  TorchRun(Device device, const TorchArguments& arguments, std::int64_t tokens = 0)
      : TorchRun(device, &arguments, tokens) {}
  // Not for calls of layers.
  explicit TorchRun(Device device) : TorchRun(device, nullptr, 0) {}

  Device device() const { return device_; }
  Backend& backend() const { return backend_; }
  Stream& stream() const { return stream_; }
  // The constants of a plan. PyTorch's layers have no fixed scales: a static one is given.
  LinearScales constants(const LinearPlan& plan) const {
    if (!plan.folds()) return {};
    return {.one = dry_ == nullptr ? context_->torch_one() : dry_->one()};
  }
  // `side`: of TorchSide, for a backward.
  LinearRun run(Stream* side = nullptr) const { return {.stream = stream_, .side = side, .observer = observer_.get()}; }
  // Whether values that a cast computes on the way are written for an observer: the scratch memory needs room for them.
  bool observes_values() const { return observer_ != nullptr && observer_->wants_values(); }
  // Where the call is observed, the later calls of its layers which take what it leaves have their names.
  void note(const TorchArguments& arguments, const TorchTensor& left, bool shared = false) const {
    if (observer_ != nullptr) note_names(*arguments.called(), left, observer_->names(), shared);
  }

 private:
  friend class TorchSide;

  TorchRun(Device device, const TorchArguments* arguments, std::int64_t tokens)
      : device_(device),
        dry_(TorchDryRun::of_thread()),
        context_(dry_ == nullptr ? &shared_context(device) : nullptr),
        backend_(dry_ == nullptr ? context_->context().backend() : dry_->backend()),
        stream_(dry_ == nullptr ? context_->torch_streams().current(backend_, own_, tokens) : dry_->stream()),
        observer_(observer_of(backend_, arguments)) {}

  static std::unique_ptr<NamedObserver> observer_of(const Backend& backend, const TorchArguments* arguments) {
    if (arguments == nullptr) return nullptr;
    std::shared_ptr<LayerObserver> all = TorchObservers::of_process().of(backend);
    if (all == nullptr) return nullptr;
    return std::make_unique<NamedObserver>(
        std::move(all), arguments->called() == nullptr ? std::vector<std::string>{} : arguments->names());
  }

  Device device_;
  TorchDryRun* dry_;
  PythonContext* context_;
  Backend& backend_;
  std::optional<TorchStream> own_{};
  Stream& stream_;
  std::unique_ptr<NamedObserver> observer_;
};

// A side stream for small calls that PyTorch captures: in a replay, independent work overlaps. (A small call that is
// not captured waits for the host, which a second stream costs time.) The destructor makes the call's own stream wait
// for the side stream: destroy this object before any memory that the side stream uses.
class TorchSide {
 public:
  // wanted: is there work for it, of layers that are faster with one?
  TorchSide(const TorchRun& run, bool wanted) : TorchSide(run, wanted, [] { return false; }) {}
  // needless(): a reason against it that takes longer to find; asked last.
  template <class Needless>
  TorchSide(const TorchRun& run, bool wanted, const Needless& needless) : main_(&run.stream_) {
    if (!wanted || run.dry_ != nullptr || run.observer_ != nullptr || main_->handle() == nullptr) return;
    if (!run.backend_.device_api().capturing(*main_) || needless()) return;
    side_.emplace(run.backend_, run.context_->torch_streams().beside(run.backend_, main_->handle()), true);
    side_->stream().wait_for(*main_);
  }
  ~TorchSide() {
    if (!side_) return;
    try {
      main_->wait_for(side_->stream());
    } catch (const Error&) {
      return;  // the capture is broken; its end reports it
    }
  }
  TorchSide(const TorchSide&) = delete;
  TorchSide& operator=(const TorchSide&) = delete;

  // Null: there is none.
  Stream* stream() { return side_ ? &side_->stream() : nullptr; }

 private:
  Stream* main_;
  std::optional<TorchStream> side_{};
};

// Casts the weight on the side stream, if there is one, else within the forward.
template <class Tensors>
void cast_weight_beside(const LinearPlan& plan, Backend& backend, const MemoryRegion& into, TorchSide& side,
                        Tensors& tensors) {
  Stream* const stream = side.stream();
  if (stream == nullptr) {
    tensors.weight_into = into;
    return;
  }
  tensors.codes = cast_weight(plan, backend, {.weight = tensors.weight, .into = into, .scale = tensors.scales.weight},
                              {.stream = *stream});
  tensors.codes_from = stream;
}

// Does a TorchSide make a layer faster with this many tokens? Yes, for small layers with an FP8 GEMM. A layer in high
// precision is slower with one, because its GEMMs slow each other (bench_linear on an H200, 1024 cubed: 30.6 us with
// it and 28.3 without).
inline bool faster_with_side(const LinearPlan& plan, std::int64_t tokens) {
  if (!is_float8(plan.config.output) && !is_float8(plan.config.grad_input)) return false;
  return LinearOptions::is_small(tokens, plan.shape.in_features, plan.shape.out_features);
}

}  // namespace ingot::python
