#include "support/reference.h"

namespace ingot::test {

void set_f32(GuardedMatrix& vector, std::int64_t i, float value) {
  vector.set_bits(0, i, std::bit_cast<std::uint32_t>(value));
}

std::int64_t extent_of(ScaleGranularity scale, std::int64_t cols, std::int64_t r, std::int64_t c) {
  const std::int64_t across = scale.cols == 0 ? 1 : (cols + scale.cols - 1) / scale.cols;
  return (scale.rows == 0 ? 0 : r / scale.rows) * across + (scale.cols == 0 ? 0 : c / scale.cols);
}

GuardedMatrix amax_reference(ScaleGranularity scale, const GuardedMatrix& input) {
  GuardedMatrix amax(Dtype::f32, 1, scale_count(scale, input.rows(), input.cols()));
  for (std::int64_t i = 0; i < amax.cols(); ++i) set_f32(amax, i, 0.0F);
  for (std::int64_t r = 0; r < input.rows(); ++r) {
    for (std::int64_t c = 0; c < input.cols(); ++c) {
      const std::int64_t i = extent_of(scale, input.cols(), r, c);
      const double x = std::fabs(input.value(r, c));
      const double largest = amax.value(0, i);
      if (std::isnan(x)) set_f32(amax, i, std::numeric_limits<float>::quiet_NaN());
      if (x > largest) set_f32(amax, i, static_cast<float>(x));
    }
  }
  return amax;
}

float scale_reference(const CastSpec& spec, double amax) {
  constexpr double kLargest[] = {448, 57344, 240, 57344};
  const double largest = kLargest[static_cast<int>(spec.out) - static_cast<int>(Dtype::e4m3fn)];
  if (std::isnan(amax)) return std::numeric_limits<float>::quiet_NaN();
  const auto scale = static_cast<float>(largest / std::fmax(amax, 1e-12));
  return spec.pow2 && scale != 0 ? std::ldexp(1.0F, std::ilogb(scale)) : scale;
}

ScalesReference scales_reference(const CastSpec& spec, ScaleGranularity granularity, const GuardedMatrix& input,
                                 const GuardedMatrix* given) {
  ScalesReference made{GuardedMatrix(Dtype::f32, 1, scale_count(granularity, input.rows(), input.cols())), {}, {}};
  made.scale_inv = made.scales;
  const GuardedMatrix found = amax_reference(granularity, input);
  made.amax = earlier_amax(made.scales.cols());
  for (std::int64_t i = 0; i < found.cols(); ++i) {
    const double amax = found.value(0, i);
    const float scale = given != nullptr ? static_cast<float>(given->value(0, i)) : scale_reference(spec, amax);
    set_f32(made.scales, i, scale);
    set_f32(made.scale_inv, i, 1.0F / scale);
    if (std::isnan(amax) || amax > made.amax.value(0, i)) set_f32(made.amax, i, static_cast<float>(amax));
  }
  return made;
}

Matrices amax_history_reference(const AmaxHistorySpec& spec, const SharedMatrices& inputs, Matrices slots) {
  GuardedMatrix& amax = slots.at("amax");
  GuardedMatrix& history = slots.at("history");
  for (std::int64_t i = 0; i < history.rows(); ++i) {
    std::vector<std::uint32_t> before;
    for (std::int64_t step = 0; step < history.cols(); ++step) before.push_back(history.bits(i, step));
    double newest = std::fabs(amax.value(0, i));
    if (spec.finite && !std::isfinite(newest)) newest = 0;
    const float first = std::isnan(newest) ? std::numeric_limits<float>::quiet_NaN() : static_cast<float>(newest);
    history.set_bits(i, 0, std::bit_cast<std::uint32_t>(first));
    for (std::int64_t step = 1; step < history.cols(); ++step) {
      history.set_bits(i, step, before[static_cast<std::size_t>(step - 1)]);
    }
    set_f32(amax, i, 0.0F);

    double largest = newest;
    for (std::int64_t step = 1; step < history.cols() && spec.reduction == AmaxReduction::max; ++step) {
      const double earlier = std::fabs(history.value(i, step));
      if (std::isnan(earlier) || earlier > largest) largest = earlier;
      if (std::isnan(largest)) break;
    }
    if (largest == 0) continue;
    auto scale = static_cast<float>(inputs.at("limits")->value(0, i) / (largest < 1e-12 ? 1e-12 : largest));
    if (std::isnan(largest)) scale = std::numeric_limits<float>::quiet_NaN();
    if (inputs.at("pow2")->value(0, i) != 0 && scale > 0) scale = std::ldexp(1.0F, std::ilogb(scale));
    set_f32(slots.at("scale"), i, scale);
  }
  return slots;
}

Matrices cast_reference(const CastSpec& spec, const SharedMatrices& inputs) {
  const GuardedMatrix& input = *inputs.at("input");
  const bool given = spec.source == ScaleSource::given;
  const ScaleGranularity transposed_scale = spec.transposed_scale.value_or(spec.scale);
  ScalesReference scales = scales_reference(spec, spec.scale, input, given ? inputs.at("scales").get() : nullptr);
  ScalesReference own = spec.transposed_scale ? scales_reference(spec, transposed_scale, input,
                                                                 given ? inputs.at("transposed_scales").get() : nullptr)
                                              : scales;
  GuardedMatrix codes(spec.out, input.rows(), input.cols());
  GuardedMatrix transposed(spec.out, input.cols(), input.rows());
  const auto code = [&](const ScalesReference& from, ScaleGranularity granularity, std::int64_t r, std::int64_t c) {
    const double scale = from.scales.value(0, extent_of(granularity, input.cols(), r, c));
    const auto value = static_cast<float>(input.value(r, c));
    // A given scale does not turn an Inf into NaN by itself; a dynamic scale of 0 does.
    if (given && std::isinf(value)) return encode_reference(spec.out, std::numeric_limits<float>::quiet_NaN());
    return encode_reference(spec.out, value * static_cast<float>(scale));
  };
  for (std::int64_t r = 0; r < input.rows(); ++r) {
    for (std::int64_t c = 0; c < input.cols(); ++c) {
      const bool differ = spec.transposed_scale.has_value();
      const std::uint32_t one = spec.codes || !differ ? code(scales, spec.scale, r, c) : 0U;
      if (spec.codes) codes.set_bits(r, c, one);
      if (spec.transposed) transposed.set_bits(c, r, differ ? code(own, transposed_scale, r, c) : one);
    }
  }
  Matrices all;
  all["codes"] = std::move(codes);
  all["transposed"] = std::move(transposed);
  all["scale_inv"] = std::move(scales.scale_inv);
  all["amax"] = std::move(scales.amax);
  all["transposed_scale_inv"] = std::move(own.scale_inv);
  all["transposed_amax"] = std::move(own.amax);
  return all;
}

double sum_bound(Dtype out, std::int64_t terms, double value, double magnitude) {
  const double largest = out == Dtype::f16 ? 65504.0 : static_cast<double>(std::numeric_limits<float>::max());
  if (std::fabs(value) >= largest * (1 - 0x1p-8)) return std::numeric_limits<double>::infinity();
  const double smallest = out == Dtype::f16 ? 0x1p-25 : out == Dtype::bf16 ? 0x1p-134 : 0x1p-149;
  return static_cast<double>(terms + 4) * 0x1p-24 * magnitude + unit_roundoff(out) * std::fabs(value) + smallest;
}

Expected column_sum_reference(const ColumnSumSpec& spec, const GuardedMatrix& input, bool exact) {
  Expected expected{.rows = 1, .cols = input.cols()};
  for (std::int64_t c = 0; c < input.cols(); ++c) {
    double sum = 0;
    double magnitude = 0;
    for (std::int64_t r = 0; r < input.rows(); ++r) {
      sum += input.value(r, c);
      magnitude += std::fabs(input.value(r, c));
    }
    expected.values.push_back(exact ? round_reference(spec.out, sum) : sum);
    expected.bounds.push_back(exact ? 0.0 : sum_bound(spec.out, input.rows(), sum, magnitude));
  }
  return expected;
}

GemmOperands gemm_operands(const GemmSpec& spec, const Shape& shape, const SharedMatrices& inputs) {
  const auto [m, n, k] = shape;
  GemmOperands operands;
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t l = 0; l < k; ++l) {
      operands.a.push_back(spec.layout_a == Layout::k_major ? inputs.at("a")->value(i, l)
                                                            : inputs.at("a")->value(l, i));
    }
  }
  for (std::int64_t l = 0; l < k; ++l) {
    for (std::int64_t j = 0; j < n; ++j) {
      operands.b.push_back(spec.layout_b == Layout::k_major ? inputs.at("b")->value(j, l)
                                                            : inputs.at("b")->value(l, j));
    }
  }
  return operands;
}

