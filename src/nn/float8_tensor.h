// A matrix in FP8: its codes, the same codes transposed (or one of the two), and the factors that give it back.
#pragma once

#include "ingot/codegen/kernel_spec.h"
#include "ingot/runtime/buffer.h"
#include "ingot/runtime/stream.h"

namespace ingot {

// value(r, c) = codes(r, c) * factor of its scale. transposed[cols, rows] is what a GEMM that sums over rows needs.
struct Float8Tensor {
  OwnedTensor codes;
  OwnedTensor transposed;
  OwnedTensor factors;  // f32[scale_count]
};

// Casts input into `out`, reusing its memory where that is large enough. What the spec does not ask for is left alone.
// For specs with one set of dynamic scales and no inputs, result or sum; the others are Backend::cast()'s, and throw
// Error{invalid_argument}.
void cast_to(Float8Tensor& out, const CastSpec& spec, const Tensor& input, Backend& backend, Stream& stream);

// The same into parts that different owners keep.
void cast_to(OwnedTensor& codes, OwnedTensor& transposed, OwnedTensor& factors, const CastSpec& spec,
             const Tensor& input, Backend& backend, Stream& stream);

}  // namespace ingot
