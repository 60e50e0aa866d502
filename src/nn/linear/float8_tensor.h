// A matrix in FP8: its codes, its transposed codes, or both, with the scale_inv that dequantize them; and cast_to(),
// which makes one from a matrix in high precision.
#pragma once

#include <cstdint>

#include "ingot/api.h"
#include "ingot/codegen/kernel_spec.h"
#include "ingot/runtime/context/backend.h"
#include "ingot/runtime/core/buffer.h"
#include "ingot/runtime/core/stream.h"

namespace ingot {

// value(r, c) = codes(r, c) * its factor. transposed[cols, rows] is for GEMMs that sum over rows; if it has its own
// scales, it has its own scale_inv too.
struct Float8Tensor {
  OwnedTensor codes;
  OwnedTensor transposed;
  OwnedTensor scale_inv;             // f32[scale_count]
  OwnedTensor transposed_scale_inv;  // f32, if the spec has a transposed_scale

  // The scale_inv of the transposed codes.
  Tensor scale_inv_of_transposed(const CastSpec& spec) const {
    return spec.transposed_scale ? transposed_scale_inv.view() : scale_inv.view();
  }
};

// The same as views, of memory that something else owns.
struct Float8View {
  Tensor codes{};
  Tensor transposed{};
  Tensor scale_inv{};
  Tensor transposed_scale_inv{};
};

// Casts input into `out` and reuses its memory where that is large enough. Outputs that the spec does not request are
// left alone. Takes specs with dynamic scales and without inputs, result or sum; for others it throws
// Error{invalid_argument}: use Backend::cast().
INGOT_API void cast_to(Float8Tensor& out, const CastSpec& spec, const Tensor& input, Backend& backend, Stream& stream);

// The same, into parts with different owners. Without a transposed_scale, transposed_scale_inv is left alone.
struct Float8Parts {
  OwnedTensor* codes;
  OwnedTensor* transposed;
  OwnedTensor* scale_inv;
  OwnedTensor* transposed_scale_inv;
};
inline Float8Parts parts_of(Float8Tensor& all) {
  return {&all.codes, &all.transposed, &all.scale_inv, &all.transposed_scale_inv};
}
INGOT_API void cast_to(const Float8Parts& parts, const CastSpec& spec, const Tensor& input, Backend& backend,
                       Stream& stream);

// Writes the scales of such a cast themselves, torchao's to the bit: f32(FP8_MAX / max(f64(amax), 1e-12)). A cast
// stores only their inverses, and 1 / (1 / scale) may have other bits. Backend::cast() with ScaleSource::given makes
// the same codes of them (of finite values; a given scale encodes Inf as NaN). Takes dynamic scales of the tensor, its
// rows or its columns, without an expression; of a transposed_scale if that is `scale` of another call. scales:
// f32[scale_count]. Throws Error{invalid_argument, invalid_spec} before anything is enqueued.
INGOT_API void write_scales(const CastSpec& spec, const Tensor& input, const Tensor& scales, Backend& backend,
                            Stream& stream);

// Resizes the parts for a cast of `input` and returns them as its outputs, for a caller that adds what cast_to()
// refuses. Rows of codes start at multiples of 64 bytes, or 16 for rows shorter than 512 bytes, from which tensor-core
// GEMMs load; rows shorter than 64 bytes are dense.
INGOT_API CastTensors outputs_of(const Float8Parts& parts, const CastSpec& spec, const Tensor& input, Backend& backend,
                                 Stream& stream);

// The row stride of codes with rows of that many bytes, as outputs_of() and LinearPlan lay them out.
INGOT_API std::int64_t code_pitch(std::int64_t cols);

// The scale_inv of codes in the order in which every kernel of a GEMM reads them in place, cuBLASLt too: for groups
// in a row a matrix, f32[ceil(cols / scale.cols), rows] for a tensor [rows, cols]; otherwise unchanged.
INGOT_API Tensor scale_inv_by_group(const Tensor& scale_inv, ScaleGranularity scale, std::int64_t rows,
                                    std::int64_t cols);

// The scale_inv of transposed codes in the form that a GEMM takes: for groups in a column and for blocks a matrix,
// f32[ceil(rows / scale.rows), ceil(cols / scale.cols)] for a tensor [rows, cols]; otherwise unchanged. `scale`
// describes the tensor, not its transpose.
INGOT_API Tensor transposed_scale_inv(const Tensor& scale_inv, ScaleGranularity scale, std::int64_t rows,
                                      std::int64_t cols);

}  // namespace ingot