double scale_inv_of(const SharedMatrices& inputs, const char* name, ScaleGranularity scale, std::int64_t i) {
  const auto found = inputs.find(name);
  return found == inputs.end() ? 1.0 : found->second->value(0, scale == kTensorwise ? 0 : i);
}

Expected GemmReference::operator()(const GemmSpec& spec, const Shape& shape, const SharedMatrices& inputs, bool exact) {
  // scale_inv of groups are part of the sums.
  const bool grouped = has_group_scale_inv(spec);
  const Sums own = grouped ? add_up(spec, shape, inputs) : Sums{};
  const Sums& sums = grouped ? own : sums_of(spec, shape, inputs);
  Expected expected{.rows = shape.rows, .cols = shape.cols};
  for (std::int64_t i = 0; i < shape.rows; ++i) {
    const double scale_inv_a = grouped ? 1.0 : scale_inv_of(inputs, "scale_inv_a", spec.scale_a, i);
    for (std::int64_t j = 0; j < shape.cols; ++j) {
      const double factor = grouped ? 1.0 : scale_inv_a * scale_inv_of(inputs, "scale_inv_b", spec.scale_b, j);
      const double bias = spec.bias ? inputs.at("bias")->value(0, j) : 0.0;
      const std::size_t at = expected.index(i, j);
      const double value = sums.values[at] * factor + bias;
      const double magnitude = sums.magnitudes[at] * factor + std::fabs(bias);
      expected.values.push_back(exact ? round_reference(spec.out, value) : value);
      expected.bounds.push_back(exact ? 0.0 : sum_bound(spec.out, shape.inner, value, magnitude));
    }
  }
  return expected;
}

