#include "support/norm_reference.h"

namespace ingot::test {

double bound_or_none(double bound, double magnitude) {
  return magnitude < 1e38 ? bound : std::numeric_limits<double>::infinity();
}

double rounding_to(Dtype dtype, double value) {
  const double smallest = dtype == Dtype::f16 ? 0x1p-25 : dtype == Dtype::bf16 ? 0x1p-134 : 0x1p-149;
  const double largest = dtype == Dtype::f16 ? 65504.0 : 3.3e38;
  if (std::fabs(value) > largest * (1 - 0x1p-8)) return std::numeric_limits<double>::infinity();
  return unit_roundoff(dtype) * std::fabs(value) + smallest;
}

std::string bounded_difference(const std::string& what, const Expected& expected, const GuardedMatrix& actual) {
  return difference(
      what, expected.rows, expected.cols, actual,
      [&](std::int64_t r, std::int64_t c) {
        const double e = expected.values[expected.index(r, c)];
        const double a = actual.value(r, c);
        const double bound = expected.bounds[expected.index(r, c)];
        if (bound == std::numeric_limits<double>::infinity()) return true;
        if (std::isnan(e) || std::isnan(a)) return std::isnan(e) && std::isnan(a);
        return e == a || std::fabs(e - a) <= bound;
      },
      [&](std::int64_t r, std::int64_t c) {
        return fmt::format("{:.9g} +- {:.3g}", expected.values[expected.index(r, c)],
                           expected.bounds[expected.index(r, c)]);
      });
}

double element_or(const SharedMatrices& inputs, const char* name, std::int64_t c, double otherwise) {
  const auto found = inputs.find(name);
  return found == inputs.end() ? otherwise : found->second->value(0, c);
}

NormReference norm_reference(const NormSpec& spec, const SharedMatrices& inputs, float eps) {
  const GuardedMatrix& x = *inputs.at("input");
  const std::int64_t cols = x.cols();
  const double count = cols == 0 ? 1.0 : static_cast<double>(cols);
  const double roundings = roundings_of_row_sum(cols);
  NormReference made{{.rows = 1, .cols = x.rows()}, {.rows = 1, .cols = x.rows()}, {.rows = x.rows(), .cols = cols}};
  const auto push = [](Expected& to, double value, double bound) {
    to.values.push_back(value);
    to.bounds.push_back(std::isnan(bound) ? 0.0 : bound);
  };
  for (std::int64_t r = 0; r < x.rows(); ++r) {
    double sum = 0;
    double magnitude = 0;
    for (std::int64_t c = 0; c < cols; ++c) {
      sum += x.value(r, c);
      magnitude += std::fabs(x.value(r, c));
    }
    const bool layer = spec.kind == NormKind::layer;
    const double mean = layer ? sum / count : 0.0;
    const double mean_error = layer ? (roundings + 3) * kUlp * magnitude / count + 0x1p-149 : 0.0;
    double squares = 0;
    for (std::int64_t c = 0; c < cols; ++c) squares += (x.value(r, c) - mean) * (x.value(r, c) - mean);
    const double variance = squares / count;
    // The deviations from the true mean sum to 0, so an error of the mean counts only by its square.
    const double variance_error =
        (roundings + 6) * kUlp * (variance + mean_error * mean_error) + mean_error * mean_error + 0x1p-148;
    const double inside = variance + static_cast<double>(eps);
    const double rstd = 1 / std::sqrt(inside);
    const double relative = (variance_error + kUlp * inside) / inside;
    // Half of the relative error to first order, with a margin for higher orders, and 2 ulp for rsqrt.
    const double rstd_relative = relative < 0.5 ? 0.75 * relative + 5 * kUlp : std::numeric_limits<double>::infinity();
    const double limit = std::isfinite(squares) ? squares : 0.0;
    push(made.mean, mean, bound_or_none(mean_error, std::isfinite(magnitude) ? magnitude : 0.0));
    push(made.rstd, rstd, bound_or_none(rstd * rstd_relative, limit));
    for (std::int64_t c = 0; c < cols; ++c) {
      const double gamma = element_or(inputs, "gamma", c, 1.0);
      const double beta = element_or(inputs, "beta", c, 0.0);
      const double deviation = x.value(r, c) - mean;
      const double product = deviation * rstd * gamma;
      const double error = std::fabs(gamma) * rstd * (mean_error + kUlp * std::fabs(deviation)) * 1.5 +
                           std::fabs(product) * (rstd_relative + 4 * kUlp) + 2 * kUlp * std::fabs(beta) + 0x1p-140;
      const double value = product + beta;
      push(made.values, value, bound_or_none(error + rounding_to(spec.in, std::fabs(value) + error), limit));
    }
  }
  return made;
}

NormBackwardReference norm_backward_reference(const NormBackwardSpec& spec, const SharedMatrices& inputs) {
  const GuardedMatrix& x = *inputs.at("input");
  const GuardedMatrix& grad = *inputs.at("grad_output");
  const std::int64_t cols = x.cols();
  const double count = cols == 0 ? 1.0 : static_cast<double>(cols);
  const double roundings = roundings_of_row_sum(cols) + 6;
  const bool layer = spec.kind == NormKind::layer;
  const auto columns = static_cast<std::size_t>(cols);
  std::vector<double> gamma_sums(columns), gamma_magnitudes(columns), beta_sums(columns), beta_magnitudes(columns);
  NormBackwardReference made{{.rows = x.rows(), .cols = cols}, {.rows = 1, .cols = cols}, {.rows = 1, .cols = cols}};
  for (std::int64_t r = 0; r < x.rows(); ++r) {
    const double mean = element_or(inputs, "mean", r, 0.0);
    const double rstd = inputs.at("rstd")->value(0, r);
    std::vector<double> g(columns), xhat(columns);
    double sum = 0, magnitude = 0, product_sum = 0, product_magnitude = 0;
    for (std::size_t c = 0; c < columns; ++c) {
      const auto col = static_cast<std::int64_t>(c);
      xhat[c] = (x.value(r, col) - mean) * rstd;
      g[c] = grad.value(r, col) * (element_or(inputs, "gamma", col, 1.0) + (spec.zero_centred ? 1.0 : 0.0));
      sum += g[c];
      magnitude += std::fabs(g[c]);
      product_sum += g[c] * xhat[c];
      product_magnitude += std::fabs(g[c] * xhat[c]);
      gamma_sums[c] += grad.value(r, col) * xhat[c];
      gamma_magnitudes[c] += std::fabs(grad.value(r, col) * xhat[c]);
      beta_sums[c] += grad.value(r, col);
      beta_magnitudes[c] += std::fabs(grad.value(r, col));
    }
    const double mean_g = layer ? sum / count : 0.0;
    const double mean_product = product_sum / count;
    for (std::size_t c = 0; c < columns; ++c) {
      const double value = (g[c] - mean_g - xhat[c] * mean_product) * rstd;
      const double sizes = std::fabs(g[c]) + std::fabs(mean_g) + std::fabs(xhat[c] * mean_product);
      const double error =
          rstd * (roundings * kUlp * ((layer ? magnitude : 0.0) + std::fabs(xhat[c]) * product_magnitude) / count +
                  8 * kUlp * sizes) +
          0x1p-140 * (1 + std::fabs(xhat[c])) * (1 + rstd);
      const double bound = bound_or_none(error + rounding_to(spec.in, std::fabs(value) + error),
                                         std::fabs(xhat[c]) * product_magnitude + magnitude + product_magnitude);
      made.grad_input.values.push_back(value);
      made.grad_input.bounds.push_back(std::isnan(value) ? 0.0 : bound);
    }
  }
  const auto column_sums = [&](Expected& to, const std::vector<double>& sums, const std::vector<double>& magnitudes) {
    for (std::size_t c = 0; c < columns; ++c) {
      to.values.push_back(sums[c]);
      const double bound = sum_bound(spec.sums, x.rows() + 4, sums[c], magnitudes[c]) + 0x1p-140;
      to.bounds.push_back(std::isfinite(magnitudes[c]) ? bound_or_none(bound, magnitudes[c]) : 0.0);
    }
  };
  column_sums(made.grad_gamma, gamma_sums, gamma_magnitudes);
  column_sums(made.grad_beta, beta_sums, beta_magnitudes);
  return made;
}

}  // namespace ingot::test
