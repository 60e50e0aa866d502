// Who watches a layer at work: told of every cast and every GEMM, and of where each belongs. A layer without an
// observer has a null pointer, which costs it one comparison a call.
#pragma once

#include <string_view>
#include <utility>
#include <vector>

#include "ingot/codegen/kernel_spec.h"
#include "ingot/codegen/types/granularity.h"
#include "ingot/runtime/backend.h"
#include "ingot/runtime/stream.h"
#include "ingot/runtime/tensor.h"

namespace ingot {

// One set of codes that a cast has written: a cast with both codes and transposed is two of these. Enqueued, not done.
struct CastEvent {
  std::string_view layer;   // "layers.0.wq"
  std::string_view tensor;  // "input", "weight", "grad_output"
  std::string_view gemms;   // that read these codes: "output", "grad_input,grad_weight"
  Tensor values;   // [rows, cols], what was cast; a default Tensor where it is nowhere in memory, as when fused
  Tensor codes;    // [rows, cols], or [cols, rows] if transposed
  Tensor factors;  // f32[scale_count(scale, rows, cols)]
  ScaleGranularity scale = kTensorwise;  // in terms of the values
  bool transposed = false;
};

// One GEMM, enqueued.
struct GemmEvent {
  std::string_view layer;
  std::string_view role;  // "output", "grad_input", "grad_weight"
  const GemmSpec& spec;
  const GemmTensors& tensors;
};

// All calls come on the layer's thread, in the order of its work. Texts and tensors are the layer's: good for the call.
class LayerObserver {
 public:
  virtual ~LayerObserver() = default;
  LayerObserver(const LayerObserver&) = delete;
  LayerObserver& operator=(const LayerObserver&) = delete;

  // What is enqueued until the matching end() is the layer's "forward" or "backward", or, within those, the "output",
  // "grad_input" or "grad_weight" GEMM. ObservedRange calls both.
  virtual void begin(std::string_view /*layer*/, std::string_view /*what*/) {}
  virtual void end() noexcept {}
  // Are the values of casts wanted where they are computed within the cast? It then writes them too.
  virtual bool wants_values() const { return false; }
  virtual void cast(const CastEvent& /*event*/, Stream& /*stream*/) {}
  virtual void gemm(const GemmEvent& /*event*/, Stream& /*stream*/) {}

 protected:
  LayerObserver() = default;
};

// Several at once, told in order and, of an end, in reverse order. They outlive it.
class LayerObservers final : public LayerObserver {
 public:
  explicit LayerObservers(std::vector<LayerObserver*> all) : all_(std::move(all)) {}

  void begin(std::string_view layer, std::string_view what) override {
    for (LayerObserver* const one : all_) one->begin(layer, what);
  }
  void end() noexcept override {
    for (auto one = all_.rbegin(); one != all_.rend(); ++one) (*one)->end();
  }
  bool wants_values() const override {
    for (const LayerObserver* const one : all_) {
      if (one->wants_values()) return true;
    }
    return false;
  }
  void cast(const CastEvent& event, Stream& stream) override {
    for (LayerObserver* const one : all_) one->cast(event, stream);
  }
  void gemm(const GemmEvent& event, Stream& stream) override {
    for (LayerObserver* const one : all_) one->gemm(event, stream);
  }

 private:
  std::vector<LayerObserver*> all_;
};

// begin() and, whatever happens, end(); nothing where there is no observer.
class ObservedRange {
 public:
  ObservedRange(LayerObserver* observer, std::string_view layer, std::string_view what) : observer_(observer) {
    if (observer_ != nullptr) observer_->begin(layer, what);
  }
  ~ObservedRange() {
    if (observer_ != nullptr) observer_->end();
  }
  ObservedRange(const ObservedRange&) = delete;
  ObservedRange& operator=(const ObservedRange&) = delete;

 private:
  LayerObserver* observer_;
};

}  // namespace ingot
