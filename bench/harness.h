// Prepares the benchmarks' operations for measurement with runtime/measure/replay.h.
#pragma once

#include <vector>

#include "ingot/runtime/measure/replay.h"
#include "operation.h"
#include "random_inputs.h"

namespace ingot::bench {

// Fills outputs with bytes that no right result has, or with the value that they start from.
void poison(MeasuredGpu& gpu, const Placed& placed);

// An operation with random inputs, on as many copies of its buffers as copies_for() requires.
class Rotation {
 public:
  Rotation(MeasuredGpu& gpu, RandomData& random, const Operation& operation);

  // The returned call refers to this object.
  RotatedCall call(MeasuredGpu& gpu) const;
  const std::vector<Placed>& copies() const { return copies_; }

 private:
  std::vector<Placed> copies_;
};

}  // namespace ingot::bench
