// The tensors of a matmul whose weight is decoded within the kernel, and of packing that weight. Backend (backend.h)
// has the calls.
#pragma once

#include <array>

#include "ingot/codegen/pointwise/pointwise.h"
#include "ingot/runtime/core/expert_ends.h"
#include "ingot/runtime/core/tensor.h"

namespace ingot {

// The spec says which of the two is written.
struct PackWeightTensors {
  // [N, K] of spec.weight, row-major, any row stride; for codes of less than a byte a multiple of packed_unit().
  Tensor codes;
  Tensor packed;  // u8[packed_weight_bytes(spec.weight, N, K)], at a multiple of 16 bytes
};

// A tensor that the spec does not ask for stays a default Tensor.
//
// With experts (DequantMatmulSpec::experts), weights, scale_inv and biases are those of all experts, one expert's after
// the other's: weight is codes [experts * N, K] or u8[experts * packed_weight_bytes(spec.weight, N, K)], each expert's
// as pack_weight() has written it; scale_inv has experts * scale_count(spec.scale, N, K) elements, bias experts * N.
// Rows of out that no expert has are not written.
struct DequantMatmulTensors {
  Tensor x;          // [M, K] of spec.x
  Tensor weight;     // codes [N, K] of spec.weight or, if it is packed, the u8 vector that pack_weight() has written
  Tensor scale_inv;  // scale_inv: [scale_count(spec.scale, N, K)] of spec.scale_inv
  Tensor bias{};     // [N] of spec.x
  // The inputs of an epilogue, in the order of its inputs(): a matrix [M, N] or a vector [1, N] of spec.x, or f32[1, M]
  // for [row].
  std::array<Tensor, kMaxPointwiseInputs> inputs{};
  Tensor out;         // [M, N] of spec.out
  ExpertEnds ends{};  // with experts: which rows of x and of out each has
  // The caller promises that whatever wrote the weight and its scale_inv had ended before this call (synchronize()),
  // and that nothing writes them until the call has ended on the device. A GPU may then read them before the previous
  // kernel of the stream has ended. WeightOnlyLinear sets it.
  bool constant_weight = false;
};

}  // namespace ingot
