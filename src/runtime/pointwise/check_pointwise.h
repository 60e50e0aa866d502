// What an operation with a fused expression asks of the expression's operands: the matrix that it may not read, and its
// further inputs.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "ingot/codegen/pointwise/pointwise.h"
#include "ingot/runtime/check_tensor.h"

namespace ingot {

// How the operation's messages call the tensors: "cast inputs[0]", ...
using PointwiseInputNames = std::array<const char*, kMaxPointwiseInputs>;

// What the inputs must fit: matrices are of this dtype and shape, vectors run along its columns and rows. The texts say
// where the sizes come from.
struct PointwiseShape {
  Dtype dtype;
  std::int64_t rows, cols;
  const char* matrix;
  const char* columns;
  const char* rows_of;
};

// Of an expression in front of a kernel that reads a matrix.
PointwiseShape shape_of_input(const Tensor& input);

// The matrix that the expression calls x: without memory, it may only give the shape, to an expression that does not
// read it.
Range check_values(const char* what, const Tensor& input, Dtype dtype, const Pointwise& expression, Device device);

// ranges[i] is that of tensors[i]; what the expression has no input for must not be given.
void check_pointwise_inputs(const Pointwise& expression, std::span<const Tensor> tensors,
                            const PointwiseInputNames& names, const PointwiseShape& shape, Device device,
                            std::span<Range> ranges);

}  // namespace ingot
