// The checks of a fused expression's operands: the matrix that it calls x, and its further inputs. For every operation
// that takes an expression.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "ingot/codegen/pointwise/pointwise.h"
#include "ingot/runtime/core/check_tensor.h"

namespace ingot {

// The names of the inputs in messages: "cast inputs[0]", ...
using PointwiseInputNames = std::array<const char*, kMaxPointwiseInputs>;
static_assert(kMaxPointwiseInputs == 4, "each PointwiseInputNames lists four names");

// What the inputs must match: matrices have this dtype and shape, vectors one element for each of its columns or rows.
// The texts tell the reader of a message where the sizes come from.
struct PointwiseShape {
  Dtype dtype;
  std::int64_t rows, cols;
  const char* matrix;
  const char* columns;
  const char* rows_of;
};

// For an expression in front of a kernel that reads `input`.
PointwiseShape shape_of_input(const Tensor& input);

// Checks the matrix that the expression calls x. If the expression does not read it, it may have no memory and give
// only the shape.
Range check_values(const char* what, const Tensor& input, Dtype dtype, const Pointwise& expression, Device device);
Range check_values(const char* what, const Tensor& input, Dtype dtype, bool reads_x, Device device);

// Checks one input of the expression, or of several.
Range check_pointwise_input(const PointwiseInput& input, const char* what, const Tensor& given,
                            const PointwiseShape& shape, Device device);

// Checks all inputs and sets ranges[i] to the memory of tensors[i]. Tensors beyond the expression's inputs must be
// default ones.
void check_pointwise_inputs(const Pointwise& expression, std::span<const Tensor> tensors,
                            const PointwiseInputNames& names, const PointwiseShape& shape, Device device,
                            std::span<Range> ranges);

}  // namespace ingot
