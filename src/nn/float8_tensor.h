// A matrix in FP8: its codes, the same codes transposed (or one of the two), and the factors that give it back.
#pragma once

#include "ingot/codegen/kernel_spec.h"
#include "ingot/runtime/buffer.h"
#include "ingot/runtime/stream.h"

namespace ingot {

// value(r, c) = codes(r, c) * factor of its scale. transposed[cols, rows] is what a GEMM that sums over rows needs;
// where its scales are its own, so are its factors.
struct Float8Tensor {
  OwnedTensor codes;
  OwnedTensor transposed;
  OwnedTensor factors;             // f32[scale_count]
  OwnedTensor transposed_factors;  // f32, where the spec has a transposed_scale

  // Of the transposed codes.
  Tensor factors_of_transposed(const CastSpec& spec) const {
    return spec.transposed_scale ? transposed_factors.view() : factors.view();
  }
};

// Casts input into `out`, reusing its memory where that is large enough. What the spec does not ask for is left alone.
// For specs with dynamic scales and no inputs, result or sum; the others are Backend::cast()'s, and throw
// Error{invalid_argument}.
void cast_to(Float8Tensor& out, const CastSpec& spec, const Tensor& input, Backend& backend, Stream& stream);

// The same into parts that different owners keep. transposed_factors is left alone without a transposed_scale.
struct Float8Parts {
  OwnedTensor* codes;
  OwnedTensor* transposed;
  OwnedTensor* factors;
  OwnedTensor* transposed_factors;
};
void cast_to(const Float8Parts& parts, const CastSpec& spec, const Tensor& input, Backend& backend, Stream& stream);

}  // namespace ingot
