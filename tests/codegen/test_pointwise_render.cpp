// render(): the CUDA text of expressions, and that it computes what PointwiseProgram computes. pointwise_rendered.inc
// holds the output of render() for a list of expressions; this test compares it with render() and compiles it.
#include <boost/test/unit_test.hpp>
#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "codegen/pointwise_cases.h"
#include "codegen/pointwise_rendered.inc"
#include "ingot/codegen/pointwise/pointwise.h"
#include "ingot/codegen/pointwise/pointwise_lowering.h"
#include "ingot/codegen/pointwise/pointwise_program.h"
#include "ingot/runtime/util/error.h"
#include "support/expect_error.h"

BOOST_AUTO_TEST_SUITE(test_pointwise_render)

using namespace ingot;
using namespace ingot::test;

namespace {

using enum PointwisePrecision;

struct Case {
  const char* name;
  const char* text;
  PointwisePrecision precision;
  float (*apply)(float, const float (&)[kMaxInputs]);
};

// Every operation, in every precision, and the built-in functions with their derivatives.
const std::vector<Case> kCases{
    {"RenderedSwigluBias", "silu(x) * gate + bias[col] / mean[row]", reproducible16,
     apply_pointwise<RenderedSwigluBias>},
    {"RenderedQuickGelu", "x * sigmoid(1.702 * x)", reproducible32, apply_pointwise<RenderedQuickGelu>},
    {"RenderedExponentials", "exp(x) - expm1(-x) * tanh(x) + erf(x) / sigmoid(x)", fast,
     apply_pointwise<RenderedExponentials>},
    {"RenderedRoots", "log(abs(x)) + log1p(x^2) * sqrt(abs(x)) - rsqrt(x^3)", reproducible32,
     apply_pointwise<RenderedRoots>},
    {"RenderedKinks", "max(x, a) - min(b, x) * sign(x - c) + step(-x) * d", reproducible16,
     apply_pointwise<RenderedKinks>},
    {"RenderedNoX", "max(a, 0.1) * -b[row]", reproducible32, apply_pointwise<RenderedNoX>},
    {"RenderedConstant", "0.1", reproducible16, apply_pointwise<RenderedConstant>},
    {"RenderedFactors", "x * f[col:f32] + b[col]", reproducible16, apply_pointwise<RenderedFactors>},
    {"RenderedX", "x", reproducible16, apply_pointwise<RenderedX>},
};

std::string all_rendered() {
  std::string text =
      "// Written by test_pointwise_render.cpp: see there.\n#pragma once\n\n#include \"pointwise/pointwise.cuh\"\n";
  for (const Case& one : kCases) text += "\n" + render(parse_pointwise(one.text), one.name, one.precision);
  // For elementwise_pair: a second expression of the first case's inputs.
  const Pointwise first = parse_pointwise(kCases[0].text);
  std::vector<const PointwiseInput*> inputs;
  for (const PointwiseInput& input : first.inputs()) inputs.push_back(&input);
  return text + "\n" +
         render(parse_pointwise("x * mean[row] - gate"), "RenderedBesideSwigluBias", reproducible16,
                {.x = true, .inputs = inputs});
}

std::string content_of(const std::string& path) {
  std::ostringstream content;
  content << std::ifstream(path).rdbuf();
  return content.str();
}

std::vector<float> run(const PointwiseProgram& program, const std::vector<float>& x,
                       const std::vector<std::vector<float>>& inputs) {
  std::vector<PointwiseValues> operands;
  for (std::size_t i = 0; i < program.expression().inputs().size(); ++i) {
    const bool same = program.expression().inputs()[i].kind == PointwiseInput::Kind::row;
    operands.push_back({inputs[i].data(), same});
  }
  std::vector<float> out(x.size(), -12345.0F);
  program.run(x.size(), x.data(), operands, out.data());
  return out;
}

std::vector<std::vector<float>> random_inputs(std::size_t count) {
  std::vector<std::vector<float>> inputs;
  for (std::uint64_t seed = 1; seed <= kMaxPointwiseInputs; ++seed) inputs.push_back(mixed_values(seed, count));
  return inputs;
}

}  // namespace

