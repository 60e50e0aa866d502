// Each layer's work as ranges of a profiler: "layers.0.wq forward", and within it "layers.0.wq output".
#pragma once

#include <string>

#include "ingot/nn/observer.h"
#include "ingot/runtime/measure/nvtx.h"

namespace ingot {

class NvtxRanges final : public LayerObserver {
 public:
  // `nvtx` outlives it; null, as Nvtx::open() gives where the library is missing: no ranges.
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

}  // namespace ingot
