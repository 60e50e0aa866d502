// The tensors of a product whose weight is decoded within the kernel, and of packing that weight. Backend (backend.h)
// has the calls.
#pragma once

#include <array>

#include "ingot/codegen/pointwise/pointwise.h"
#include "ingot/runtime/tensor.h"

namespace ingot {

// codes[N, K] of spec.weight, row-major, any row stride (of less than a byte: a multiple of packed_unit()); packed: a
// vector of u8, of packed_weight_bytes(spec.weight, N, K), at a multiple of 16 bytes. The spec says which of them is
// written.
struct PackWeightTensors {
  Tensor codes;
  Tensor packed;
};

// x[M, K] of spec.x; weight: codes[N, K] of spec.weight, or, packed, the vector that pack_weight() has written (u8);
// factors of spec.factors, a vector of scale_count(spec.scale, N, K); bias[N] of spec.x, where the spec has one;
// inputs[i] of the epilogue: [M, N] or [1, N] of spec.x, or, for [row], f32[1, M]; out[M, N] of spec.out.
//
// constant_weight: the caller promises that whatever wrote the weight and the factors had ended before this call
// (synchronize()), and that nothing writes them until it has ended. A GPU may then read them before the previous kernel
// of the stream has ended. WeightOnlyLinear sets it.
struct DequantMatmulTensors {
  Tensor x;
  Tensor weight;
  Tensor factors;
  Tensor bias{};
  std::array<Tensor, kMaxPointwiseInputs> inputs{};
  Tensor out;
  bool constant_weight = false;
};

}  // namespace ingot
