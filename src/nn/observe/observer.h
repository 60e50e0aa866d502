// LayerObserver is the interface through which layers report each cast and each GEMM, and the layer and role it belongs
// to. Monitor, NvtxRanges and TraceRanges implement it. A layer without an observer pays one comparison per call.
#pragma once

#include <string_view>
#include <utility>
#include <vector>

#include "ingot/api.h"
#include "ingot/codegen/kernel_spec.h"
#include "ingot/codegen/types/granularity.h"
#include "ingot/runtime/context/backend.h"
#include "ingot/runtime/core/stream.h"
#include "ingot/runtime/core/tensor.h"

namespace ingot {

// One set of codes that a cast writes; a cast that writes codes and transposed codes is reported as two events. The
// work is enqueued, not necessarily done.
struct CastEvent {
  std::string_view layer;   // "layers.0.wq"
  std::string_view tensor;  // "input", "weight", "grad_output"
  std::string_view gemms;   // the GEMMs that read these codes: "output", "grad_input,grad_weight"
  Tensor values;            // [rows, cols], what was cast; a default Tensor if it is not in memory, as when fused
  Tensor codes;             // [rows, cols], or [cols, rows] if transposed
  Tensor scale_inv;         // f32[scale_count(scale, rows, cols)], or by group (CastTensors)
  ScaleGranularity scale = kTensorwise;  // as seen on the values
  bool transposed = false;
};

// One GEMM that is enqueued.
struct GemmEvent {
  std::string_view layer;
  std::string_view role;  // "output", "grad_input", "grad_weight"
  const GemmSpec& spec;
  const GemmTensors& tensors;
};

// All calls come on the layer's thread, in the order of its work. Texts and tensors belong to the layer and are valid
// only during the call.
class INGOT_API LayerObserver {
 public:
  virtual ~LayerObserver() = default;
  LayerObserver(const LayerObserver&) = delete;
  LayerObserver& operator=(const LayerObserver&) = delete;

  // Work enqueued between begin() and the matching end() is the layer's "forward" or "backward", or, nested in those,
  // its "output", "grad_input" or "grad_weight" GEMM. ObservedRange calls both.
  virtual void begin(std::string_view /*layer*/, std::string_view /*what*/) {}
  virtual void end() noexcept {}
  // Should a cast that computes its values on the way also write them, so that cast() sees them?
  virtual bool wants_values() const { return false; }
  virtual void cast(const CastEvent& /*event*/, Stream& /*stream*/) {}
  virtual void gemm(const GemmEvent& /*event*/, Stream& /*stream*/) {}

 protected:
  LayerObserver() = default;
};

// Forwards to several observers: in order, and end() in reverse order. They must outlive this object.
class INGOT_API LayerObservers final : public LayerObserver {
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

// Calls begin(), and end() when it goes out of scope; does nothing without an observer.
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
