// The three GEMMs of a linear layer as values: what a recipe asks of the library, before there is a layer.
#pragma once

#include <array>
#include <cstdint>

#include "ingot/codegen/gemm/gemm_call.h"
#include "ingot/nn/config.h"

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

// Of a valid config and tensors of this dtype: what Float8Linear starts from. To output's it adds a bias and an
// epilogue, to grad_weight's the dtype of the gradient and the accumulation.
GemmSpec output_gemm(const LinearConfig& config, Dtype dtype);
GemmSpec grad_input_gemm(const LinearConfig& config, Dtype dtype);
GemmSpec grad_weight_gemm(const LinearConfig& config, Dtype dtype);

// What Float8Linear multiplies for tensors of this dtype, without a bias and without accumulation (a grad_weight that
// is added to a main gradient is another GEMM, c=f32 or c=bf16: a manifest has those). Throws what validate(config)
// throws.
std::array<LinearGemm, 3> linear_gemms(const LinearConfig& config, const LinearSize& size, Dtype dtype);

}  // namespace ingot
