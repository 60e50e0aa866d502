// The values that change from step to step: the learning rate, AdamW's corrections, the seed of the batch. A table of
// them is uploaded ahead, and each step takes its line on the device, so that the host gives a step nothing and a
// captured step can be replayed.
#pragma once

#include <cstdint>
#include <functional>

#include "ingot/runtime/context/backend.h"
#include "ingot/runtime/core/buffer.h"
#include "ingot/runtime/core/stream.h"
#include "training/op_runner.h"

namespace training {

struct Schedule {
  double peak = 0;  // learning rate
  std::int64_t steps = 0;
  std::int64_t warmup_steps = 0;
  double last = 0.1;  // share of the peak that the cosine ends at
};

// Linear warm-up to the peak, then a cosine.
double learning_rate(const Schedule& schedule, std::int64_t step);

class StepTable {
 public:
  // values(step) gives the values of each step below `steps`.
  StepTable(ingot::Backend& backend, std::int64_t steps, std::function<StepValues(std::int64_t)> values);

  // Before a step: uploads values if the table does not have them, or if `step` does not follow the last one.
  void prepare(std::int64_t step, ingot::Stream& stream);
  // First in a step (captured or not): takes its values.
  void advance(OpRunner& ops);
  // The values of the current step, on the device.
  const StepValues* now() const { return static_cast<const StepValues*>(now_.data()); }

 private:
  std::int64_t steps_;
  std::function<StepValues(std::int64_t)> values_;
  std::int64_t first_ = 0, count_ = 0;  // of the table
  std::int64_t next_ = -1;              // the step that the device would take now
  ingot::Buffer table_, at_, now_;
};

}  // namespace training
