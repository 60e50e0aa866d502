// The operands of a GEMM on the GPU, as often as the rotation past the L2 asks for: bell-shaped values, of which FP8
// ones are cast by the library; and whether a kernel's product of them is right.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ingot/codegen/gemm_call.h"
#include "ingot/runtime/backend.h"
#include "ingot/runtime/cuda/gpu.h"
#include "ingot/runtime/gemm_data.h"
#include "ingot/runtime/random_data.h"

namespace ingot {

class GemmOperands {
 public:
  GemmOperands(Gpu& gpu, RandomData& random, const GemmCall& call);

  int copies() const { return static_cast<int>(copies_.size()); }
  GemmTensors tensors(int copy) const { return copies_[static_cast<std::size_t>(copy)].tensors; }

  // Bytes in the last copy's output that no right result consists of.
  void poison();
  // Why the last copy's output is wrong; empty if it is not. Some rows in all parts of it are compared with those of
  // kernel simt, which sums in f32 and in order: the relative Frobenius error of each part is at most 2^-7.
  std::string fault();

 private:
  struct Slab {
    std::int64_t row = 0;
    std::int64_t rows = 0;
    std::vector<float> expected;
  };
  std::vector<float> fetch(const Tensor& out, std::int64_t row, std::int64_t rows);
  void compute_expected();

  Gpu* gpu_;
  GemmCall call_;
  std::vector<GemmData> copies_;
  std::vector<Slab> slabs_;
};

}  // namespace ingot
