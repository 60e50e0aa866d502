// An observer that shows each layer's work as NVTX ranges in a profiler: "layers.0.wq forward", and within it
// "layers.0.wq output".
#pragma once

#include <string>

#include "ingot/api.h"
#include "ingot/nn/observe/observer.h"
#include "ingot/runtime/cuda/nvtx.h"
#include "ingot/runtime/measure/trace.h"

namespace ingot {

class INGOT_API NvtxRanges final : public LayerObserver {
 public:
  // `nvtx` must outlive this object. With null, which Nvtx::open() returns if the library is missing, there are no
  // ranges.
  explicit NvtxRanges(const Nvtx* nvtx) : nvtx_(nvtx) {}

  void begin(std::string_view layer, std::string_view what) override {
    if (nvtx_ != nullptr) nvtx_->push((std::string(layer) + " " + std::string(what)).c_str());
  }
  void end() noexcept override {
    if (nvtx_ != nullptr) nvtx_->pop();
  }

 private:
  const Nvtx* nvtx_;
};

// An observer that records each layer's work as ranges of a Trace, which nest and name the launches within them.
class INGOT_API TraceRanges final : public LayerObserver {
 public:
  // `trace` must outlive this object.
  explicit TraceRanges(Trace& trace) : trace_(&trace) {}

  void begin(std::string_view layer, std::string_view what) override { trace_->push(layer, what); }
  void end() noexcept override { trace_->pop(); }

 private:
  Trace* trace_;
};

}  // namespace ingot
