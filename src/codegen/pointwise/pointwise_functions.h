// The functions that an expression may call.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ingot/codegen/pointwise/pointwise.h"

namespace ingot {

// Each is one step, and one function of templates/pointwise/math.cuh.
struct PrimitiveFunction {
  std::string_view name;
  PointwiseOp op;
};
std::span<const PrimitiveFunction> primitive_functions();

// The name of a step that is a function; empty for leaves and for operators.
std::string_view function_name(PointwiseOp op);

// nullptr if there is none of this name.
const PrimitiveFunction* find_primitive(std::string_view name);
const PointwiseFunction* find_built_in(std::string_view name);

// "x, gate" -> x, gate
std::vector<std::string_view> parameter_names(const PointwiseFunction& function);

// "exp, expm1, ..., reglu"
std::string all_function_names();

// Evaluates one step in float64; constants are folded with it too.
double apply(PointwiseOp op, double a, double b);

}  // namespace ingot
