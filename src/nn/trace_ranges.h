// Each layer's work as the ranges of a Trace, which nest and name what was launched within them.
#pragma once

#include "ingot/nn/observer.h"
#include "ingot/runtime/measure/trace.h"

namespace ingot {

class TraceRanges final : public LayerObserver {
 public:
  // `trace` outlives it.
  explicit TraceRanges(Trace& trace) : trace_(&trace) {}

  void begin(std::string_view layer, std::string_view what) override { trace_->push(layer, what); }
  void end() noexcept override { trace_->pop(); }

 private:
  Trace* trace_;
};

}  // namespace ingot
