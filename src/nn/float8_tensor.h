// A matrix in FP8: its codes, the same codes transposed (or one of the two), and the factors that give it back.
#pragma once

#include <cstdint>

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
inline Float8Parts parts_of(Float8Tensor& all) {
  return {&all.codes, &all.transposed, &all.factors, &all.transposed_factors};
}
void cast_to(const Float8Parts& parts, const CastSpec& spec, const Tensor& input, Backend& backend, Stream& stream);

// Sized parts, as what a cast of `input` writes; for a caller that adds to it what cast_to() refuses. Rows of codes
// start at multiples of 16 bytes, long ones at multiples of 64, which tensor-core GEMMs load from; those under 64 bytes
// lie densely.
CastTensors outputs_of(const Float8Parts& parts, const CastSpec& spec, const Tensor& input, Backend& backend,
                       Stream& stream);

// The factors of transposed codes as a GEMM takes them: those of groups and of blocks as the matrix that they are,
// f32[ceil(rows / 128), cols or ceil(cols / 128)] for a tensor of [rows, cols]; others as they are. `scale` is in terms
// of the tensor.
Tensor transposed_factors(const Tensor& factors, ScaleGranularity scale, std::int64_t rows, std::int64_t cols);

}  // namespace ingot
