// The W8A8 layer from a checkpoint's codes, on the CPU: its output against float64 for every pair of scales, what it
// allocates, and its refusals.
#include "ingot/nn/modules/inference_linear.h"

#include <boost/test/unit_test.hpp>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "ingot/runtime/context/cpu_backend.h"
#include "nn/counting_backend.h"
#include "nn/reference.h"
#include "support/expect_error.h"

BOOST_AUTO_TEST_SUITE(test_inference_linear)

using namespace ingot;
using namespace ingot::test;

namespace {

constexpr std::int64_t kOut = 150;
constexpr std::int64_t kIn = 200;

// Of a weight in high precision: its codes with the scales that a cast gives it.
Float8WeightState state_of(const Matrix& weight, ScaleGranularity scale, Dtype dtype = Dtype::e4m3fn) {
  const Quantized parts = quantized(weight, {.dtype = dtype, .granularity = scale});
  Float8WeightState state{.dtype = dtype,
                          .scale = scale,
                          .out_features = weight.rows,
                          .in_features = weight.cols,
                          .codes = {},
                          .scale_inv = {}};
  const std::int64_t rows = scale.rows == 0 ? weight.rows : scale.rows;
  const std::int64_t cols = scale.cols == 0 ? weight.cols : scale.cols;
  for (std::int64_t r = 0; r < weight.rows; ++r) {
    for (std::int64_t c = 0; c < weight.cols; ++c) {
      state.codes.push_back(static_cast<std::byte>(encode_reference(dtype, static_cast<float>(parts.codes.at(r, c)))));
      if (r % rows == 0 && c % cols == 0) state.scale_inv.push_back(static_cast<float>(parts.scale_inv.at(r, c)));
    }
  }
  return state;
}

Matrix silu(Matrix x) {
  for (double& value : x.values) value /= 1 + std::exp(-value);
  return x;
}

struct Fixture {
  std::unique_ptr<Backend> backend = make_cpu_backend(1);
  Stream stream{*backend};
  Matrix weight = Random(1).weight(kOut, kIn, Dtype::bf16);

  void check(const Float8WeightState& state, InferenceLinearOptions options, std::int64_t tokens) {
    options.bias = true;
    const LinearConfig config = inference_config(state, options.activations);
    const Dtype out = options.output.value_or(options.dtype);
    const Dtype taken = out == Dtype::f32 ? Dtype::bf16 : out;
    const Dtype bias_dtype = options.bias_dtype.value_or(taken);
    Random random(7);
    const Matrix input = random.normal(tokens, kIn, options.dtype);
    Matrix bias = random.normal(1, kOut, bias_dtype);
    const DeviceMatrix x(input, options.dtype, *backend, stream);
    const DeviceMatrix b(bias, bias_dtype, *backend, stream);
    const auto y = DeviceMatrix::poisoned(tokens, kOut, out, *backend, stream);
    InferenceLinear linear(*backend, state, stream, options);
    linear.forward({.input = x, .bias = b, .output = y}, stream);
    bias = rounded(bias, taken);
    ExpectedMatrix expected = expected_output(config, input, weight, &bias, out);
    if (options.epilogue) {
      expected.value = silu(expected.value);  // whose slope is below 1.1
      for (double& bound : expected.bound.values) bound = 1.1 * bound + 1e-6;
    }
    check_within(y.read(stream), expected, "output");
  }
};

}  // namespace

BOOST_FIXTURE_TEST_SUITE(inference_linear, Fixture)

BOOST_AUTO_TEST_CASE(multiplies_a_checkpoints_codes) {
  for (const Dtype dtype : kHighPrecisionDtypes) {
    for (const std::int64_t tokens : {0, 1, 33}) {
      for (const ScaleGranularity scale : {kTensorwise, kRowwise}) {
        for (const std::optional<ScaleGranularity>& activations :
             {std::optional<ScaleGranularity>{}, {kTensorwise}, {kRowwise}}) {
          BOOST_TEST_CONTEXT(name(dtype) << " " << print(scale) << " " << tokens) {
            Float8WeightState state = state_of(weight, scale);
            check(state, {.dtype = dtype, .activations = activations}, tokens);
            state.input_scale_inv = 0.011F;  // values beyond 448 * 0.011 are clipped
            check(state, {.dtype = dtype, .activations = activations}, tokens);
          }
        }
      }
      for (const ScaleGranularity scale : {kBlocks, kRowGroups}) {
        BOOST_TEST_CONTEXT(name(dtype) << " " << print(scale) << " " << tokens) {
          check(state_of(weight, scale), {.dtype = dtype}, tokens);
        }
      }
    }
  }
  check(state_of(weight, kRowwise, Dtype::e5m2), {}, 5);
  check(state_of(weight, kBlocks), {.output = Dtype::f32, .bias_dtype = Dtype::f32}, 5);
  check(state_of(weight, kTensorwise), {.dtype = Dtype::f32, .output = Dtype::bf16, .bias_dtype = Dtype::f32}, 5);
  check(state_of(weight, kRowwise), {.epilogue = parse_pointwise("silu(x)")}, 5);
}

