// Inputs of more than two dimensions: a layer sees [batch, sequence, features] as [batch * sequence, features].
#pragma once

#include <cstdint>
#include <initializer_list>

#include "ingot/runtime/error.h"
#include "ingot/runtime/tensor.h"

namespace ingot {

// A contiguous tensor of one dimension or more as a matrix: the last size is the columns, the product of the others the
// rows (1 where there are none). Throws Error{invalid_argument} for no sizes at all, and for negative ones.
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
