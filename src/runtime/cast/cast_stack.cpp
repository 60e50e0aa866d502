#include "ingot/runtime/cast/cast_stack.h"

#include <cstddef>

namespace ingot {
namespace {

// The next matrices are each `rows` rows further down.
Tensor rows_of(const Tensor& stack, std::int64_t rows, std::int64_t index) {
  Tensor one = stack;
  one.rows = rows;
  if (stack.data != nullptr) {
    one.data = static_cast<std::byte*>(stack.data) + index * rows * stack.row_stride * size_of(stack.dtype);
  }
  return one;
}

Tensor part_of(const Tensor& vector, std::int64_t count, std::int64_t index) {
  Tensor one = vector;
  if (vector.data == nullptr) return one;
  one.cols = one.row_stride = count;
  one.data = static_cast<float*>(vector.data) + index * count;
  return one;
}

}  // namespace

std::int64_t stacked_rows(const CastTensors& stack) {
  return stack.matrices == 0 ? 0 : stack.input.rows / stack.matrices;
}

CastTensors stacked_matrix(const CastSpec& spec, const CastTensors& stack, std::int64_t index) {
  const std::int64_t rows = stacked_rows(stack);
  const std::int64_t cols = stack.input.cols;
  const std::int64_t scales = scale_count(spec.scale, rows, cols);
  const std::int64_t own = scale_count(spec.transposed_scale.value_or(spec.scale), rows, cols);
  const std::int64_t found = scale_count(spec.found_amax.value_or(spec.scale), rows, cols);
  return {.input = rows_of(stack.input, rows, index),
          .codes = rows_of(stack.codes, spec.codes ? rows : 0, index),
          .transposed = rows_of(stack.transposed, spec.transposed ? cols : 0, index),
          .scale_inv = part_of(stack.scale_inv, scales, index),
          .transposed_scale_inv = part_of(stack.transposed_scale_inv, own, index),
          .scales = part_of(stack.scales, scales, index),
          .amax = part_of(stack.amax, scales, index),
          .transposed_scales = part_of(stack.transposed_scales, own, index),
          .transposed_amax = part_of(stack.transposed_amax, own, index),
          .known_amax = part_of(stack.known_amax, scales, index),
          .found_amax = part_of(stack.found_amax, found, index)};
}

}  // namespace ingot
