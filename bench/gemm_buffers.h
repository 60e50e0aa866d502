// The operands of a GEMM on the GPU, cast by the library from bell-shaped random values, with as many copies as it
// takes to rotate past the L2; and a check of the result.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "gemm_cases.h"
#include "harness.h"
#include "ingot/runtime/context/backend.h"
#include "ingot/runtime/measure/gemm_operands.h"

namespace ingot::bench {

class GemmBuffers {
 public:
  GemmBuffers(RandomData& random, const GemmCase& gemm_case);

  int copies() const { return static_cast<int>(copies_.size()); }
  GemmTensors tensors(int copy) const { return copies_[static_cast<std::size_t>(copy)].tensors; }

  void poison(MeasuredGpu& gpu) const;
  // Says why the output of the last copy is wrong; empty if it is right: no poison is left in it, and over some hundred
  // elements from all parts of it, the relative Frobenius error against float64 is at most 2^-8, or 5e-3 with fast
  // sums.
  std::string fault(MeasuredGpu& gpu) const;

 private:
  GemmCase case_;
  std::vector<GemmData> copies_;
  // The operands across K that fault() has fetched.
  mutable std::vector<std::byte> across_a_{};
  mutable std::vector<std::byte> across_b_{};
};

}  // namespace ingot::bench
