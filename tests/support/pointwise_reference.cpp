#include "support/pointwise_reference.h"

namespace ingot::test {

StepErrors StepErrors::of(const CastSpec& spec) {
  const bool to_f32 = (spec.unrounded || spec.in == Dtype::f32) && !spec.fast_math;
  return {.function = to_f32 ? 0x1p-22 : 0x1p-15};
}

double step_reference(PointwiseOp op, double a, double b) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  const bool is_nan = std::isnan(a) || std::isnan(b);
  switch (op) {
    case PointwiseOp::negate: return -a;
    case PointwiseOp::exp: return std::exp(a);
    case PointwiseOp::expm1: return std::expm1(a);
    case PointwiseOp::log: return std::log(a);
    case PointwiseOp::log1p: return std::log1p(a);
    case PointwiseOp::tanh: return std::tanh(a);
    case PointwiseOp::sigmoid: return 1 / (1 + std::exp(-a));
    case PointwiseOp::erf: return std::erf(a);
    case PointwiseOp::sqrt: return std::sqrt(a);
    case PointwiseOp::rsqrt: return 1 / std::sqrt(a);
    case PointwiseOp::abs: return std::fabs(a);
    case PointwiseOp::sign: return is_nan ? kNan : a > 0 ? 1 : a < 0 ? -1 : 0;
    case PointwiseOp::step: return is_nan ? kNan : a > 0 ? 1 : 0;
    case PointwiseOp::add: return a + b;
    case PointwiseOp::subtract: return a - b;
    case PointwiseOp::multiply: return a * b;
    case PointwiseOp::divide: return a / b;
    case PointwiseOp::maximum: return is_nan ? kNan : std::fmax(a, b);
    case PointwiseOp::minimum: return is_nan ? kNan : std::fmin(a, b);
    default: return kNan;
  }
}

Bounded bounded_step(PointwiseOp op, const Bounded& a, const Bounded& b, const StepErrors& errors) {
  constexpr double kUnknown = std::numeric_limits<double>::infinity();
  const double value = step_reference(op, a.value, b.value);
  if (!std::isfinite(a.error) || !std::isfinite(b.error)) return {value, kUnknown};
  if (op == PointwiseOp::divide && b.error != 0 && std::fabs(b.value) <= b.error) return {value, kUnknown};
  double error = 0;
  const auto look_at = [&](double x, double y) {
    const double corner = step_reference(op, x, y);
    if (corner == value || (std::isnan(corner) && std::isnan(value))) return;
    error = std::isfinite(corner) && std::isfinite(value) ? std::max(error, std::fabs(corner - value)) : kUnknown;
  };
  if (a.error != 0 || b.error != 0) {
    for (const double x : {a.value - a.error, a.value + a.error}) {
      look_at(x, b.value - b.error);
      if (b.error != 0) look_at(x, b.value + b.error);
      if (error == kUnknown) return {value, kUnknown};
    }
  }
  switch (op) {
    case PointwiseOp::negate:
    case PointwiseOp::abs:
    case PointwiseOp::sign:
    case PointwiseOp::step:
    case PointwiseOp::maximum:
    case PointwiseOp::minimum: return {value, error};  // not rounded
    default: break;
  }
  if (!std::isfinite(value)) return {value, error};
  const bool arithmetic = op == PointwiseOp::add || op == PointwiseOp::subtract || op == PointwiseOp::multiply;
  const double largest = std::fabs(value) + error;
  error += largest * (arithmetic ? StepErrors::kArithmetic : errors.function) + StepErrors::kSmallest;
  // Near the end of f32's range, a result or an intermediate reciprocal may become 0 or Inf early.
  const bool beyond = largest >= 0x1p125 || (op == PointwiseOp::divide && std::fabs(b.value) >= 0x1p125);
  return {value, beyond ? kUnknown : error};
}