BOOST_AUTO_TEST_CASE(golden) {
  BOOST_TEST(
      render(parse_pointwise("silu(x) * gate + bias[col] / -0.1"), "Forward", PointwisePrecision::reproducible16) ==
      R"(namespace ingot {

struct Forward {
  static constexpr u32 kInputs = 2;
  static constexpr bool kUsesX = true;
  static constexpr InputKind kKinds[kMaxInputs] = {InputKind::matrix, InputKind::column};
  static INGOT_HOST_DEVICE float apply(float x, float a0, float a1) {
    const float t0 = math::sigmoid_of_number<math::Reproducible16>(x);
    const float t1 = x * t0;
    const float t2 = math::divide<math::Reproducible16>(a1, 0x1.99999ap-4F);
    const float t3 = fused_multiply_add(t1, a0, -t2);
    return t3;
  }
};

}  // namespace ingot
)");
  BOOST_TEST(render(Pointwise(), "Nothing", PointwisePrecision::fast) == R"(namespace ingot {

struct Nothing {
  static constexpr u32 kInputs = 0;
  static constexpr bool kUsesX = true;
  static constexpr InputKind kKinds[kMaxInputs] = {};
  static INGOT_HOST_DEVICE float apply(float x) {
    return x;
  }
};

}  // namespace ingot
)");
}

// The names of inputs do not matter to the text.
BOOST_AUTO_TEST_CASE(no_text_of_the_users_gets_in) {
  const auto rendered = [](const char* text) { return render(parse_pointwise(text), "F", PointwisePrecision::fast); };
  BOOST_TEST(rendered("x * gate + asm[col]") == rendered("x * __syncthreads + namespace[col]"));
  BOOST_TEST(rendered("x * gate").find("gate") == std::string::npos);
}

// If render() changes on purpose, replace the file with the one that this test leaves in its folder.
// A kernel has many copies of what is inlined.
BOOST_AUTO_TEST_CASE(a_long_expression_is_a_function_that_is_called) {
  const auto called = [](const Pointwise& expression) {
    return render(expression, "F", reproducible32).find("  __attribute__((noinline)) static") != std::string::npos;
  };
  const auto nested = [](int functions) {
    std::string text = "x";
    for (int i = 0; i < functions; ++i) text = "tanh(" + text + ")";
    return parse_pointwise(text);
  };
  BOOST_TEST(!called(nested(12)));
  BOOST_TEST(called(nested(13)));
  std::string product = "x";
  for (int i = 0; i < 60; ++i) product += " + x^" + std::to_string(i + 3);
  BOOST_TEST(!called(parse_pointwise(product)));
  for (const PointwiseFunction& function : built_in_functions()) {
    const Pointwise expression =
        parse_pointwise(std::string(function.name) + "(" + std::string(function.parameters) + ")");
    BOOST_TEST(!called(expression), function.name);
    BOOST_TEST(!called(backward(expression, "x")), function.name);
  }
}

BOOST_AUTO_TEST_CASE(the_compiled_text_is_what_render_gives) {
  const std::string expected = all_rendered();
  const std::string path = INGOT_SOURCE_DIR "/tests/codegen/pointwise_rendered.inc";
  if (content_of(path) != expected) {
    std::ofstream("pointwise_rendered.inc") << expected;
    BOOST_ERROR(path << " is not what render() gives; if that is as it should be, replace it by the file "
                        "pointwise_rendered.inc that is now in the working directory");
  }
}

BOOST_AUTO_TEST_CASE(program_and_compiled_text_agree_to_the_bit) {
  constexpr std::size_t kCount = 3000;
  const std::vector<float> x = mixed_values(0, kCount);
  const auto inputs = random_inputs(kCount);
  for (const Case& one : kCases) {
    const PointwiseProgram program(parse_pointwise(one.text), one.precision);
    const std::vector<float> got = run(program, x, inputs);
    for (std::size_t i = 0; i < kCount; ++i) {
      float a[kMaxInputs] = {};
      for (std::size_t k = 0; k < program.expression().inputs().size(); ++k) {
        const bool same = program.expression().inputs()[k].kind == PointwiseInput::Kind::row;
        a[k] = inputs[k][same ? 0 : i];
      }
      const float expected = one.apply(x[i], a);
      BOOST_REQUIRE_MESSAGE(bits(got[i]) == bits(expected), one.text << " of x[" << i << "] = " << x[i] << " is "
                                                                     << got[i] << ", expected " << expected);
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()
