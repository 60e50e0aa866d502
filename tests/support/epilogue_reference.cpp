#include "support/epilogue_reference.h"

namespace ingot::test {

SharedMatrices with_unset_c(const Case& c, SharedMatrices inputs) {
  const Dtype dtype = *std::get<GemmSpec>(c.spec).epilogue.c;
  const auto [nan, inf] = dtype == Dtype::f32    ? std::pair{0x7fc00000U, 0x7f800000U}
                          : dtype == Dtype::bf16 ? std::pair{0x7fc0U, 0xff80U}
                                                 : std::pair{0x7e00U, 0xfc00U};
  auto unset =
      std::make_shared<GuardedMatrix>(dtype, c.shape.rows, c.shape.cols, c.placement.padding, c.placement.offset);
  for (std::int64_t row = 0; row < c.shape.rows; ++row) {
    for (std::int64_t col = 0; col < c.shape.cols; ++col) unset->set_bits(row, col, (row + col) % 2 == 0 ? nan : inf);
  }
  inputs["c"] = std::move(unset);
  return inputs;
}

std::string EpilogueReference::fault(const Case& c, const SharedMatrices& inputs, const Matrices& outputs,
                                     double sum_error) {
  const GemmSpec& spec = std::get<GemmSpec>(c.spec);
  const auto [m, n, k] = c.shape;
  GemmSpec sums = spec;
  sums.out = Dtype::f32;
  sums.epilogue = {};
  const bool exact = c.input == Input::integers;
  Expected x = gemm_(sums, c.shape, inputs, exact);
  if (!exact && sum_error != 0) {
    // The bound is (K + 4) 2^-24 of the absolute terms; sum_error comes on top.
    for (double& bound : x.bounds) bound *= 1 + sum_error * 0x1p24 / static_cast<double>(k + 4);
  }
  if (spec.epilogue.c && c.beta != 0) add_c(static_cast<double>(c.beta), *inputs.at("c"), x);
  if (spec.epilogue.preactivation) {
    const std::string found =
        value_difference("preactivation", rounded(epilogue_dtype(spec), x), outputs.at("preactivation"));
    if (!found.empty()) return found;
  }
  const Expected values = apply(spec.epilogue.pointwise, inputs, x);
  const GuardedMatrix& out = outputs.at("out");
  const double scale = is_fp8(spec.out) ? inputs.at("scale")->value(0, 0) : 1.0;
  std::string found =
      value_difference("out", is_fp8(spec.out) ? coded(spec.out, scale, values) : rounded(spec.out, values), out);
  if (found.empty() && spec.epilogue.amax) {
    found = value_difference("amax", is_fp8(spec.out) ? amax_of(values) : amax_of(out), outputs.at("amax"));
  }
  if (found.empty() && is_fp8(spec.out) &&
      outputs.at("scale_inv").value(0, 0) != static_cast<double>(1.0F / static_cast<float>(scale))) {
    found = "scale_inv: " + show(outputs.at("scale_inv"), 0, 0) + " is not 1 / scale";
  }
  return found;
}

void EpilogueReference::add_c(double beta, const GuardedMatrix& c, Expected& x) {
  for (std::int64_t i = 0; i < x.rows; ++i) {
    for (std::int64_t j = 0; j < x.cols; ++j) {
      const std::size_t at = x.index(i, j);
      const double added = beta * c.value(i, j);
      x.bounds[at] += 0x1p-23 * (std::fabs(x.values[at]) + std::fabs(added));
      x.values[at] += added;
    }
  }
}

Expected EpilogueReference::apply(const Pointwise& expression, const SharedMatrices& inputs, const Expected& x) {
  if (!expression) return x;
  const auto kinds = expression.inputs();
  std::vector<double> read(kinds.size());
  Expected values = x;
  for (std::int64_t i = 0; i < x.rows; ++i) {
    for (std::int64_t j = 0; j < x.cols; ++j) {
      for (std::size_t input = 0; input < kinds.size(); ++input) {
        const GuardedMatrix& from = *inputs.at(pointwise_input_name(input));
        read[input] = kinds[input].kind == PointwiseInput::Kind::matrix   ? from.value(i, j)
                      : kinds[input].kind == PointwiseInput::Kind::column ? from.value(0, j)
                                                                          : from.value(0, i);
      }
      const std::size_t at = x.index(i, j);
      values.values[at] = evaluate(expression, x.values[at], read);
      values.bounds[at] = bounded_value(expression, {x.values[at], x.bounds[at]}, read, {.function = 0x1p-15}).error;
    }
  }
  return values;
}

Expected EpilogueReference::rounded(Dtype dtype, Expected values) {
  for (std::size_t i = 0; i < values.values.size(); ++i) {
    const double largest = std::fabs(values.values[i]) + values.bounds[i];
    if (dtype == Dtype::f16 && largest >= 65504) values.bounds[i] = kUnknown;
    if (dtype == Dtype::f32) continue;
    values.bounds[i] += largest * unit_roundoff(dtype) + (dtype == Dtype::f16 ? 0x1p-25 : 0x1p-134);
  }
  return values;
}

Expected EpilogueReference::coded(Dtype dtype, double scale, Expected values) {
  const auto code = [&](double value) {
    return decode_reference(dtype, encode_reference(dtype, static_cast<float>(value) * static_cast<float>(scale)));
  };
  for (std::size_t i = 0; i < values.values.size(); ++i) {
    const double value = values.values[i];
    const double error = values.bounds[i] + 0x1p-23 * std::fabs(value);
    const double low = code(value - (values.bounds[i] == 0 ? 0 : error));
    const double high = code(value + (values.bounds[i] == 0 ? 0 : error));
    values.values[i] = (low + high) / 2;
    values.bounds[i] = std::isinf(error) ? kUnknown : (high - low) / 2;
  }
  return values;
}

Expected EpilogueReference::amax_of(const GuardedMatrix& out) {
  double amax = earlier_amax(1).value(0, 0);
  for (std::int64_t i = 0; i < out.rows(); ++i) {
    for (std::int64_t j = 0; j < out.cols(); ++j) amax = larger(amax, std::fabs(out.value(i, j)));
  }
  return {.rows = 1, .cols = 1, .values = {amax}, .bounds = {0.0}};
}

Expected EpilogueReference::amax_of(const Expected& values) {
  double amax = earlier_amax(1).value(0, 0);
  double bound = 0;
  for (std::size_t i = 0; i < values.values.size(); ++i) {
    amax = larger(amax, std::fabs(values.values[i]));
    bound = std::max(bound, values.bounds[i] + 0x1p-24 * std::fabs(values.values[i]));
  }
  return {.rows = 1, .cols = 1, .values = {amax}, .bounds = {bound}};
}

}  // namespace ingot::test