Bounded bounded_value(const Pointwise& expression, const Bounded& x, std::span<const double> inputs,
                      const StepErrors& errors) {
  static thread_local std::vector<Bounded> values;  // called for every element
  values.clear();
  for (const PointwiseStep& step : expression.steps()) {
    switch (step.op) {
      case PointwiseOp::constant: values.push_back({static_cast<double>(step.value), 0}); break;
      case PointwiseOp::x: values.push_back(x); break;
      case PointwiseOp::input: values.push_back({inputs[step.a], 0}); break;
      default: values.push_back(bounded_step(step.op, values[step.a], values[step.b], errors));
    }
  }
  return values.empty() ? x : values.back();
}

std::string value_fault(const CastSpec& spec, const SharedMatrices& inputs, const GuardedMatrix& values) {
  constexpr std::int64_t kEnough = 20'000;
  const std::int64_t every = 1 + values.rows() * values.cols() / kEnough;
  const auto kinds = spec.pointwise.inputs();
  std::vector<const GuardedMatrix*> from;
  for (std::size_t i = 0; i < kinds.size(); ++i) from.push_back(inputs.at(pointwise_input_name(i)).get());
  const GuardedMatrix& input = *inputs.at("input");
  std::vector<double> read(kinds.size());
  const auto expect = [&](std::int64_t r, std::int64_t c) -> Bounded {
    for (std::size_t i = 0; i < kinds.size(); ++i) {
      switch (kinds[i].kind) {
        case PointwiseInput::Kind::matrix: read[i] = from[i]->value(r, c); break;
        case PointwiseInput::Kind::column:
        case PointwiseInput::Kind::column_f32: read[i] = from[i]->value(0, c); break;
        case PointwiseInput::Kind::row: read[i] = from[i]->value(0, r); break;
      }
    }
    Bounded expected{evaluate(spec.pointwise, input.value(r, c), read), 0};
    expected.error = bounded_value(spec.pointwise, {input.value(r, c), 0}, read, StepErrors::of(spec)).error;
    if (values.dtype() == Dtype::f32) return expected;
    const double largest = std::fabs(expected.value) + expected.error;
    const bool overflows = values.dtype() == Dtype::f16 && std::isfinite(expected.value) && largest >= 65504;
    if (overflows) expected.error = std::numeric_limits<double>::infinity();
    expected.error += largest * unit_roundoff(values.dtype()) + (values.dtype() == Dtype::f16 ? 0x1p-25 : 0x1p-134);
    return expected;
  };
  return difference(
      "values", input.rows(), input.cols(), values,
      [&](std::int64_t r, std::int64_t c) {
        if ((r * values.cols() + c) % every != 0) return true;
        const double got = values.value(r, c);
        const Bounded expected = expect(r, c);
        if (expected.value == got || (std::isnan(expected.value) && std::isnan(got))) return true;
        return std::isinf(expected.error) || std::fabs(expected.value - got) <= expected.error;
      },
      [&](std::int64_t r, std::int64_t c) {
        const Bounded expected = expect(r, c);
        return fmt::format("{:.9g} +- {:.3g}", expected.value, expected.error);
      });
}

std::shared_ptr<const GuardedMatrix> widened(const GuardedMatrix& matrix) {
  auto wide = std::make_shared<GuardedMatrix>(Dtype::f32, matrix.rows(), matrix.cols());
  for (std::int64_t r = 0; r < matrix.rows(); ++r) {
    for (std::int64_t c = 0; c < matrix.cols(); ++c) {
      wide->set_bits(r, c, std::bit_cast<std::uint32_t>(static_cast<float>(matrix.value(r, c))));
    }
  }
  return wide;
}

std::shared_ptr<const GuardedMatrix> own_values(const CastSpec& spec, const Case& c, const SharedMatrices& inputs,
                                                Backend& backend, Stream& stream) {
  if (!spec.pointwise) return inputs.at("input");
  Case alone{.spec = CastSpec{.in = spec.unrounded ? Dtype::f32 : spec.in,
                              .pointwise = spec.pointwise,
                              .fast_math = spec.fast_math,
                              .result = true},
             .shape = c.shape};
  SharedMatrices read;
  for (const auto& [name, matrix] : inputs) {
    if (name.ends_with("scales")) continue;
    read[name] = spec.unrounded ? widened(*matrix) : matrix;
  }
  return std::make_shared<const GuardedMatrix>(run(alone, read, backend, stream).at("result"));
}

