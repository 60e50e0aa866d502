// Random pointwise expressions, points at which to evaluate them, and a kernel that evaluates them.
#pragma once

#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "ingot/codegen/generate.h"
#include "ingot/codegen/pointwise/pointwise.h"
#include "ingot/codegen/pointwise/pointwise_lowering.h"

namespace ingot::test {

using Random = std::mt19937_64;

inline int below(Random& random, int end) { return static_cast<int>(random() % static_cast<std::uint64_t>(end)); }

// Uniform in [low, high).
inline double between(Random& random, double low, double high) {
  return low + (high - low) * (static_cast<double>(random() >> 11U) * 0x1p-53);
}

// The text of a random expression of at most `depth` levels. It uses the whole grammar: redundant parentheses, signs,
// powers, every kind of input, and calls of the given functions.
inline std::string random_text(Random& random, int depth, const std::vector<std::string>& one_argument,
                               const std::vector<std::string>& two_arguments) {
  const auto part = [&] { return random_text(random, depth - 1, one_argument, two_arguments); };
  const auto pick = [&](const std::vector<std::string>& from) {
    return from[static_cast<std::size_t>(below(random, static_cast<int>(from.size())))];
  };
  if (depth == 0 || below(random, 8) == 0) {
    static const std::vector<std::string> kNames{"x", "x", "x", "gate", "residual", "bias[col]", "mean[row]"};
    if (below(random, 3) != 0) return pick(kNames);
    static const std::vector<std::string> kNumbers{"0", "1", "2", "0.5", "3.75", "1e-3", ".25"};
    return pick(kNumbers);
  }
  switch (below(random, 9)) {
    case 0: return part() + " + " + part();
    case 1: return part() + "-" + part();
    case 2: return "(" + part() + ") * " + part();
    case 3: return part() + " / (" + part() + ")";
    case 4: return "-" + part();
    case 5: return fmt::format("({})^{}", part(), below(random, 5));
    case 6: return pick(two_arguments) + "(" + part() + "," + part() + ")";
    default: return pick(one_argument) + "(" + part() + ")";
  }
}

// Replaces every NaN by the same one.
inline std::uint32_t bits(float value) { return std::isnan(value) ? 0x7fc00000U : std::bit_cast<std::uint32_t>(value); }

// Ends of the range, kinks, and values from the whole range.
inline std::vector<float> mixed_values(std::uint64_t seed, std::size_t count) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  std::vector<float> made{0.0F, -0.0F, 1.0F, -1.0F, 16.0F, -16.0F, 1e-45F, 3.4e38F, -3.4e38F, kInf, -kInf, NAN};
  Random random(seed);
  while (made.size() < count) {
    const double size = std::exp(between(random, -10, below(random, 8) == 0 ? 80 : 4));
    made.push_back(static_cast<float>(below(random, 2) == 0 ? size : -size));
  }
  for (std::size_t i = 0; i < count; ++i) {
    std::swap(made[i], made[i + random() % (count - i)]);
  }
  made.resize(count);
  return made;
}

// Every built-in function of x and gate, its derivative, and random expressions of x and up to four matrices.
inline std::vector<Pointwise> many_expressions() {
  std::vector<Pointwise> made;
  for (const PointwiseFunction& function : built_in_functions()) {
    const bool two = function.parameters.find(',') != std::string_view::npos;
    made.push_back(parse_pointwise(std::string(function.name) + (two ? "(x, gate)" : "(x)")));
    made.push_back(derivative(made.back(), "x"));
  }
  made.push_back(
      parse_pointwise("exp(x) + log(abs(a)) * log1p(abs(x)) - sqrt(abs(b)) / rsqrt(abs(c)) + erf(d) * sign(x)"));
  made.push_back(parse_pointwise("max(x, a) * min(x, -b) - step(c) * expm1(d) / tanh(x)"));
  return made;
}

// A kernel that computes all expressions: out[e * count + i] is expression e of x[i], a[0][i] ..., with one thread for
// each i.
struct PointwiseKernelParams {
  const float* x;
  const float* a[kMaxPointwiseInputs];
  float* out;
  unsigned count;
};

inline Source kernel_of(const std::vector<Pointwise>& expressions, PointwisePrecision precision) {
  std::string functors;
  std::string body;
  for (std::size_t e = 0; e < expressions.size(); ++e) {
    functors += render(expressions[e], fmt::format("Functor{}", e), precision);
    body += fmt::format("  *out = apply_pointwise<Functor{}>(params.x[i], a);\n  out += params.count;\n", e);
  }
  return {.name = fmt::format("{} expressions, precision {}", expressions.size(), static_cast<int>(precision)),
          .text = "#include \"pointwise/pointwise.cuh\"\n" + functors +
                  "namespace ingot {\n"
                  "struct Params {\n  const float* x;\n  const float* a[kMaxInputs];\n  float* out;\n  u32 count;\n};\n"
                  "__global__ void compute(const __grid_constant__ Params params) {\n"
                  "  const u32 i = blockIdx.x * blockDim.x + threadIdx.x;\n"
                  "  if (i >= params.count) return;\n"
                  "  const float a[kMaxInputs] = {params.a[0][i], params.a[1][i], params.a[2][i], params.a[3][i]};\n"
                  "  float* out = params.out + i;\n" +
                  body + "}\n}  // namespace ingot\nconstexpr auto kKernel = &ingot::compute;\n"};
}

}  // namespace ingot::test