BOOST_AUTO_TEST_CASE(chooses_the_scales_of_activations) {
  Float8WeightState state = state_of(weight, kBlocks);
  BOOST_TEST((inference_config(state).output.a->granularity == kRowGroups));
  BOOST_TEST(!inference_config(state).output.fast_accumulation);
  state = state_of(weight, kTensorwise);
  BOOST_TEST((inference_config(state).output.a->granularity == kRowwise));
  state.input_scale_inv = 0.5F;
  BOOST_TEST((inference_config(state).output.a->scaling == Scaling::fixed));
  BOOST_TEST(inference_config(state).output.a->scale == 2);
  BOOST_TEST((inference_config(state, kTensorwise).output.a->scaling == Scaling::dynamic));
}

BOOST_AUTO_TEST_CASE(keeps_nothing_and_allocates_for_more_tokens_only) {
  CountingBackend counting(*backend, &stream);
  Stream on(counting);
  const Float8WeightState state = state_of(weight, kRowwise);
  Float8Workspace shared;
  InferenceLinear linear(counting, state, on, {.workspace = &shared});
  BOOST_TEST(linear.plan().saved_memory(64).bytes == 0U);
  BOOST_TEST(!linear.codes().transposed.data);
  const auto step = [&](std::int64_t tokens) {
    const DeviceMatrix x(Random(2).normal(tokens, kIn, Dtype::bf16), Dtype::bf16, counting, on);
    const auto y = DeviceMatrix::poisoned(tokens, kOut, Dtype::bf16, counting, on);
    counting.allocations = 0;
    counting.calls.clear();
    linear.forward({.input = x, .output = y}, on);
    BOOST_TEST(counting.calls.size() == 2U);  // the cast and the GEMM
    return counting.allocations;
  };
  BOOST_TEST(step(64) == 1);
  BOOST_TEST(step(64) == 0);
  BOOST_TEST(step(5) == 0);
  BOOST_TEST(shared.memory.bytes() >= linear.plan().forward_scratch(64, LinearPass::inference).bytes);
}

BOOST_AUTO_TEST_CASE(refuses_what_does_not_fit) {
  Float8WeightState state = state_of(weight, kBlocks);
  BOOST_TEST(
      error_of([&] { InferenceLinear(*backend, state, stream, {.activations = kRowwise}); }, ErrorCode::invalid_spec)
          .find("the output GEMM has scale=row for input and scale=128x128 for weight") != std::string::npos);
  state.scale_inv.pop_back();
  BOOST_TEST(error_of([&] { InferenceLinear(*backend, state, stream, {.name = "wq"}); }, ErrorCode::invalid_argument) ==
             "InferenceLinear \"wq\" weight: has 3 scale_inv, but [150, 200] with scale=128x128 has 4: codes come with "
             "their scale_inv");
  state = state_of(weight, kTensorwise);
  state.input_scale_inv = 0.0F;
  BOOST_TEST(
      error_of([&] { inference_config(state); }, ErrorCode::invalid_argument) ==
      "Float8WeightState input_scale_inv: is 0, but must be positive, and finite as its inverse is: leave it out "
      "for dynamic scales");
  state.input_scale_inv.reset();
  InferenceLinear linear(*backend, state, stream, {.name = "wq"});
  const DeviceMatrix x(zeros(2, kIn), Dtype::bf16, *backend, stream);
  const DeviceMatrix y(zeros(3, kOut), Dtype::bf16, *backend, stream);
  BOOST_TEST(error_of([&] { linear.forward({.input = x, .output = y}, stream); }, ErrorCode::invalid_argument) ==
             "InferenceLinear \"wq\" output: is bf16[3, 150] on cpu, but must be [2, 150] = [rows of input, "
             "out_features]");
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE_END()
