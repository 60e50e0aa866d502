// The linear layer as functions, on the CPU reference: Float8Linear's bits and calls, forwards and backwards in any
// order and on any thread, weights in FP8 and in other dtypes, and every refusal.
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "ingot/nn/modules/float8_linear.h"
#include "ingot/runtime/context/cpu_backend.h"
#include "ingot/runtime/util/error.h"
#include "nn/counting_backend.h"
#include "nn/function_case.h"
#include "support/expect_error.h"
#include "support/function_ref.h"

BOOST_AUTO_TEST_SUITE(test_linear_functions)

using namespace ingot;
using namespace ingot::test;

namespace {

constexpr CaseShape kShape{9, 33, 24};
constexpr LinearShape kLinear{kShape.in_features, kShape.out_features, true};

struct Fused {
  const char* prologue;
  const char* epilogue;
};
constexpr Fused kFused[] = {{"", ""},           {"silu(x) * up", ""}, {"", "silu(x)"},
                            {"", "sigmoid(x)"}, {"", "x * gate"},     {"tanh(x)", "gelu(x)"}};

LinearFusion fusion_of(const Fused& fused) {
  LinearFusion fusion;
  if (*fused.prologue != 0) fusion.prologue = parse_pointwise(fused.prologue);
  if (*fused.epilogue != 0) fusion.epilogue = parse_pointwise(fused.epilogue);
  return fusion;
}

struct Fixture {
  std::unique_ptr<Backend> backend = make_cpu_backend(1);
  Stream stream{*backend};

  LinearCase make(unsigned seed, const LinearConfig& config, Dtype dtype = Dtype::bf16) {
    const Dtype bias = bias_dtype_of(config, dtype);
    return {make_inputs(kShape, dtype, bias, seed), dtype, bias, *backend, stream};
  }
  std::string refusal(test::FunctionRef<void()> act) { return error_of(act, ErrorCode::invalid_argument); }

  // The scales of a plan with delayed ones, from these tensors.
  void start(DelayedScaling& delayed, const LinearConfig& config, std::array<Tensor, 3> tensors) {
    const std::array casts{config.output.a, config.output.b, config.grad_input.a};
    if (!casts[0] || casts[0]->scaling != Scaling::delayed) return;
    for (std::size_t i = 0; i < casts.size(); ++i) {
      delayed.add(std::string(1, static_cast<char>('a' + i)), casts[i]->dtype);
    }
    for (std::size_t i = 0; i < casts.size(); ++i) delayed.start(static_cast<int>(i), tensors[i], stream);
  }

  // The sum over tokens of values that were rounded to 8 bits or more, and computed at rounded points.
  static ExpectedMatrix sum_of(const Matrix& gradient) {
    ExpectedMatrix sum{zeros(1, gradient.cols), zeros(1, gradient.cols)};
    for (std::int64_t r = 0; r < gradient.rows; ++r) {
      for (std::int64_t c = 0; c < gradient.cols; ++c) {
        sum.value.at(0, c) += gradient.at(r, c);
        sum.bound.at(0, c) += 0x1p-6 * std::abs(gradient.at(r, c)) + 0x1p-9;
      }
    }
    return sum;
  }

  // A layer whose output has another dtype than its input, against float64.
  void check_output_dtype(const LinearConfig& config, Dtype dtype, Dtype out, const char* epilogue) {
    const LinearFusion fusion = fusion_of({"", epilogue});
    const Dtype bias = bias_dtype_of(config, out);
    HostInputs host = make_inputs(kShape, dtype, bias, 1);
    host.grad_output = Random(4).normal(kShape.tokens, kShape.out_features, out);
    const LinearCase device(host, dtype, bias, *backend, stream);
    const DeviceMatrix gate(Random(9).normal(kShape.tokens, kShape.out_features, out), out, *backend, stream);
    const DeviceMatrix grad_output(host.grad_output, out, *backend, stream);
    const auto output = DeviceMatrix::poisoned(kShape.tokens, kShape.out_features, out, *backend, stream);
    FunctionLayer functions(
        {.config = config, .shape = kLinear, .dtypes = {.input = dtype, .output = out}, .fusion = fusion}, *backend,
        stream);
    DelayedScaling delayed(*backend);
    start(delayed, config, {device.input, device.weight, grad_output});
    functions.use(delayed);
    FunctionSaved kept(functions.plan, kShape.tokens, *backend, stream);
    LinearForward tensors = device.forward(true);
    tensors.output = output;
    if (!fusion.epilogue.inputs().empty()) tensors.epilogue_inputs[0] = gate;
    functions.forward(tensors, &kept.saved, stream, true);
    LinearBackward backward = device.backward(true);
    backward.grad_output = grad_output;
    const bool high_input = !is_float8(config.grad_input);
    const bool high_weight = !is_float8(config.grad_weight);
    if (high_input || high_weight) {
      check_contains(
          refusal([&] { functions.backward(backward, tensors, kept.saved, stream); }),
          {"is wanted, but its GEMM is in high precision, whose operands have one dtype, and grad_output is " +
           std::string(name(out)) + " with an input of " + std::string(name(dtype))});
      if (high_input) backward.grad_input = {};
      if (high_weight) backward.grad_weight = {};
    }
    functions.backward(backward, tensors, kept.saved, stream);
    const ExpectedMatrix sum = expected_output(config, host.input, host.weight, &host.bias, out);
    ExpectedMatrix expected = sum;
    const Matrix by = gate.read(stream);
    Matrix gradient = host.grad_output;
    for (std::size_t i = 0; i < expected.value.values.size() && *epilogue != 0; ++i) {
      const double x = sum.value.values[i];
      const double s = 1 / (1 + std::exp(-x));
      const std::string_view f(epilogue);
      expected.value.values[i] = f == "silu(x)" ? x * s : f == "sigmoid(x)" ? s : x * by.values[i];
      gradient.values[i] *= f == "silu(x)" ? s * (1 + x * (1 - s)) : f == "sigmoid(x)" ? s * (1 - s) : by.values[i];
      const double slope = f == "silu(x)" ? 1.1 : f == "sigmoid(x)" ? 0.25 : std::abs(by.values[i]);
      expected.bound.values[i] =
          slope * sum.bound.values[i] + unit_roundoff(out) * std::abs(expected.value.values[i]) * 2 + 1e-6;
    }
    check_within(output.read(stream), expected, "output");
    if (*epilogue != 0) return check_within(device.grad_bias.read(stream), sum_of(gradient), "grad_bias");
    if (!high_input) {
      check_within(device.grad_input.read(stream), expected_grad_input(config, host.grad_output, host.weight, dtype),
                   "grad_input");
    }
    if (!high_weight) {
      check_within(device.grad_weight.read(stream), expected_grad_weight(config, host.grad_output, host.input, dtype),
                   "grad_weight");
    }
    check_within(device.grad_bias.read(stream), expected_grad_bias(host.grad_output, dtype), "grad_bias");
  }

  // A layer with inputs of `dtype`, an f32 weight and bias, and a gradient of the weight that is added to one of
  // `main`, against float64.
  void check_mixed(const LinearConfig& config, Dtype dtype, Dtype main) {
    HostInputs host = make_inputs(kShape, dtype, Dtype::f32, 1);
    Random random(3);
    host.weight = random.weight(kShape.out_features, kShape.in_features, Dtype::f32);
    const Matrix before = random.normal(kShape.out_features, kShape.in_features, main);
    const LinearCase device(host, dtype, Dtype::f32, *backend, stream);
    const DeviceMatrix weight(host.weight, Dtype::f32, *backend, stream);
    const DeviceMatrix grad_weight(before, main, *backend, stream);
    const Dtype of_input = is_float8(config.grad_input) ? main : dtype;
    const auto grad_input = DeviceMatrix::poisoned(kShape.tokens, kShape.in_features, of_input, *backend, stream);
    const auto grad_bias = DeviceMatrix::poisoned(1, kShape.out_features, Dtype::f32, *backend, stream);
    FunctionLayer functions(
        {.config = config, .shape = kLinear, .dtypes = {.input = dtype, .weight = Dtype::f32, .bias = Dtype::f32}},
        *backend, stream);
    DelayedScaling delayed(*backend);
    start(delayed, config, {device.input, weight, device.grad_output});
    functions.use(delayed);
    FunctionSaved kept(functions.plan, kShape.tokens, *backend, stream);
    LinearForward tensors = device.forward(true);
    tensors.weight = weight;
    functions.forward(tensors, &kept.saved, stream, true);
    const bool any_main = is_float8(config.grad_weight) || main == dtype || main == Dtype::f32;
    functions.backward({.grad_output = device.grad_output,
                        .grad_input = grad_input,
                        .grad_weight = any_main ? grad_weight.view() : Tensor{},
                        .grad_bias = grad_bias,
                        .accumulate = any_main},
                       tensors, kept.saved, stream);
    const Matrix bias = rounded(host.bias, dtype);
    check_within(device.output.read(stream), expected_output(config, host.input, host.weight, &bias, dtype), "output");
    check_within(grad_input.read(stream), expected_grad_input(config, host.grad_output, host.weight, of_input),
                 "grad_input");
    check_within(grad_bias.read(stream), expected_grad_bias(host.grad_output, Dtype::f32), "grad_bias");
    if (!any_main) return;
    ExpectedMatrix sum = expected_grad_weight(config, host.grad_output, host.input, main);
    for (std::size_t i = 0; i < before.values.size(); ++i) {
      sum.value.values[i] += before.values[i];
      sum.bound.values[i] += (unit_roundoff(main) + 0x1p-23) * std::abs(before.values[i]);
    }
    check_within(grad_weight.read(stream), sum, "grad_weight");
  }
};

// A case with the further inputs of an expression.
struct FusedCase {
  FusedCase(const LinearCase& of, const LinearFusion& fusion, Dtype dtype, Backend& backend, Stream& stream)
      : up(Random(8).normal(kShape.tokens, kShape.in_features, dtype), dtype, backend, stream),
        gate(Random(9).normal(kShape.tokens, kShape.out_features, dtype), dtype, backend, stream),
        forward(of.forward(true)) {
    if (!fusion.prologue.inputs().empty()) forward.prologue_inputs[0] = up;
    if (!fusion.epilogue.inputs().empty()) forward.epilogue_inputs[0] = gate;
  }
  DeviceMatrix up, gate;
  LinearForward forward;
};

}  // namespace

