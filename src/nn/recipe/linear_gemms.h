// The three GEMMs of a linear layer as values: which specs and sizes a recipe will run, before a layer exists. Tuning
// and estimates use them.
#pragma once

#include <array>
#include <cstdint>

#include "ingot/api.h"
#include "ingot/codegen/matmul.h"
#include "ingot/nn/recipe/config.h"

namespace ingot {

struct LinearSize {
  std::int64_t tokens = 0;
  std::int64_t in_features = 0;
  std::int64_t out_features = 0;
};

struct LinearGemm {
  const char* role = "";  // "output", "grad_input", "grad_weight"
  GemmCall call{};
};

// The GEMM specs that Float8Linear starts from, for a valid config and tensors of this dtype. The layer adds a bias and
// perhaps an epilogue to the output GEMM, and the gradient's dtype and accumulation to the grad_weight GEMM.
INGOT_API GemmSpec output_gemm(const LinearConfig& config, Dtype dtype);
INGOT_API GemmSpec grad_input_gemm(const LinearConfig& config, Dtype dtype);
INGOT_API GemmSpec grad_weight_gemm(const LinearConfig& config, Dtype dtype);

// The GEMMs that Float8Linear runs for tensors of this dtype without bias and accumulation. (A grad_weight that is
// added to a main gradient is a different GEMM, with c=f32 or c=bf16; a recording has those.) Throws what
// validate(config) throws.
INGOT_API std::array<LinearGemm, 3> linear_gemms(const LinearConfig& config, const LinearSize& size, Dtype dtype);

}  // namespace ingot
