// An observer that records each layer's work as ranges of a Trace, which nest and name the launches within them.
#pragma once

#include "ingot/api.h"
#include "ingot/nn/observe/observer.h"
#include "ingot/runtime/measure/trace.h"

namespace ingot {

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