const GemmReference::Sums& GemmReference::sums_of(const GemmSpec& spec, const Shape& shape,
                                                  const SharedMatrices& inputs) {
  Sums& sums = seen_[{{inputs.at("a").get(), spec.layout_a}, {inputs.at("b").get(), spec.layout_b}}];
  if (sums.inputs.empty()) sums = add_up(spec, shape, inputs);
  return sums;
}

namespace {

// Adds `Depth` products to each of a row's sums, in their order: a[d] * b[d][j] and its magnitude.
template <int Depth>
void add_products(const double* a, const double* b, std::int64_t cols, double* values, double* magnitudes) {
  for (std::int64_t j = 0; j < cols; ++j) {
    double value = values[j];
    double magnitude = magnitudes[j];
    for (int d = 0; d < Depth; ++d) {
      const double product = a[d] * b[d * cols + j];
      value += product;
      magnitude += std::fabs(product);
    }
    values[j] = value;
    magnitudes[j] = magnitude;
  }
}

}  // namespace

GemmReference::Sums GemmReference::add_up(const GemmSpec& spec, const Shape& shape, const SharedMatrices& inputs) {
  Sums sums{.inputs = inputs, .values = {}, .magnitudes = {}};
  const auto [m, n, k] = shape;
  const std::int64_t cols = n;
  const std::int64_t depth = k;
  sums.values.assign(static_cast<std::size_t>(m * n), 0.0);
  sums.magnitudes = sums.values;
  GemmOperands operands = gemm_operands(spec, shape, inputs);
  if (has_group_scale_inv(spec)) apply_scale_inv(spec, shape, inputs, operands);
  pool_.parallel_for(m, 8, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      double* const value = sums.values.data() + i * cols;
      double* const magnitude = sums.magnitudes.data() + i * cols;
      const double* const a = operands.a.data() + i * depth;
      std::int64_t l = 0;
      for (; l + 4 <= depth; l += 4) add_products<4>(a + l, operands.b.data() + l * cols, cols, value, magnitude);
      for (; l < depth; ++l) add_products<1>(a + l, operands.b.data() + l * cols, cols, value, magnitude);
    }
  });
  return sums;
}

void GemmReference::apply_scale_inv(const GemmSpec& spec, const Shape& shape, const SharedMatrices& inputs,
                                    GemmOperands& operands) {
  const auto [m, n, k] = shape;
  for (std::int64_t l = 0; l < k; ++l) {
    for (std::int64_t i = 0; i < m; ++i) {
      operands.a[static_cast<std::size_t>(i * k + l)] *=
          inputs.at("scale_inv_a")->value(0, extent_of(spec.scale_a, k, i, l));
    }
    for (std::int64_t j = 0; j < n; ++j) {
      operands.b[static_cast<std::size_t>(l * n + j)] *=
          inputs.at("scale_inv_b")->value(0, extent_of(spec.scale_b, k, j, l));
    }
  }
}

}  // namespace ingot::test
