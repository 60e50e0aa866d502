#include "ingot/runtime/pointwise/check_pointwise.h"

#include <fmt/format.h>

#include <cstddef>

#include "ingot/runtime/util/error.h"

namespace ingot {
namespace {

Range check_input(const PointwiseInput& input, const char* what, const Tensor& given, const PointwiseShape& shape,
                  Device device) {
  switch (input.kind) {
    case PointwiseInput::Kind::column: return check_vector(what, given, shape.dtype, shape.cols, device, shape.columns);
    case PointwiseInput::Kind::column_f32:
      return check_vector(what, given, Dtype::f32, shape.cols, device, shape.columns);
    case PointwiseInput::Kind::row: return check_vector(what, given, Dtype::f32, shape.rows, device, shape.rows_of);
    default: return check_matrix(what, given, shape.dtype, shape.rows, shape.cols, device, shape.matrix);
  }
}

}  // namespace

PointwiseShape shape_of_input(const Tensor& input) {
  return {.dtype = input.dtype,
          .rows = input.rows,
          .cols = input.cols,
          .matrix = "the input's shape",
          .columns = "one for each column of the input",
          .rows_of = "one for each row of the input"};
}

Range check_values(const char* what, const Tensor& input, Dtype dtype, const Pointwise& expression, Device device) {
  return check_values(what, input, dtype, expression.uses_x(), device);
}

Range check_values(const char* what, const Tensor& input, Dtype dtype, bool reads_x, Device device) {
  if (reads_x || input.data != nullptr) return check_matrix(what, input, dtype, device);
  if (input.dtype != dtype) refuse(what, input, fmt::format("the spec asks for {}", name(dtype)));
  byte_span(input, what);
  return {what, &input, 0};
}

Range check_pointwise_input(const PointwiseInput& input, const char* what, const Tensor& given,
                            const PointwiseShape& shape, Device device) {
  try {
    return check_input(input, what, given, shape, device);
  } catch (const Error& error) {  // "cast inputs[1] (gate): is ...": with the expression's own name for it
    throw Error(error.code(), fmt::format("{} ({})", what, input.name), error.message());
  }
}

void check_pointwise_inputs(const Pointwise& expression, std::span<const Tensor> tensors,
                            const PointwiseInputNames& names, const PointwiseShape& shape, Device device,
                            std::span<Range> ranges) {
  const auto inputs = expression.inputs();
  for (std::size_t i = 0; i < names.size(); ++i) {
    ranges[i] = i < inputs.size() ? check_pointwise_input(inputs[i], names[i], tensors[i], shape, device)
                                  : check_absent(names[i], tensors[i], "the expression has no such input");
  }
}

}  // namespace ingot
