// Lets a layer take tensors of more than two dimensions: [batch, sequence, features] is viewed as the matrix [batch *
// sequence, features].
#pragma once

#include <cstdint>
#include <initializer_list>

#include "ingot/runtime/error.h"
#include "ingot/runtime/tensor.h"

namespace ingot {

// Views a contiguous tensor of one or more dimensions as a matrix: the last size is the number of columns, the product
// of the others the number of rows (1 if there are no others). Throws Error{invalid_argument} if there are no sizes or
// one is negative.
inline Tensor flattened(void* data, Dtype dtype, std::initializer_list<std::int64_t> sizes, Device device) {
  if (sizes.size() == 0) throw Error(ErrorCode::invalid_argument, "flattened", "has no sizes: give one or more");
  std::int64_t rows = 1;
  std::int64_t cols = 0;
  std::size_t left = sizes.size();
  for (const std::int64_t size : sizes) {
    if (size < 0) throw Error(ErrorCode::invalid_argument, "flattened", "has a negative size");
    if (--left == 0) {
      cols = size;
    } else {
      rows *= size;
    }
  }
  return matrix(data, dtype, rows, cols, device);
}

}  // namespace ingot
