// The benchmarks' operations, measured as runtime/measure/replay.h measures.
#pragma once

#include <vector>

#include "ingot/runtime/measure/replay.h"
#include "operation.h"
#include "random_inputs.h"

namespace ingot::bench {

// Outputs get bytes that no right result consists of, or the value that they start from.
void poison(Gpu& gpu, const Placed& placed);

// An operation on as many copies of its buffers as copies_for() asks for, with random inputs.
class Rotation {
 public:
  Rotation(Gpu& gpu, RandomData& random, const Operation& operation);

  // Refers to this object.
  RotatedCall call(Gpu& gpu) const;
  const std::vector<Placed>& copies() const { return copies_; }

 private:
  std::vector<Placed> copies_;
};

}  // namespace ingot::bench