std::string rounding_fault(const GuardedMatrix& values, const GuardedMatrix& result) {
  Expected expected{.rows = values.rows(), .cols = values.cols()};
  for (std::int64_t r = 0; r < values.rows(); ++r) {
    for (std::int64_t c = 0; c < values.cols(); ++c) {
      expected.values.push_back(round_reference(result.dtype(), values.value(r, c)));
    }
  }
  expected.bounds.assign(expected.values.size(), 0.0);
  return value_difference("result", expected, result);
}

std::string cast_sum_fault(Dtype out, const GuardedMatrix& values, const GuardedMatrix& sum) {
  Expected expected{.rows = 1, .cols = values.cols()};
  for (std::int64_t c = 0; c < values.cols(); ++c) {
    double total = 0;
    double magnitude = 0;
    for (std::int64_t r = 0; r < values.rows(); ++r) {
      total += values.value(r, c);
      magnitude += std::fabs(values.value(r, c));
    }
    const bool overflows = std::isfinite(magnitude) && magnitude >= 0x1p127;
    expected.values.push_back(overflows ? sum.value(0, c) : total);
    expected.bounds.push_back(sum_bound(out, values.rows(), total, magnitude));
  }
  return value_difference("sum", expected, sum);
}

std::string fast_difference(const std::string& what, const GuardedMatrix& expected, const GuardedMatrix& actual,
                            bool same_scale_inv) {
  double largest = 0;
  std::int64_t moved = 0;
  for (std::int64_t r = 0; r < expected.rows() && r < actual.rows(); ++r) {
    for (std::int64_t c = 0; c < expected.cols() && c < actual.cols(); ++c) {
      const double e = std::fabs(expected.value(r, c));
      if (std::isfinite(e)) largest = std::max(largest, e);
      if (expected.bits(r, c) != actual.bits(r, c)) ++moved;
    }
  }
  const double of_largest = (what == "sum" ? 1e-3 : 1e-5) * largest;
  // The rank of codes and 16-bit floats in the order of their values; both zeros are equal.
  const auto rank = [](const GuardedMatrix& matrix, std::int64_t r, std::int64_t c) {
    const std::uint32_t sign = 1U << (8 * size_of(matrix.dtype()) - 1);
    const auto magnitude = static_cast<std::int64_t>(matrix.bits(r, c) & (sign - 1));
    return (matrix.bits(r, c) & sign) != 0 ? -magnitude : magnitude;
  };
  std::string fault = difference(
      what, expected.rows(), expected.cols(), actual,
      [&](std::int64_t r, std::int64_t c) {
        const double e = expected.value(r, c);
        const double a = actual.value(r, c);
        if (std::isnan(e) || std::isnan(a)) return std::isnan(e) && std::isnan(a);
        if (e == a || std::fabs(e - a) <= of_largest) return true;
        if (expected.dtype() == Dtype::f32) return std::fabs(e - a) <= 0x1p-7 * std::fabs(e);
        return std::abs(rank(expected, r, c) - rank(actual, r, c)) <= 1;
      },
      [&](std::int64_t r, std::int64_t c) { return show(expected, r, c); });
  const std::int64_t few = 1 + expected.rows() * expected.cols() / 1000;
  if (fault.empty() && is_fp8(expected.dtype()) && same_scale_inv && moved > few) {
    fault = fmt::format("{}: {} codes differ, but at most {} may", what, moved, few);
  }
  return fault;
}

std::string fast_difference(const Matrices& expected, const Matrices& actual) {
  bool same_scale_inv = true;
  for (const char* const what : {"scale_inv", "transposed_scale_inv"}) {
    if (expected.contains(what)) {
      same_scale_inv = same_scale_inv && bit_difference(what, expected.at(what), actual.at(what)).empty();
    }
  }
  for (const auto& [what, matrix] : actual) {
    if (std::string fault = fast_difference(what, expected.at(what), matrix, same_scale_inv); !fault.empty()) {
      return fault;
    }
  }
  return {};
}

}  // namespace ingot::test
