// The check of scales, scale_inv or maxima: one for each part of a matrix that shares a scale.
#pragma once

#include <cstdint>
#include <string>

#include "ingot/codegen/types/granularity.h"
#include "ingot/runtime/core/check_tensor.h"

namespace ingot {

// How an operation names the parts of its matrix in messages. Extents are named by their numbers, so that a new
// granularity needs no new sentence.
struct ScaledMatrix {
  const char* whole;   // "one for the whole tensor"
  const char* row;     // "one for each row of the input"
  const char* in_row;  // "one for each group of 128 <in a row of the input>, row by row"
  const char* of;      // "one for each block of 128 x 128< of the input>, row by row"
};

// Which scales a matrix has, and in which order: "one for each group of 128 along K, row by row".
std::string scales_in_words(ScaleGranularity granularity, const ScaledMatrix& matrix);

// One row of as many elements as a rows x cols matrix has scales.
Range check_scales(const char* what, const Tensor& tensor, Dtype dtype, ScaleGranularity granularity, std::int64_t rows,
                   std::int64_t cols, Device device, const ScaledMatrix& matrix);

// For scale_inv of groups in a row or of blocks, which may also be a matrix with one row for each group of columns
// (cast_tensors.h). `groups` names those in messages: "group of K".
Range check_scale_inv(const char* what, const Tensor& scale_inv, ScaleGranularity granularity, std::int64_t rows,
                      std::int64_t cols, Device device, const ScaledMatrix& matrix, const char* groups);

}  // namespace ingot