BOOST_FIXTURE_TEST_SUITE(linear_functions, Fixture)

// A delayed layer's second step, so that its scales are there: the first one also starts them.
BOOST_AUTO_TEST_CASE(give_the_layers_bits_by_the_same_calls) {
  for (const LinearConfig& config : every_config()) {
    for (const Dtype dtype : kHighPrecisionDtypes) {
      for (const Fused& fused : kFused) {
        BOOST_TEST_CONTEXT(print(config) << ", " << name(dtype) << " [" << fused.prologue << "] [" << fused.epilogue
                                         << "]") {
          CountingBackend counting(*backend, &stream);
          Stream on(counting);
          const LinearFusion fusion = fusion_of(fused);
          LinearCase device(make_inputs(kShape, dtype, bias_dtype_of(config, dtype), 1), dtype,
                            bias_dtype_of(config, dtype), counting, on);
          const FusedCase tensors(device, fusion, dtype, counting, on);
          LinearForward keeping_nothing = tensors.forward;
          keeping_nothing.keep_for_backward = false;
          DelayedScaling delayed(counting);
          Float8Linear layer(counting, kLinear, config, {.fusion = fusion, .delayed = &delayed});
          for (int step = 0; step < 2; ++step) {
            counting.calls.clear();
            layer.weight_changed();
            layer.forward(tensors.forward, on);
            layer.backward(device.backward(true), on);
            layer.forward(keeping_nothing, on);
            layer.recompute(keeping_nothing, on);
            layer.backward(device.backward(true), on);
          }
          const std::vector<std::string> calls = counting.calls;
          const std::vector<std::uint8_t> bytes = device.result_bytes(on);

          FunctionLayer functions({.config = config, .shape = kLinear, .dtypes = {dtype}, .fusion = fusion}, counting,
                                  on);
          functions.use(delayed);
          FunctionSaved kept(functions.plan, kShape.tokens, counting, on);
          device.poison_results(on);
          counting.calls.clear();
          functions.forward(tensors.forward, &kept.saved, on, true);
          functions.backward(device.backward(true), tensors.forward, kept.saved, on);
          functions.forward(tensors.forward, nullptr, on);
          functions.recompute(tensors.forward, kept.saved, on);
          functions.backward(device.backward(true), tensors.forward, kept.saved, on);
          BOOST_TEST_CHECK(counting.calls == calls, boost::test_tools::per_element());
          BOOST_TEST((device.result_bytes(on) == bytes));
          BOOST_TEST(functions.plan.saved_memory(kShape.tokens).bytes_of_parts() == layer.saved_bytes());
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(three_forwards_may_come_before_three_backwards) {
  for (const LinearConfig& config : every_config()) {
    BOOST_TEST_CONTEXT(print(config)) {
      const LinearFusion fusion = fusion_of({"tanh(x)", "silu(x)"});
      DelayedScaling delayed(*backend);
      Float8Linear one_by_one(*backend, kLinear, config, {.fusion = fusion, .delayed = &delayed});
      FunctionLayer functions({.config = config, .shape = kLinear, .fusion = fusion}, *backend, stream);
      std::vector<LinearCase> batches;
      for (unsigned seed = 1; seed <= 3; ++seed) batches.push_back(make(seed, config));
      const DeviceMatrix& weight = batches[0].weight;
      const auto forward_of = [&](std::size_t i) {
        LinearForward tensors = batches[i].forward(true);
        tensors.weight = weight;
        return tensors;
      };
      std::vector<std::vector<std::uint8_t>> expected;
      for (std::size_t i = 0; i < 3; ++i) {
        one_by_one.forward(forward_of(i), stream);
        one_by_one.backward(batches[i].backward(true), stream);
        expected.push_back(batches[i].result_bytes(stream));
      }
      functions.use(delayed);
      functions.cast_weight(weight, stream);
      std::array<std::size_t, 3> order{0, 1, 2};
      do {
        std::vector<FunctionSaved> kept;
        kept.reserve(3);
        for (std::size_t i = 0; i < 3; ++i) {
          batches[i].poison_results(stream);
          kept.emplace_back(functions.plan, kShape.tokens, *backend, stream);
          functions.forward(forward_of(i), &kept[i].saved, stream);
        }
        for (const std::size_t i : order) {
          functions.backward(batches[i].backward(true), forward_of(i), kept[i].saved, stream);
        }
        for (std::size_t i = 0; i < 3; ++i) BOOST_TEST((batches[i].result_bytes(stream) == expected[i]));
      } while (std::ranges::next_permutation(order).found);
    }
  }
}

BOOST_AUTO_TEST_CASE(eight_threads_share_a_plan_and_a_weight) {
  for (const Recipe& recipe : recipes()) {
    if (recipe.name == "delayed") continue;  // its maxima are one tensor, which its callers order
    BOOST_TEST_CONTEXT(recipe.name) {
      FunctionLayer functions({.config = recipe.config, .shape = kLinear, .fusion = fusion_of({"", "silu(x)"})},
                              *backend, stream);
      const LinearCase shared = make(1, recipe.config);
      functions.cast_weight(shared.weight, stream);
      constexpr std::size_t kThreads = 8;
      std::vector<LinearCase> batches;
      for (unsigned i = 0; i < kThreads; ++i) batches.push_back(make(i + 1, recipe.config));
      const auto step = [&](std::size_t i) {
        Stream own(*backend);
        LinearForward tensors = batches[i].forward(true);
        tensors.weight = shared.weight;
        FunctionSaved kept(functions.plan, kShape.tokens, *backend, own);
        functions.forward(tensors, &kept.saved, own);
        functions.backward(batches[i].backward(true), tensors, kept.saved, own);
      };
      std::vector<std::vector<std::uint8_t>> expected;
      for (std::size_t i = 0; i < kThreads; ++i) {
        step(i);
        expected.push_back(batches[i].result_bytes(stream));
        batches[i].poison_results(stream);
      }
      std::vector<std::thread> threads;
      for (std::size_t i = 0; i < kThreads; ++i) threads.emplace_back(step, i);
      for (std::thread& thread : threads) thread.join();
      for (std::size_t i = 0; i < kThreads; ++i) BOOST_TEST((batches[i].result_bytes(stream) == expected[i]));
    }
  }
}

// A forward that kept nothing is computed again while another's backward is still to come.
BOOST_AUTO_TEST_CASE(a_forward_is_computed_again_between_others) {
  for (const LinearConfig& config : every_config()) {
    for (const Fused& fused : {kFused[0], kFused[2], kFused[5], Fused{"tanh(x)", "sigmoid(x)"}}) {
      BOOST_TEST_CONTEXT(print(config) << " [" << fused.prologue << "] [" << fused.epilogue << "]") {
        const LinearFusion fusion = fusion_of(fused);
        DelayedScaling delayed(*backend);
        Float8Linear layer(*backend, kLinear, config, {.fusion = fusion, .delayed = &delayed});
        FunctionLayer functions({.config = config, .shape = kLinear, .fusion = fusion}, *backend, stream);
        LinearCase first = make(1, config);
        LinearCase second = make(2, config);
        LinearForward of_second = second.forward(true);
        of_second.weight = first.weight;
        layer.forward(first.forward(true), stream);
        layer.backward(first.backward(true), stream);
        const std::vector<std::uint8_t> of_first = first.result_bytes(stream);
        layer.forward(of_second, stream);
        layer.backward(second.backward(true), stream);
        const std::vector<std::uint8_t> expected = second.result_bytes(stream);

        functions.use(delayed);
        functions.cast_weight(first.weight, stream);
        first.poison_results(stream);
        second.poison_results(stream);
        FunctionSaved kept_1(functions.plan, kShape.tokens, *backend, stream);
        FunctionSaved kept_2(functions.plan, kShape.tokens, *backend, stream);
        functions.forward(of_second, nullptr, stream);
        functions.forward(first.forward(true), &kept_1.saved, stream);
        functions.recompute(of_second, kept_2.saved, stream);
        functions.backward(first.backward(true), first.forward(true), kept_1.saved, stream);
        functions.backward(second.backward(true), of_second, kept_2.saved, stream);
        BOOST_TEST((first.result_bytes(stream) == of_first));
        BOOST_TEST((second.result_bytes(stream) == expected));
      }
    }
  }
}

// As activation checkpointing does: nothing is kept, and each backward makes what it needs just before, in one memory.
BOOST_AUTO_TEST_CASE(a_recompute_inside_each_backward) {
  for (const LinearConfig& config : every_config()) {
    for (const Fused& fused : {kFused[0], kFused[2], kFused[5]}) {
      BOOST_TEST_CONTEXT(print(config) << " [" << fused.prologue << "] [" << fused.epilogue << "]") {
        const LinearFusion fusion = fusion_of(fused);
        DelayedScaling delayed(*backend);
        Float8Linear one_by_one(*backend, kLinear, config, {.fusion = fusion, .delayed = &delayed});
        std::vector<LinearCase> batches;
        for (unsigned seed = 1; seed <= 3; ++seed) batches.push_back(make(seed, config));
        const auto forward_of = [&](const LinearCase& batch) {
          LinearForward tensors = batch.forward(true);
          tensors.weight = batches[0].weight;
          return tensors;
        };
        std::vector<std::vector<std::uint8_t>> expected;
        for (LinearCase& batch : batches) {
          one_by_one.forward(forward_of(batch), stream);
          one_by_one.backward(batch.backward(true), stream);
          expected.push_back(batch.result_bytes(stream));
          batch.poison_results(stream);
        }
        FunctionLayer functions({.config = config, .shape = kLinear, .fusion = fusion}, *backend, stream);
        functions.use(delayed);
        functions.cast_weight(batches[0].weight, stream);
        FunctionSaved kept(functions.plan, kShape.tokens, *backend, stream);
        for (const LinearCase& batch : batches) functions.forward(forward_of(batch), nullptr, stream);
        for (std::size_t i = batches.size(); i-- > 0;) {
          functions.recompute(forward_of(batches[i]), kept.saved, stream);
          functions.backward(batches[i].backward(true), forward_of(batches[i]), kept.saved, stream);
          BOOST_TEST((batches[i].result_bytes(stream) == expected[i]));
        }
      }
    }
  }
}

// No high-precision weight is there at all: grad_input is that of the layer whose weight gave the codes.
BOOST_AUTO_TEST_CASE(a_frozen_weight_is_codes_and_scale_inv) {
  for (const LinearConfig& config : {tensorwise(), rowwise(), rowwise_folded(), blockwise()}) {
    BOOST_TEST_CONTEXT(print(config)) {
      LinearCase device = make(1, config);
      Float8Linear layer(*backend, kLinear, config);
      layer.forward(device.forward(true), stream);
      layer.backward({.grad_output = device.grad_output, .grad_input = device.grad_input}, stream);
      const std::vector<std::uint8_t> output = device.output.bytes(stream);
      const std::vector<std::uint8_t> grad_input = device.grad_input.bytes(stream);

      FunctionLayer functions({.name = "base", .config = config, .shape = kLinear, .grad_weight = false}, *backend,
                              stream);
      functions.cast_weight(device.weight, stream);
      BOOST_TEST(functions.plan.saved_memory(kShape.tokens).bytes == 0U);
      FunctionSaved kept(functions.plan, kShape.tokens, *backend, stream);
      device.poison_results(stream);
      LinearForward without = device.forward(true);
      without.weight = {};
      functions.forward(without, &kept.saved, stream);
      functions.backward({.grad_output = device.grad_output, .grad_input = device.grad_input}, {}, kept.saved, stream);
      BOOST_TEST((device.output.bytes(stream) == output));
      BOOST_TEST((device.grad_input.bytes(stream) == grad_input));
      BOOST_TEST(refusal([&] {
                   functions.backward({.grad_output = device.grad_output, .grad_weight = device.grad_weight}, without,
                                      kept.saved, stream);
                 }) ==
                 "linear \"base\" grad_weight: is given, but the plan was made without it, so forward kept nothing for "
                 "it: set LinearPlanOptions::grad_weight");
    }
  }
}

// Codes of the weight that the caller transposed once stand in for the cast of OtherCodes::again.
BOOST_AUTO_TEST_CASE(a_weight_that_would_be_cast_again_may_be_given_in_fp8) {
  LinearConfig again = rowwise();
  again.weight = OtherCodes::again;
  LinearCase device = make(1, again);
  Float8Linear layer(*backend, kLinear, again);
  layer.forward(device.forward(true), stream);
  layer.backward({.grad_output = device.grad_output, .grad_input = device.grad_input}, stream);
  const std::vector<std::uint8_t> grad_input = device.grad_input.bytes(stream);

  FunctionLayer both({.config = rowwise(), .shape = kLinear}, *backend, stream);
  both.cast_weight(device.weight, stream);
  FunctionLayer functions({.config = again, .shape = kLinear, .grad_weight = false}, *backend, stream);
  functions.codes = both.codes;
  FunctionSaved kept(functions.plan, kShape.tokens, *backend, stream);
  device.poison_results(stream);
  LinearForward without = device.forward(true);
  without.weight = {};
  functions.forward(without, &kept.saved, stream);
  functions.backward({.grad_output = device.grad_output, .grad_input = device.grad_input}, {}, kept.saved, stream);
  BOOST_TEST((device.grad_input.bytes(stream) == grad_input));
}

// ---- dtypes --------------------------------------------------------------------------------------------------------

// What torch.autocast has: f32 masters with bf16 activations, each gradient in its own dtype.
BOOST_AUTO_TEST_CASE(weights_biases_and_gradients_have_dtypes_of_their_own) {
  for (const Recipe& recipe : recipes()) {
    if (recipe.name == "high_precision") continue;
    for (const Dtype dtype : {Dtype::bf16, Dtype::f16}) {
      for (const Dtype main : {Dtype::f32, Dtype::bf16}) {
        BOOST_TEST_CONTEXT(recipe.name << " " << name(dtype) << " " << name(main))
        check_mixed(recipe.config, dtype, main);
      }
    }
  }
}

// The layer plans anew where its input's dtype changes, and owns what the functions compute.
BOOST_AUTO_TEST_CASE(a_layer_has_the_same_dtypes) {
  for (const LinearConfig& config : {tensorwise(), rowwise_folded(), blockwise()}) {
    Float8Linear layer(*backend, kLinear, config, {.weight_dtype = Dtype::f32, .bias_dtype = Dtype::f32});
    for (const Dtype dtype : {Dtype::bf16, Dtype::f32, Dtype::f16, Dtype::f16}) {
      BOOST_TEST_CONTEXT(print(config) << " " << name(dtype)) {
        HostInputs host = make_inputs(kShape, dtype, Dtype::f32, 1);
        const DeviceMatrix weight(Random(3).weight(kShape.out_features, kShape.in_features, Dtype::f32), Dtype::f32,
                                  *backend, stream);
        LinearCase device(host, dtype, Dtype::f32, *backend, stream);
        LinearForward tensors = device.forward(true);
        tensors.weight = weight;
        layer.forward(tensors, stream);
        layer.backward(device.backward(true), stream);
        const std::vector<std::uint8_t> bytes = device.result_bytes(stream);
        device.poison_results(stream);
        FunctionLayer functions({.config = config, .shape = kLinear, .dtypes = {dtype, Dtype::f32, Dtype::f32}},
                                *backend, stream);
        FunctionSaved kept(functions.plan, kShape.tokens, *backend, stream);
        functions.forward(tensors, &kept.saved, stream, true);
        functions.backward(device.backward(true), tensors, kept.saved, stream);
        BOOST_TEST((device.result_bytes(stream) == bytes));
      }
    }
    const LinearCase narrow = make(1, config);
    BOOST_TEST(refusal([&] { layer.forward(narrow.forward(true), stream); }) ==
               "Float8Linear weight: is bf16, but must be f32, the plan's dtype");
    BOOST_CHECK_THROW(layer.backward({.grad_output = narrow.grad_output}, stream), Error);  // of the f16 forward
  }
}

// Such as f32 logits, whose gradient is f32 too. A GEMM in high precision cannot multiply that with a bf16 operand.
BOOST_AUTO_TEST_CASE(output_and_grad_output_have_a_dtype_of_their_own) {
  for (const Recipe& recipe : recipes()) {
    for (const auto& [dtype, out] :
         {std::pair{Dtype::bf16, Dtype::f32}, {Dtype::f16, Dtype::f32}, {Dtype::f32, Dtype::bf16}}) {
      for (const char* const epilogue : {"", "silu(x)", "sigmoid(x)", "x * gate"}) {
        BOOST_TEST_CONTEXT(recipe.name << " " << name(dtype) << " " << name(out) << " [" << epilogue << "]") {
          if (!is_float8(recipe.config.output) && out != Dtype::f32) continue;
          check_output_dtype(recipe.config, dtype, out, epilogue);
        }
      }
    }
  }
}

// The GEMM writes the sum, and the epilogue is a pass over it. Its bits are those of a layer without an epilogue and of
// that pass; the gradients are those of a layer whose GEMM has the epilogue, unless they are computed from the output,
// which is rounded once more.
BOOST_AUTO_TEST_CASE(a_huge_matmul_has_its_epilogue_in_a_pass) {
  for (const auto& [dtype, out] :
       {std::pair{Dtype::bf16, Dtype::bf16}, {Dtype::f16, Dtype::f16}, {Dtype::bf16, Dtype::f32}}) {
    for (const Fused& fused : kFused) {
      if (*fused.epilogue == 0) continue;
      BOOST_TEST_CONTEXT(name(dtype) << " " << name(out) << " [" << fused.prologue << "] [" << fused.epilogue << "]") {
        CountingBackend counting(*backend, &stream);
        Stream on(counting);
        const Dtype bias = bias_dtype_of(blockwise(), out);
        const LinearFusion fusion = fusion_of(fused);
        const LinearPlanOptions whole{
            .config = blockwise(), .shape = kLinear, .dtypes = {.input = dtype, .output = out}, .fusion = fusion};
        LinearPlanOptions apart = whole;
        apart.fused_products = 0;
        LinearPlanOptions plain = whole;
        plain.fusion.epilogue = {};
        LinearCase device(make_inputs(kShape, dtype, bias, 1), dtype, bias, counting, on);
        const FusedCase tensors(device, fusion, dtype, counting, on);
        const DeviceMatrix gate(Random(9).normal(kShape.tokens, kShape.out_features, out), out, counting, on);
        const DeviceMatrix grad_output(Random(4).normal(kShape.tokens, kShape.out_features, out), out, counting, on);
        const auto output = DeviceMatrix::poisoned(kShape.tokens, kShape.out_features, out, counting, on);
        LinearForward forward = tensors.forward;
        forward.output = output;
        if (!fusion.epilogue.inputs().empty()) forward.epilogue_inputs[0] = gate;
        LinearBackward backward = device.backward(true);
        backward.grad_output = grad_output;
        struct Run {
          std::string last;  // call of the forward
          Matrix output;
          std::vector<std::uint8_t> gradients{};
        };
        const auto run = [&](const LinearPlanOptions& options, bool keep, bool recompute = false) {
          FunctionLayer layer(options, counting, on);
          FunctionSaved kept(layer.plan, kShape.tokens, counting, on);
          device.poison_results(on);
          LinearForward given = forward;
          if (options.fusion.epilogue.empty()) given.epilogue_inputs = {};
          layer.forward(given, keep ? &kept.saved : nullptr, on, true);
          Run made{counting.calls.back(), output.read(on)};
          if (recompute) layer.recompute(given, kept.saved, on);
          if (keep || recompute) {
            layer.backward(backward, given, kept.saved, on);
            made.gradients = device.result_bytes(on);
          }
          return made;
        };

        const DeviceMatrix expected(run(plain, false).output, out, counting, on);
        counting.elementwise({.in = out, .pointwise = fusion.epilogue},
                             {.input = expected, .inputs = forward.epilogue_inputs, .output = expected}, on);
        const std::string pass = counting.calls.back();
        const Run of_gemm = run(whole, true);
        BOOST_TEST(of_gemm.last.starts_with("gemm"));
        const bool of_output = std::string_view(fused.epilogue) == "sigmoid(x)";
        for (const Run& found : {run(apart, true), run(apart, false), run(apart, false, true)}) {
          BOOST_TEST(found.last == pass);
          BOOST_TEST((found.output.values == expected.read(on).values));
          if (!found.gradients.empty() && !of_output) BOOST_TEST((found.gradients == of_gemm.gradients));
        }
      }
    }
  }
}

// The gradient of output.sum(): torch gives one element with strides (0, 0).
BOOST_AUTO_TEST_CASE(one_element_of_grad_output_stands_for_all) {
  for (const LinearConfig& config : every_config()) {
    for (const Fused& fused : {kFused[0], kFused[1], kFused[2], kFused[3]}) {
      BOOST_TEST_CONTEXT(print(config) << " [" << fused.prologue << "] [" << fused.epilogue << "]") {
        const LinearFusion fusion = fusion_of(fused);
        HostInputs host = make_inputs(kShape, Dtype::bf16, Dtype::bf16, 1);
        for (double& value : host.grad_output.values) value = 0.75;
        LinearCase device(host, Dtype::bf16, Dtype::bf16, *backend, stream);
        const FusedCase tensors(device, fusion, Dtype::bf16, *backend, stream);
        const DeviceMatrix one({1, 1, {0.75}}, Dtype::bf16, *backend, stream);
        LinearBackward of_one = device.backward(true);
        of_one.grad_output = one;
        const auto run = [&](const LinearBackward& backward, DelayedScaling& delayed) {
          device.poison_results(stream);
          Float8Linear layer(*backend, kLinear, config, {.fusion = fusion, .delayed = &delayed});
          layer.forward(tensors.forward, stream);
          layer.backward(backward, stream);
          return device.result_bytes(stream);
        };
        DelayedScaling all(*backend);
        DelayedScaling single(*backend);
        const std::vector<std::uint8_t> bytes = run(device.backward(true), all);
        BOOST_TEST((run(of_one, single) == bytes));

        FunctionLayer functions({.config = config, .shape = kLinear, .fusion = fusion}, *backend, stream);
        functions.use(single);
        FunctionSaved kept(functions.plan, kShape.tokens, *backend, stream);
        functions.forward(tensors.forward, &kept.saved, stream, true);
        device.poison_results(stream);
        functions.backward(of_one, tensors.forward, kept.saved, stream);
        LinearCase again(host, Dtype::bf16, Dtype::bf16, *backend, stream);
        functions.backward(again.backward(true), tensors.forward, kept.saved, stream);
        BOOST_TEST((device.grad_input.bytes(stream) == again.grad_input.bytes(stream)));
        BOOST_TEST((device.grad_weight.bytes(stream) == again.grad_weight.bytes(stream)));
        BOOST_TEST((device.grad_bias.bytes(stream) == again.grad_bias.bytes(stream)));
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(every_bias_is_taken_beside_every_input) {
  for (const Recipe& recipe : recipes()) {
    if (recipe.name == "delayed") continue;
    for (const Dtype dtype : kHighPrecisionDtypes) {
      for (const Dtype bias_dtype : kHighPrecisionDtypes) {
        for (const bool silu : {false, true}) {
          BOOST_TEST_CONTEXT(recipe.name << " " << name(dtype) << " " << name(bias_dtype)) {
            const Dtype taken = bias_dtype_of(recipe.config, dtype);
            HostInputs host = make_inputs(kShape, dtype, bias_dtype, 1);
            const LinearCase device(host, dtype, bias_dtype, *backend, stream);
            const LinearPlanOptions options{.config = recipe.config,
                                            .shape = kLinear,
                                            .dtypes = {.input = dtype, .bias = bias_dtype},
                                            .fusion = fusion_of({"", silu ? "silu(x)" : ""})};
            FunctionLayer functions(options, *backend, stream);
            FunctionSaved kept(functions.plan, kShape.tokens, *backend, stream);
            functions.forward(device.forward(true), &kept.saved, stream, true);
            const std::vector<std::uint8_t> bytes = device.output.bytes(stream);
            host.bias = rounded(host.bias, taken);
            if (!silu) {
              check_within(device.output.read(stream),
                           expected_output(recipe.config, host.input, host.weight, &host.bias, dtype), "output");
            }
            // The bits of a layer that is given the rounded bias.
            const LinearCase narrow(host, dtype, taken, *backend, stream);
            FunctionLayer of_taken(
                {.config = recipe.config, .shape = kLinear, .dtypes = {dtype}, .fusion = options.fusion}, *backend,
                stream);
            of_taken.forward(narrow.forward(true), nullptr, stream, true);
            BOOST_TEST((narrow.output.bytes(stream) == bytes));
            functions.recompute(device.forward(true), kept.saved, stream);
          }
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(streams_are_ordered_where_the_caller_asks) {
  CountingBackend counting(*backend, &stream);
  Stream on(counting);
  Stream side(counting);
  const LinearCase device(make_inputs(kShape, Dtype::bf16, Dtype::bf16, 1), Dtype::bf16, Dtype::bf16, counting, on);
  FunctionLayer functions({.config = rowwise(), .shape = kLinear}, counting, on);
  FunctionSaved kept(functions.plan, kShape.tokens, counting, on);
  functions.cast_weight(device.weight, side);
  const PoisonedRegion scratch(functions.plan.memory(kShape.tokens).forward.bytes, counting, on);
  LinearForwardTensors forward = functions.forward_tensors(device.forward(true), &kept.saved, scratch);
  forward.codes_from = &side;
  linear_forward(functions.plan, counting, forward, {.stream = on});
  using Streams = std::vector<const Stream*>;
  BOOST_TEST_CHECK(counting.streams == (Streams{&side, &on, &on}), boost::test_tools::per_element());
  BOOST_TEST_CHECK(counting.waiting == Streams{&on}, boost::test_tools::per_element());
  BOOST_TEST_CHECK(counting.awaited == Streams{&side}, boost::test_tools::per_element());
  counting.streams.clear();
  counting.waiting.clear();
  const PoisonedRegion more(functions.plan.memory(kShape.tokens).backward.bytes, counting, on);
  linear_backward(functions.plan, counting,
                  functions.backward_tensors(device.backward(true), device.forward(true), kept.saved, more),
                  {.stream = on, .side = &side});
  BOOST_TEST_CHECK(counting.streams == (Streams{&on, &on, &side}), boost::test_tools::per_element());
  BOOST_TEST_CHECK(counting.waiting == Streams{&side}, boost::test_tools::per_element());
}

// The device writes them, which a graph can capture, unlike a copy from the host.
BOOST_AUTO_TEST_CASE(constants_are_written_without_a_copy_from_the_host) {
  CountingBackend counting(*backend, &stream);
  Stream on(counting);
  LinearConfig config = tensorwise();
  const auto fix = [](std::optional<Cast>& first, std::optional<Cast>& second, float scale) {
    first->scaling = second->scaling = Scaling::fixed;
    first->scale = second->scale = scale;
  };
  fix(config.output.a, config.grad_weight.b, 448);
  fix(config.grad_input.a, config.grad_weight.a, 0x1.8p-3F);
  const PoisonedRegion memory(kLinearConstantBytes, counting, on);
  const int copies = counting.copies_from_host;
  const LinearScales fixed = linear_constants(linear_plan({.config = config, .shape = kLinear}), counting, memory, on);
  const auto value = [&](const Tensor& tensor) {
    BOOST_REQUIRE(tensor.data != nullptr);
    float read = 0;
    counting.device_api().copy_to_host(&read, tensor.data, sizeof(read), on);
    return read;
  };
  BOOST_TEST(value(fixed.input.scale) == 448);
  BOOST_TEST(value(fixed.grad_output.scale) == 0x1.8p-3F);
  BOOST_TEST(fixed.weight.scale.data == nullptr);
  BOOST_TEST(fixed.one.data == nullptr);
  const LinearPlan folded = linear_plan({.config = rowwise_folded(), .shape = kLinear});
  BOOST_TEST(value(linear_constants(folded, counting, memory, on).one) == 1);
  BOOST_TEST(counting.copies_from_host == copies);
}

// ---- refusals ------------------------------------------------------------------------------------------------------

BOOST_AUTO_TEST_CASE(saved_memory_must_be_that_of_the_forward) {
  CountingBackend counting(*backend, &stream);
  Stream on(counting);
  const LinearCase device(make_inputs(kShape, Dtype::bf16, Dtype::bf16, 1), Dtype::bf16, Dtype::bf16, counting, on);
  FunctionLayer functions({.name = "wq", .config = tensorwise(), .shape = kLinear}, counting, on);
  functions.cast_weight(device.weight, on);
  const LinearForward forward = device.forward(true);
  FunctionSaved kept(functions.plan, kShape.tokens, counting, on);
  const auto backward = [&](const LinearSaved& saved) {
    return refusal([&] { functions.backward(device.backward(true), forward, saved, on); });
  };
  BOOST_TEST(backward(kept.saved) ==
             "linear \"wq\" backward: has no forward() before it that kept what it needs: run forward() first, or "
             "recompute()");
  functions.forward(forward, &kept.saved, on);
  counting.calls.clear();

  LinearSaved of_other = kept.saved;
  of_other.plan = linear_plan({.name = "wk", .config = tensorwise(), .shape = kLinear}).identity;
  BOOST_TEST(backward(of_other) ==
             "linear \"wq\" saved: was written by a forward of another plan: give this backward what its own forward "
             "kept");
  LinearSaved of_fewer = kept.saved;
  of_fewer.tokens = 8;
  BOOST_TEST(backward(of_fewer) ==
             "linear \"wq\" grad_output: is bf16[9, 24] on cpu, but must be [8, 24] = [rows of the last forward's "
             "input, out_features]");
  LinearSaved small = kept.saved;
  small.memory.bytes -= 1;
  const std::string bytes = std::to_string(kept.saved.memory.bytes);
  BOOST_TEST(backward(small) == "linear \"wq\" saved: has " + std::to_string(small.memory.bytes) +
                                    " bytes, but needs " + bytes + ": the plan says how much memory a call needs");
  LinearSaved crooked = kept.saved;
  crooked.memory.data = static_cast<char*>(crooked.memory.data) + 16;
  BOOST_TEST(backward(crooked).find("but must begin at a multiple of 256 bytes") != std::string::npos);
  LinearSaved gone = kept.saved;
  gone.memory.data = nullptr;
  BOOST_TEST(backward(gone) == "linear \"wq\" saved: is missing; it must have " + bytes +
                                   " bytes: the plan says how much memory a call "
                                   "needs");
  LinearSaved none;
  BOOST_TEST(refusal([&] { functions.forward(forward, &none, on); }).starts_with("linear \"wq\" saved: is missing"));
  BOOST_TEST(counting.calls.empty());  // nothing was launched

  // A forward that fails leaves nothing to go back to.
  counting.gemm_fails = true;
  BOOST_CHECK_THROW(functions.forward(forward, &kept.saved, on), Error);
  counting.gemm_fails = false;
  BOOST_TEST(backward(kept.saved).find("has no forward() before it") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(memory_must_be_apart) {
  const LinearCase device = make(1, tensorwise());
  FunctionLayer functions({.name = "wq", .config = tensorwise(), .shape = kLinear}, *backend, stream);
  functions.cast_weight(device.weight, stream);
  const LinearMemory memory = functions.plan.memory(kShape.tokens);
  // Large enough to hold any of the tensors, so that one of them within it overlaps nothing else.
  constexpr std::size_t kTensor = sizeof(float) * 64 * 64;
  const PoisonedRegion room(std::max(memory.saved.bytes, kTensor), *backend, stream);
  LinearSaved kept{.memory = room};
  const PoisonedRegion scratch(kTensor + memory.forward.bytes + memory.backward.bytes + memory.saved.bytes, *backend,
                               stream);
  const LinearPlan& plan = functions.plan;
  LinearForwardTensors forward = functions.forward_tensors(device.forward(true), &kept, scratch);
  LinearSaved within{.memory = scratch};
  forward.saved = &within;
  BOOST_TEST(refusal([&] { linear_forward(plan, *backend, forward, {.stream = stream}); }) ==
             "linear \"wq\" saved: overlaps the scratch: give it separate memory");
  forward.saved = &kept;
  forward.input.data = MemoryRegion(scratch).data;
  BOOST_TEST(refusal([&] { linear_forward(plan, *backend, forward, {.stream = stream}); }) ==
             "linear \"wq\" scratch: overlaps input: give it separate memory");
  forward.input = device.input;
  linear_forward(plan, *backend, forward, {.stream = stream});
  LinearBackwardTensors backward =
      functions.backward_tensors(device.backward(true), device.forward(true), kept, scratch);
  backward.grad_weight.data = kept.memory.data;
  BOOST_TEST(refusal([&] { linear_backward(plan, *backend, backward, {.stream = stream}); }) ==
             "linear \"wq\" saved: overlaps grad_weight: give it separate memory");
  backward.grad_weight = device.grad_weight;
  backward.scratch.bytes = 0;
  BOOST_TEST(refusal([&] {
               linear_backward(plan, *backend, backward, {.stream = stream});
             }).starts_with("linear \"wq\" scratch: has 0 bytes, but needs "));
}

BOOST_AUTO_TEST_CASE(codes_come_with_their_scale_inv) {
  const LinearCase device = make(1, rowwise());
  FunctionLayer functions({.name = "wq", .config = rowwise(), .shape = kLinear}, *backend, stream);
  functions.cast_weight(device.weight, stream);
  const Float8View codes = functions.codes;
  FunctionSaved kept(functions.plan, kShape.tokens, *backend, stream);
  const auto forward_with = [&](test::FunctionRef<void(Float8View&)> change) {
    functions.codes = codes;
    change(functions.codes);
    return refusal([&] { functions.forward(device.forward(true), &kept.saved, stream); });
  };
  BOOST_TEST(
      forward_with([](Float8View& view) { view = {}; }) ==
      "linear \"wq\" codes.codes: is missing; it must be e4m3fn[24, 33]: cast_weight() makes codes of the weight");
  BOOST_TEST(
      forward_with([](Float8View& view) { view.scale_inv = {}; }) ==
      "linear \"wq\" codes.scale_inv: is missing; codes come with their scale_inv, f32[1, 24], one for each row");
  BOOST_TEST(
      forward_with([](Float8View& view) { view.scale_inv.cols = 1; }) ==
      "linear \"wq\" codes.scale_inv: is f32[1, 1] on cpu, row stride 24, but must be [1, 24] = one factor for each "
      "row of the weight");
  BOOST_TEST(forward_with([](Float8View& view) { view.codes.dtype = Dtype::e5m2; }) ==
             "linear \"wq\" codes.codes: is e5m2, but must be e4m3fn, the weight's format");
  functions.codes = codes;
  functions.forward(device.forward(true), &kept.saved, stream);
  functions.codes.transposed = {};
  BOOST_TEST(refusal([&] { functions.backward(device.backward(true), device.forward(true), kept.saved, stream); }) ==
             "linear \"wq\" codes.transposed: is missing; it must be e4m3fn[33, 24]: cast_weight() makes codes of the "
             "weight");
}

BOOST_AUTO_TEST_CASE(what_is_read_again_must_be_there) {
  LinearConfig again = rowwise();
  again.input = again.weight = OtherCodes::again;
  const LinearCase device = make(1, again);
  FunctionLayer functions({.name = "wq", .config = again, .shape = kLinear, .fusion = fusion_of({"", "sigmoid(x)"})},
                          *backend, stream);
  functions.cast_weight(device.weight, stream);
  FunctionSaved kept(functions.plan, kShape.tokens, *backend, stream);
  const LinearForward forward = device.forward(true);
  functions.forward(forward, &kept.saved, stream);
  const auto backward_with = [&](test::FunctionRef<void(LinearForward&)> change) {
    LinearForward of = forward;
    change(of);
    return refusal([&] { functions.backward(device.backward(true), of, kept.saved, stream); });
  };
  BOOST_TEST(backward_with([](LinearForward& of) { of.weight = {}; }) ==
             "linear \"wq\" weight: is missing; it must be bf16: this config reads it again for grad_input");
  BOOST_TEST(backward_with([](LinearForward& of) { of.input = {}; }) ==
             "linear \"wq\" input: is missing; it must be bf16: this config reads it again for grad_weight");
  BOOST_TEST(backward_with([](LinearForward& of) { of.output = {}; }) ==
             "linear \"wq\" output: is missing; it must be bf16: the epilogue's derivative is computed from it");
}

BOOST_AUTO_TEST_CASE(scales_that_the_config_needs_must_be_there) {
  const LinearCase device = make(1, tensorwise());
  FunctionLayer functions({.name = "wq", .config = delayed(), .shape = kLinear}, *backend, stream);
  BOOST_TEST(refusal([&] { functions.cast_weight(device.weight, stream); }) ==
             "linear \"wq\" scales.weight.scale: is f32[0, 0] on cpu, but must be f32[1, 1] on cpu: a delayed scale is "
             "the caller's");
  LinearConfig config = tensorwise();
  for (std::optional<Cast>* cast : {&config.output.a, &config.grad_weight.b}) {
    (*cast)->scaling = Scaling::fixed;
    (*cast)->scale = 8;
  }
  FunctionLayer fixed({.name = "wq", .config = config, .shape = kLinear}, *backend, stream);
  fixed.cast_weight(device.weight, stream);
  fixed.scales = {};
  BOOST_TEST(refusal([&] { fixed.forward(device.forward(true), nullptr, stream); }) ==
             "linear \"wq\" scales.input.scale: is f32[0, 0] on cpu, but must be f32[1, 1] on cpu: linear_constants() "
             "makes fixed scales");
  FunctionLayer folded({.name = "wq", .config = rowwise_folded(), .shape = kLinear}, *backend, stream);
  folded.cast_weight(device.weight, stream);
  FunctionSaved kept(folded.plan, kShape.tokens, *backend, stream);
  folded.forward(device.forward(true), &kept.saved, stream);
  folded.scales = {};
  BOOST_TEST(refusal([&] { folded.backward(device.backward(true), device.forward(true), kept.saved, stream); }) ==
             "linear \"wq\" scales.one: is missing; the config folds scale_inv: linear_constants() makes it");
}

BOOST_AUTO_TEST_CASE(a_plan_takes_tensors_of_its_own_dtypes_sizes_and_device) {
  const LinearCase device = make(1, tensorwise());
  FunctionLayer functions({.name = "wq", .config = tensorwise(), .shape = kLinear, .dtypes = {Dtype::f16}}, *backend,
                          stream);
  BOOST_TEST(refusal([&] { functions.forward(device.forward(true), nullptr, stream); }) ==
             "linear \"wq\" input: is bf16, but must be f16, the plan's dtype");
  FunctionLayer wide({.name = "wq", .config = tensorwise(), .shape = kLinear, .dtypes = {.bias = Dtype::f32}}, *backend,
                     stream);
  BOOST_TEST(refusal([&] { wide.forward(device.forward(true), nullptr, stream); }) ==
             "linear \"wq\" bias: is bf16, but must be f32, the plan's dtype");
  FunctionLayer right({.name = "wq", .config = tensorwise(), .shape = kLinear}, *backend, stream);
  right.cast_weight(device.weight, stream);
  FunctionSaved kept(right.plan, kShape.tokens, *backend, stream);
  const auto forward_with = [&](test::FunctionRef<void(LinearForward&)> change) {
    LinearForward tensors = device.forward(true);
    change(tensors);
    return refusal([&] { right.forward(tensors, &kept.saved, stream); });
  };
  BOOST_TEST(forward_with([](LinearForward& t) { t.input.cols -= 1; }) ==
             "linear \"wq\" input: is bf16[9, 32] on cpu, row stride 33, but must have 33 columns = in_features");
  BOOST_TEST(forward_with([](LinearForward& t) { t.output.rows -= 1; }) ==
             "linear \"wq\" output: is bf16[8, 24] on cpu, but must be [9, 24] = [rows of input, out_features]");
  BOOST_TEST(forward_with([](LinearForward& t) {
               t.input.device = {DeviceType::cuda, 0};
             }) == "linear \"wq\" input: is bf16[9, 33] on cuda:0; this backend works on cpu: copy it there");
  right.codes.codes.device = {DeviceType::cuda, 0};
  BOOST_TEST(forward_with([](LinearForward&) {}) ==
             "linear \"wq\" codes.codes: is e4m3fn[24, 33] on cuda:0; this backend works on cpu: copy it there");
  const std::unique_ptr<Backend> other = make_cpu_backend(1);
  Stream elsewhere(*other);
  BOOST_TEST(refusal([&] {
               linear_forward(functions.plan, *backend, functions.forward_tensors(device.forward(true), nullptr, {}),
                              {.stream = elsewhere});
             }) == "linear \"wq\" stream: belongs to another backend than the layer: make it from the layer's backend");
  BOOST_TEST(refusal([&] {
               linear_recompute(functions.plan, *backend, functions.forward_tensors(device.forward(true), nullptr, {}),
                                {.stream = stream});
             }) == "linear \"wq\" saved: is missing; it is what recompute makes");
}

// ---- an input that several layers share ----------------------------------------------------------------------

namespace {

// q, k and v: three layers over one input, by functions.
struct Shared {
  Shared(const LinearConfig& config, Backend& on, Stream& stream)
      : q({.name = "q", .config = config, .shape = kLinear}, on, stream),
        k({.name = "k", .config = config, .shape = kLinear, .given_input = true}, on, stream),
        v({.name = "v", .config = config, .shape = kLinear, .given_input = true}, on, stream) {}
  std::array<FunctionLayer*, 3> all() { return {&q, &k, &v}; }
  FunctionLayer q, k, v;
};

// The three layers' tensors, with one input.
std::vector<LinearCase> cases_of_one_input(const LinearConfig& config, Backend& on, Stream& stream) {
  std::vector<LinearCase> cases;
  const HostInputs first = make_inputs(kShape, Dtype::bf16, bias_dtype_of(config, Dtype::bf16), 1);
  for (unsigned seed = 1; seed <= 3; ++seed) {
    HostInputs host = make_inputs(kShape, Dtype::bf16, bias_dtype_of(config, Dtype::bf16), seed);
    host.input = first.input;
    cases.emplace_back(host, Dtype::bf16, bias_dtype_of(config, Dtype::bf16), on, stream);
  }
  return cases;
}

auto casts_in(const std::vector<std::string>& calls) {
  return std::ranges::count_if(calls, [](const std::string& call) { return call.starts_with("cast "); });
}

}  // namespace

// k and v take the codes that q's forward wrote: one cast of the input instead of three, the same bits, and nothing of
// it kept but q's.
BOOST_AUTO_TEST_CASE(layers_share_one_cast_of_their_input) {
  for (const LinearConfig& config : every_config()) {
    BOOST_TEST_CONTEXT(print(config)) {
      CountingBackend counting(*backend, &stream);
      Stream on(counting);
      std::vector<LinearCase> expected = cases_of_one_input(config, counting, on);
      std::vector<LinearCase> found = cases_of_one_input(config, counting, on);
      std::array<DelayedScaling, 3> delayed{DelayedScaling(counting), DelayedScaling(counting),
                                            DelayedScaling(counting)};
      for (std::size_t i = 0; i < 3; ++i) {
        Float8Linear alone(counting, kLinear, config, {.delayed = &delayed[i]});
        alone.forward(expected[i].forward(true), on);
        alone.backward(expected[i].backward(true), on);
      }

      Shared layers(config, counting, on);
      std::vector<FunctionSaved> kept;
      kept.reserve(3);
      for (std::size_t i = 0; i < 3; ++i) {
        FunctionLayer& layer = *layers.all()[i];
        layer.use(delayed[i]);
        layer.cast_weight(expected[i].weight, on);
        kept.emplace_back(layer.plan, kShape.tokens, counting, on);
      }
      const LinearForwardScratch told = layers.q.plan.forward_scratch(kShape.tokens);
      const PoisonedRegion scratch(told.bytes, counting, on);
      const Float8View input =
          linear_input_codes(layers.q.plan, kShape.tokens, kept[0].saved.memory, scratch, counting.device());
      BOOST_TEST(layers.k.plan.saved_memory(kShape.tokens).bytes == 0U);
      counting.calls.clear();
      for (std::size_t i = 0; i < 3; ++i) {
        LinearForwardTensors tensors = layers.all()[i]->forward_tensors(
            found[i].forward(true), &kept[i].saved, i == 0 ? MemoryRegion(scratch) : MemoryRegion{});
        if (i != 0) tensors.given_input = input;
        linear_forward(layers.all()[i]->plan, counting, tensors, {.stream = on});
      }
      BOOST_TEST(casts_in(counting.calls) == (layers.q.plan.input_of(LinearPass::training).any ? 1 : 0));
      for (std::size_t i = 0; i < 3; ++i) {
        const FunctionLayer& layer = *layers.all()[i];
        const PoisonedRegion use(layer.plan.backward_scratch(kShape.tokens).bytes, counting, on);
        LinearBackwardTensors tensors =
            layer.backward_tensors(found[i].backward(true), found[i].forward(true), kept[i].saved, use);
        if (i != 0) tensors.given_input = input;
        linear_backward(layer.plan, counting, tensors, {.stream = on});
        BOOST_TEST((found[i].result_bytes(on) == expected[i].result_bytes(on)));
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(a_shared_input_is_shared_by_forwards_that_keep_nothing) {
  for (const Recipe& recipe : recipes()) {
    if (recipe.name == "delayed") continue;
    BOOST_TEST_CONTEXT(recipe.name) {
      const std::vector<LinearCase> cases = cases_of_one_input(recipe.config, *backend, stream);
      Shared layers(recipe.config, *backend, stream);
      const LinearPass pass = LinearPass::inference;
      const PoisonedRegion scratch(layers.q.plan.forward_scratch(kShape.tokens, pass).bytes, *backend, stream);
      layers.q.cast_weight(cases[0].weight, stream);
      layers.k.cast_weight(cases[1].weight, stream);
      linear_forward(layers.q.plan, *backend, layers.q.forward_tensors(cases[0].forward(true), nullptr, scratch),
                     {.stream = stream});
      LinearForwardTensors tensors = layers.k.forward_tensors(cases[1].forward(true), nullptr, {});
      tensors.given_input = linear_input_codes(layers.q.plan, kShape.tokens, {}, scratch, backend->device());
      linear_forward(layers.k.plan, *backend, tensors, {.stream = stream});
      const std::vector<std::uint8_t> found = cases[1].output.bytes(stream);
      Float8Linear alone(*backend, kLinear, recipe.config);
      alone.forward(cases[1].forward(true), stream);
      BOOST_TEST((cases[1].output.bytes(stream) == found));
    }
  }
}

// As after a gather over ranks: a call finds in its scratch and saved memory what its cast would write.
BOOST_AUTO_TEST_CASE(an_operand_that_is_cast_already_is_not_cast_again) {
  for (const LinearConfig& config : {tensorwise(), rowwise(), rowwise_folded(), blockwise(), high_precision()}) {
    BOOST_TEST_CONTEXT(print(config)) {
      const LinearCase device = make(1, config);
      FunctionLayer layer({.config = config, .shape = kLinear}, *backend, stream);
      layer.cast_weight(device.weight, stream);
      FunctionSaved kept(layer.plan, kShape.tokens, *backend, stream);
      const PoisonedRegion scratch(layer.plan.forward_scratch(kShape.tokens).bytes, *backend, stream);
      LinearForwardTensors forward = layer.forward_tensors(device.forward(true), &kept.saved, scratch);
      const auto run = [&] { linear_forward(layer.plan, *backend, forward, {.stream = stream}); };
      run();
      const std::vector<std::uint8_t> output = device.output.bytes(stream);
      forward.input.data = nullptr;
      forward.input_is_cast = true;
      if (!is_float8(config.output)) {
        BOOST_TEST(refusal(run) ==
                   "linear \"linear\" input_is_cast: is set, but the layer reads the values too, or is given codes: "
                   "for a prologue, a GEMM in high precision, a cast in backward or given_input");
        continue;
      }
      const auto again = DeviceMatrix::poisoned(kShape.tokens, kShape.out_features, Dtype::bf16, *backend, stream);
      forward.output = again;
      run();
      BOOST_TEST((again.bytes(stream) == output));

      LinearBackward wanted = device.backward(true);
      wanted.grad_bias = {};
      const LinearGradients wants{.bias = false};
      const PoisonedRegion use(layer.plan.backward_scratch(kShape.tokens, wants).bytes, *backend, stream);
      LinearBackwardTensors backward = layer.backward_tensors(wanted, device.forward(true), kept.saved, use);
      const auto run_backward = [&] { linear_backward(layer.plan, *backend, backward, {.stream = stream}); };
      run_backward();
      const std::vector<std::uint8_t> grad_input = device.grad_input.bytes(stream);
      const std::vector<std::uint8_t> grad_weight = device.grad_weight.bytes(stream);
      backward.grad_output_is_cast = true;
      backward.grad_output.data = nullptr;
      const auto second_input =
          DeviceMatrix::poisoned(kShape.tokens, kShape.in_features, Dtype::bf16, *backend, stream);
      const auto second_weight =
          DeviceMatrix::poisoned(kShape.out_features, kShape.in_features, Dtype::bf16, *backend, stream);
      backward.grad_input = second_input;
      backward.grad_weight = second_weight;
      const std::string why =
          "linear \"linear\" grad_output_is_cast: is set, but this backward reads the values too: for an epilogue, a "
          "GEMM in high precision, folded scale_inv or grad_bias";
      if (layer.plan.folds()) {
        BOOST_TEST(refusal(run_backward) == why);
        continue;
      }
      run_backward();
      BOOST_TEST((second_input.bytes(stream) == grad_input));
      BOOST_TEST((second_weight.bytes(stream) == grad_weight));
      backward.grad_bias = device.grad_bias;
      BOOST_TEST(refusal(run_backward) == why);
    }
  }
}

// The results have the same bits; for other casts an amax is refused.
BOOST_AUTO_TEST_CASE(the_amax_of_grad_output_may_be_given) {
  int taken = 0;
  for (const Recipe& recipe : recipes()) {
    const LinearConfig& config = recipe.config;
    for (const char* const epilogue : {"", "silu(x)"}) {
      if (recipe.name == "delayed") continue;
      BOOST_TEST_CONTEXT(recipe.name << " [" << epilogue << "]") {
        const LinearCase device = make(1, config);
        LinearPlanOptions options{.config = config, .shape = kLinear};
        if (*epilogue != '\0') options.fusion.epilogue = parse_pointwise(epilogue);
        FunctionLayer layer(options, *backend, stream);
        layer.cast_weight(device.weight, stream);
        FunctionSaved kept(layer.plan, kShape.tokens, *backend, stream);
        layer.forward(device.forward(true), &kept.saved, stream);
        const PoisonedRegion use(layer.plan.backward_scratch(kShape.tokens).bytes, *backend, stream);
        LinearBackwardTensors tensors =
            layer.backward_tensors(device.backward(true), device.forward(true), kept.saved, use);
        const auto run = [&] { linear_backward(layer.plan, *backend, tensors, {.stream = stream}); };
        run();
        const auto expected = device.result_bytes(stream);
        auto amax = DeviceMatrix::poisoned(1, 1, Dtype::f32, *backend, stream);
        backend->amax({.in = tensors.grad_output.dtype}, {.input = tensors.grad_output, .amax = amax}, stream);
        tensors.grad_output_amax = amax;
        if (!layer.plan.takes_grad_output_amax({})) {
          BOOST_TEST(
              refusal(run) ==
              "linear \"linear\" grad_output_amax: is given, but only a cast of grad_output itself takes it, with "
              "one dynamic scale: ask the plan's takes_grad_output_amax()");
          continue;
        }
        ++taken;
        for (const Tensor& result : {tensors.grad_input, tensors.grad_weight, tensors.grad_bias}) {
          backend->device_api().fill_zero(result.data, byte_span(result, "a result"), stream);
        }
        run();
        BOOST_TEST((device.result_bytes(stream) == expected));
        // It is what is read.
        float* const value = static_cast<float*>(amax.view().data);
        *value *= 3;
        run();
        BOOST_TEST((device.result_bytes(stream) != expected));
        tensors.grad_output_amax = vector(value, Dtype::f32, 2, backend->device());
        BOOST_TEST(refusal(run) ==
                   "linear \"linear\" grad_output_amax: is f32[1, 2] on cpu, but must be [1, 1] = one for all of "
                   "grad_output");
      }
    }
  }
  BOOST_TEST(taken > 0);
}

// The sum is that of float32, rounded once.
BOOST_AUTO_TEST_CASE(the_gradient_by_other_layers_is_added) {
  for (const Recipe& recipe : recipes()) {
    if (recipe.name == "delayed") continue;
    BOOST_TEST_CONTEXT(recipe.name) {
      const LinearCase device = make(1, recipe.config);
      FunctionLayer layer({.config = recipe.config, .shape = kLinear}, *backend, stream);
      layer.cast_weight(device.weight, stream);
      FunctionSaved kept(layer.plan, kShape.tokens, *backend, stream);
      layer.forward(device.forward(true), &kept.saved, stream);
      const PoisonedRegion use(layer.plan.backward_scratch(kShape.tokens).bytes, *backend, stream);
      LinearBackwardTensors tensors =
          layer.backward_tensors(device.backward(true), device.forward(true), kept.saved, use);
      const auto run = [&] { linear_backward(layer.plan, *backend, tensors, {.stream = stream}); };
      const Tensor sum = tensors.grad_input;
      const auto own = DeviceMatrix::poisoned(sum.rows, sum.cols, Dtype::f32, *backend, stream);
      tensors.grad_input = own;
      run();
      const Matrix others = Random(5).normal(sum.rows, sum.cols, sum.dtype);
      Matrix expected = own.read(stream);
      for (std::size_t i = 0; i < expected.values.size(); ++i) {
        expected.values[i] = static_cast<float>(expected.values[i]) + static_cast<float>(others.values[i]);
      }
      const DeviceMatrix rounded(expected, sum.dtype, *backend, stream);
      const DeviceMatrix given(others, sum.dtype, *backend, stream);
      const DeviceMatrix same(others, sum.dtype, *backend, stream);
      const auto apart = DeviceMatrix::poisoned(sum.rows, sum.cols, sum.dtype, *backend, stream);
      for (const auto& [to, from] : {std::pair{&apart, &given}, {&same, &same}}) {
        tensors.grad_input = *to;
        tensors.grad_input_of_others = *from;
        run();
        BOOST_TEST((to->bytes(stream) == rounded.bytes(stream)));
      }
      const std::string of = "linear \"linear\" grad_input_of_others: ";
      tensors.grad_input_of_others = own;
      BOOST_TEST(refusal(run) == of + "is f32, but must be bf16, as grad_input is");
      tensors.grad_input_of_others = same;
      ++tensors.grad_input_of_others.cols;
      check_contains(refusal(run), {of + "is bf16[9, 34]", "but must be [9, 33]"});
      tensors.grad_input_of_others = tensors.grad_weight;
      tensors.grad_input_of_others.rows = tensors.saved->tokens;
      BOOST_TEST(refusal(run) == "linear \"linear\" grad_weight: overlaps " + of + "give it separate memory");
      tensors.grad_input_of_others = same;
      tensors.grad_input = {};
      BOOST_TEST(refusal(run) == of + "is given, but grad_input, its sum, is not: give it memory");
    }
  }
}

BOOST_AUTO_TEST_CASE(a_given_input_must_fit) {
  const std::vector<LinearCase> cases = cases_of_one_input(rowwise(), *backend, stream);
  Shared layers(rowwise(), *backend, stream);
  layers.q.cast_weight(cases[0].weight, stream);
  layers.k.cast_weight(cases[1].weight, stream);
  FunctionSaved of_q(layers.q.plan, kShape.tokens, *backend, stream);
  FunctionSaved of_k(layers.k.plan, kShape.tokens, *backend, stream);
  const PoisonedRegion scratch(layers.q.plan.forward_scratch(kShape.tokens).bytes, *backend, stream);
  const Float8View input =
      linear_input_codes(layers.q.plan, kShape.tokens, of_q.saved.memory, scratch, backend->device());
  const auto forward_with = [&](const FunctionLayer& layer, const Float8View& given) {
    return refusal([&] {
      LinearForwardTensors tensors = layer.forward_tensors(cases[1].forward(true), &of_k.saved, scratch);
      tensors.given_input = given;
      linear_forward(layer.plan, *backend, tensors, {.stream = stream});
    });
  };
  BOOST_TEST(forward_with(layers.k, {}) ==
             "linear \"k\" given_input.codes: is missing, but the plan was made with given_input: linear_input_codes() "
             "has those of the layer that casts it");
  BOOST_TEST(forward_with(layers.q, input) ==
             "linear \"q\" given_input: is given, but the plan casts its input itself: set "
             "LinearPlanOptions::given_input");
  Float8View other = input;
  other.codes.dtype = Dtype::e5m2;
  BOOST_TEST(forward_with(layers.k, other) ==
             "linear \"k\" given_input.codes: is e5m2, but must be e4m3fn, the input's format");
  other = input;
  other.scale_inv.cols = other.scale_inv.row_stride = 1;
  BOOST_TEST(forward_with(layers.k, other) ==
             "linear \"k\" given_input.scale_inv: is f32[1, 1] on cpu, but must be [1, 9] = a factor for each scale of "
             "the input");
  of_k.saved.plan = layers.k.plan.identity;
  of_k.saved.tokens = kShape.tokens;
  of_k.saved.kept = true;
  BOOST_TEST(refusal([&] { layers.k.backward(cases[1].backward(true), cases[1].forward(true), of_k.saved, stream); }) ==
             "linear \"k\" given_input.transposed: is missing, but the plan was made with given_input: "
             "linear_input_codes() has those of the layer that casts it");
  BOOST_TEST(refusal([&] {
               linear_plan({.name = "k",
                            .config = rowwise(),
                            .shape = kLinear,
                            .fusion = fusion_of({"tanh(x)", ""}),
                            .given_input = true});
             }) ==
             "linear \"k\" given_input: is set, but there is a prologue: it belongs to the layer that casts the input");
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE_END()
