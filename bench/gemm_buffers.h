// The operands of a GEMM on the GPU, as often as the rotation past the L2 asks for: bell-shaped values, cast by the
// library; and whether a product of them is right.
#pragma once

#include <string>
#include <vector>

#include "gemm_cases.h"
#include "harness.h"
#include "ingot/runtime/backend.h"
#include "ingot/runtime/measure/gemm_data.h"

namespace ingot::bench {

class GemmBuffers {
 public:
  GemmBuffers(RandomData& random, const GemmCase& gemm_case);

  int copies() const { return static_cast<int>(copies_.size()); }
  GemmTensors tensors(int copy) const { return copies_[static_cast<std::size_t>(copy)].tensors; }

  void poison(Gpu& gpu) const;
  // Why the output of the last copy is wrong, empty if it is not: no poison is left in it, and of some hundred
  // elements, in all parts of it, the relative Frobenius error against float64 is at most 2^-8, of fast sums 5e-3.
  std::string fault(Gpu& gpu) const;

 private:
  GemmCase case_;
  std::vector<GemmData> copies_;
};

}  // namespace ingot::bench
