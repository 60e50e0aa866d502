// Float8Linear on the CPU reference: results against float64, calls and memory counted on a recording backend,
// workspaces, accumulation, side streams, and every refusal.
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "ingot/nn/modules/delayed_scaling.h"
#include "ingot/nn/modules/float8_linear.h"
#include "ingot/nn/modules/gated_mlp.h"
#include "ingot/nn/modules/norm_linear.h"
#include "ingot/nn/observe/monitor.h"
#include "ingot/runtime/context/cpu_backend.h"
#include "ingot/runtime/util/error.h"
#include "nn/counting_backend.h"
#include "nn/linear_case.h"
#include "support/expect_error.h"
#include "support/function_ref.h"

BOOST_AUTO_TEST_SUITE(test_float8_linear)

using namespace ingot;
using namespace ingot::test;

namespace {

struct Fixture {
  std::unique_ptr<Backend> backend = make_cpu_backend(2);
  Stream stream{*backend};
};

void check_case(const CaseShape& shape, const LinearConfig& config, Dtype dtype, bool bias, std::int64_t padding,
                Backend& backend, Stream& stream) {
  const std::string what = print(config) + ", " + std::string(name(dtype)) + ", " + test::print(shape) +
                           (bias ? ", bias" : "") + (padding != 0 ? ", padded rows" : "");
  BOOST_TEST_CONTEXT(what) {
    const Dtype bias_dtype = bias_dtype_of(config, dtype);
    const HostInputs host = make_inputs(shape, dtype, bias_dtype, 1);
    const LinearCase device(host, dtype, bias_dtype, backend, stream, padding);
    DelayedScaling scales(backend);
    Float8Linear linear(backend, {shape.in_features, shape.out_features, bias}, config, {.delayed = &scales});
    linear.forward(device.forward(bias), stream);
    linear.backward(device.backward(bias), stream);

    check_within(device.output.read(stream),
                 expected_output(config, host.input, host.weight, bias ? &host.bias : nullptr, dtype), "output");
    check_within(device.grad_input.read(stream), expected_grad_input(config, host.grad_output, host.weight, dtype),
                 "grad_input");
    check_within(device.grad_weight.read(stream), expected_grad_weight(config, host.grad_output, host.input, dtype),
                 "grad_weight");
    if (bias) check_within(device.grad_bias.read(stream), expected_grad_bias(host.grad_output, dtype), "grad_bias");
  }
}

// A layer of 16 to 24 features with 8 tokens, on a backend that records its calls.
struct CountedLayer {
  CountedLayer(Backend& backend, const LinearConfig& config, Dtype dtype = Dtype::bf16)
      : inner(backend),
        counting(backend, &inner),
        on(counting),
        device(make_inputs({8, 16, 24}, dtype, dtype, 1), dtype, dtype, counting, on),
        linear(counting, {16, 24, true}, config) {}

  Stream inner;
  CountingBackend counting;
  Stream on;
  LinearCase device;
  Float8Linear linear;
};

// Returns the whole message of the error that `act` throws.
std::string refusal(test::FunctionRef<void()> act) {
  try {
    act();
  } catch (const Error& error) {
    BOOST_TEST((error.code() == ErrorCode::invalid_argument));
    return error.what();
  }
  return "no error";
}

}  // namespace

BOOST_FIXTURE_TEST_SUITE(float8_linear, Fixture)

BOOST_AUTO_TEST_CASE(agrees_with_float64_over_independent_codes) {
  for (const LinearConfig& config : every_config()) {
    for (const Dtype dtype : kHighPrecisionDtypes) {
      for (const CaseShape& shape : kCaseShapes) {
        for (const bool bias : {false, true}) check_case(shape, config, dtype, bias, 0, *backend, stream);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(takes_rows_that_are_not_contiguous) {
  for (const LinearConfig& config : {tensorwise(), high_precision()}) {
    for (const Dtype dtype : kHighPrecisionDtypes) check_case({9, 24, 11}, config, dtype, true, 5, *backend, stream);
  }
}

BOOST_AUTO_TEST_CASE(sqnr_passes_the_bars_of_torchao) {
  for (const Recipe& recipe : recipes()) {
    for (const Dtype dtype : kHighPrecisionDtypes) check_torchao_bars(recipe, dtype, *backend, stream);
  }
}

// [batch, sequence, features] is [batch * sequence, features]: any number of tokens has the quality of one tile's.
BOOST_AUTO_TEST_CASE(quality_of_any_number_of_tokens) {
  constexpr std::int64_t kIn = 16, kOut = 32;
  for (const Recipe& recipe : recipes()) {
    for (const Dtype dtype : kHighPrecisionDtypes) {
      for (const bool bias : {true, false}) {
        for (const std::int64_t tokens : {16, 2 * 16, 3 * 2 * 16, 13, 3 * 7, 2 * 3 * 5}) {
          BOOST_TEST_CONTEXT(recipe.name << " " << name(dtype) << " bias=" << bias << " tokens=" << tokens) {
            const Dtype bias_dtype = bias_dtype_of(recipe.config, dtype);
            const HostInputs host = make_inputs({tokens, kIn, kOut}, dtype, bias_dtype, 7);
            const LinearCase device(host, dtype, bias_dtype, *backend, stream);
            DelayedScaling scales(*backend);
            Float8Linear linear(*backend, {kIn, kOut, bias}, recipe.config, {.delayed = &scales});
            linear.forward(device.forward(bias), stream);
            linear.backward(device.backward(bias), stream);
            const LinearConfig plain = high_precision();
            const Matrix* const added = bias ? &host.bias : nullptr;
            BOOST_TEST(sqnr(expected_output(plain, host.input, host.weight, added, dtype).value,
                            device.output.read(stream)) >= 18.0);
            BOOST_TEST(sqnr(expected_grad_input(plain, host.grad_output, host.weight, dtype).value,
                            device.grad_input.read(stream)) >= 17.0);
            BOOST_TEST(sqnr(expected_grad_weight(plain, host.grad_output, host.input, dtype).value,
                            device.grad_weight.read(stream)) >= 17.0);
          }
        }
      }
    }
  }
}

// The weight's cast and grad_weight's GEMM run on the side stream, ordered after their inputs and before their
// readers. Observed layers do not use it, nor do calls that do without one of the two.
BOOST_AUTO_TEST_CASE(a_side_stream_has_what_little_waits_for) {
  CountingBackend counting(*backend, &stream);
  Stream on(counting);
  Stream side(counting);
  using Streams = std::vector<const Stream*>;
  const auto took = [&](const char* what, const Streams& streams, const Streams& waiting, const Streams& awaited) {
    BOOST_TEST_CONTEXT(what) {
      BOOST_TEST_CHECK(counting.streams == streams, boost::test_tools::per_element());
      BOOST_TEST_CHECK(counting.waiting == waiting, boost::test_tools::per_element());
      BOOST_TEST_CHECK(counting.awaited == awaited, boost::test_tools::per_element());
    }
    for (Streams* const list : {&counting.streams, &counting.waiting, &counting.awaited}) list->clear();
  };
  const constexpr CaseShape kShape{8, 16, 24};
  const HostInputs host = make_inputs(kShape, Dtype::bf16, Dtype::bf16, 1);
  const LinearCase device(host, Dtype::bf16, Dtype::bf16, counting, on);
  const LinearShape shape{kShape.in_features, kShape.out_features, true};
  Float8Linear linear(counting, shape, tensorwise(), {.side = &side});
  took("", {}, {}, {});
  linear.forward(device.forward(true), on);
  took("forward", {&side, &on, &on}, {&side, &on}, {&on, &side});
  linear.backward(device.backward(true), on);
  took("backward", {&on, &on, &side}, {&side, &on}, {&on, &side});
  linear.forward(device.forward(true), on);
  took("forward with the codes of before", {&on, &on}, {}, {});
  linear.backward({.grad_output = device.grad_output, .grad_weight = device.grad_weight}, on);
  took("one gradient", {&on, &on}, {}, {});

  Monitor monitor(counting);
  Float8Linear observed(counting, shape, tensorwise(), {.observer = &monitor, .side = &side});
  observed.forward(device.forward(true), on);
  for (const Stream* const used : counting.streams) BOOST_TEST(used == &on);
  BOOST_TEST(counting.waiting.empty());
  for (Streams* const list : {&counting.streams, &counting.waiting, &counting.awaited}) list->clear();

  // The weight's cast runs concurrently with the norm's statistics, the norm's backward with grad_weight.
  LayerNormLinear norm(counting, {.linear = {shape.in_features, shape.out_features}, .affine = false}, tensorwise(),
                       {.side = &side});
  norm.forward({.input = device.input, .weight = device.weight, .output = device.output}, on);
  took("norm forward", {&side, &on, &on, &on}, {&side, &on}, {&on, &side});
  norm.backward({.grad_output = device.grad_output, .grad_input = device.grad_input, .grad_weight = device.grad_weight},
                on);
  took("norm backward", {&on, &on, &side, &on}, {&side, &on}, {&on, &side});

  // Two layers share a workspace: the second layer's cast of its gradient waits for the first layer's grad_weight.
  Float8Workspace workspace;
  GatedMlp mlp(counting, {.features = shape.in_features, .hidden = 32}, tensorwise(),
               {.workspace = &workspace, .side = &side});
  const OwnedTensor up(*backend, Dtype::bf16, 64, shape.in_features);
  const OwnedTensor down(*backend, Dtype::bf16, shape.in_features, 32);
  const OwnedTensor result(*backend, Dtype::bf16, kShape.tokens, shape.in_features);
  for (const OwnedTensor* const tensor : {&up, &down, &result}) {
    backend->device_api().fill_zero(tensor->view().data, byte_span(*tensor, "test tensor"), stream);
  }
  mlp.forward({.input = device.input, .gate_up_weight = up, .down_weight = down, .output = result}, on);
  took("mlp forward", {&side, &side, &on, &on, &on, &on}, {&side, &side, &on, &on}, {&on, &on, &side, &side});
  const OwnedTensor grad_up(*backend, Dtype::bf16, 64, shape.in_features);
  const OwnedTensor grad_down(*backend, Dtype::bf16, shape.in_features, 32);
  mlp.backward({.grad_output = result,
                .grad_input = device.grad_input,
                .grad_gate_up_weight = grad_up,
                .grad_down_weight = grad_down},
               on);
  took("mlp backward", {&on, &on, &side, &on, &on, &on, &side}, {&side, &on, &side, &on}, {&on, &side, &on, &side});

  // A call that fails half way also leaves its own stream waiting.
  Float8Linear failing(counting, shape, tensorwise(), {.side = &side});
  failing.forward(device.forward(true), on);
  for (Streams* const list : {&counting.streams, &counting.waiting, &counting.awaited}) list->clear();
  counting.gemm_fails = true;
  BOOST_CHECK_THROW(failing.backward(device.backward(true), on), Error);
  took("a failing backward", {&on, &on}, {&side, &on}, {&on, &side});

  Stream foreign(*backend);
  BOOST_TEST(
      error_of([&] { Float8Linear(counting, shape, tensorwise(), {.side = &foreign}); }, ErrorCode::invalid_argument) ==
      "Float8Linear side: belongs to another backend than the layer: make it from the layer's backend");
}

// Where one launch computes both gradients' GEMMs, the side stream has the weight's cast alone. A caller of the
// functions may wait for its side stream in any case.
BOOST_AUTO_TEST_CASE(gemms_of_one_launch_need_no_side_stream) {
  CountingBackend counting(*backend, &stream);
  counting.pairs_gemms = true;
  Stream on(counting);
  Stream side(counting);
  using Streams = std::vector<const Stream*>;
  const constexpr CaseShape kShape{8, 16, 24};
  const HostInputs host = make_inputs(kShape, Dtype::bf16, Dtype::bf16, 1);
  const LinearCase device(host, Dtype::bf16, Dtype::bf16, counting, on);
  Float8Linear linear(counting, {kShape.in_features, kShape.out_features, true}, tensorwise(), {.side = &side});
  linear.forward(device.forward(true), on);
  BOOST_TEST_CHECK(counting.streams == (Streams{&side, &on, &on}), boost::test_tools::per_element());
  for (Streams* const list : {&counting.streams, &counting.waiting, &counting.awaited}) list->clear();
  linear.backward(device.backward(true), on);
  BOOST_TEST_CHECK(counting.streams == (Streams{&on, &on, &on}), boost::test_tools::per_element());
  BOOST_TEST(counting.waiting.empty());
  counting.streams.clear();
  linear.backward({.grad_output = device.grad_output, .grad_weight = device.grad_weight}, on);
  BOOST_TEST_CHECK(counting.streams == (Streams{&on, &on}), boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(a_large_layer_has_no_side_stream) {
  for (const std::int64_t tokens : {2400, 2600}) {
    CountingBackend counting(*backend, &stream);
    Stream on(counting);
    Stream side(counting);
    counting.gemm_fails = true;  // by then the stream of the first cast is recorded
    const OwnedTensor input(counting, Dtype::bf16, tokens, 2000);
    const OwnedTensor weight(counting, Dtype::bf16, 2000, 2000);
    const OwnedTensor output(counting, Dtype::bf16, tokens, 2000);
    Float8Linear linear(counting, {2000, 2000}, tensorwise(), {.side = &side});
    BOOST_CHECK_THROW(linear.forward({.input = input, .weight = weight, .output = output}, on), Error);
    BOOST_TEST(counting.streams.front() == (tokens * 2000 * 2000 <= 10'000'000'000 ? &side : &on));
  }
}

BOOST_AUTO_TEST_CASE(casts_each_tensor_once_and_the_weight_only_when_it_changed) {
  CountedLayer layer(*backend, tensorwise());
  auto& [inner, counting, on, device, linear] = layer;
  using Calls = std::vector<std::string>;

  linear.forward(device.forward(true), on);
  BOOST_TEST_CHECK(counting.calls == (Calls{"cast bf16->e4m3fn scale=tensor out=codes,transposed",
                                            "cast bf16->e4m3fn scale=tensor out=codes,transposed",
                                            "gemm e4m3fn*e4m3fn->bf16 nt scale=tensor,tensor bias fast"}),
                   boost::test_tools::per_element());
  counting.calls.clear();
  linear.backward(device.backward(true), on);
  BOOST_TEST_CHECK(counting.calls == (Calls{"cast bf16->e5m2 scale=tensor out=codes,transposed,sum:bf16",
                                            "gemm e5m2*e4m3fn->bf16 nt scale=tensor,tensor",
                                            "gemm e5m2*e4m3fn->bf16 nt scale=tensor,tensor"}),
                   boost::test_tools::per_element());
  counting.calls.clear();
  linear.forward(device.forward(true), on);
  BOOST_TEST(counting.calls.size() == 2U);  // the input's cast and the GEMM

  // Gradients that are not wanted cost nothing.
  counting.calls.clear();
  linear.backward({.grad_output = device.grad_output, .grad_weight = device.grad_weight}, on);
  BOOST_TEST_CHECK(counting.calls == (Calls{"cast bf16->e5m2 scale=tensor out=transposed",
                                            "gemm e5m2*e4m3fn->bf16 nt scale=tensor,tensor"}),
                   boost::test_tools::per_element());
  counting.calls.clear();
  linear.backward({.grad_output = device.grad_output, .grad_bias = device.grad_bias}, on);
  BOOST_TEST_CHECK(counting.calls == Calls{"column_sum bf16->bf16"}, boost::test_tools::per_element());
}

// One call casts a tensor along both of its dimensions; only what grad_weight needs of the input outlives forward().
BOOST_AUTO_TEST_CASE(rowwise_casts_along_both_dimensions_at_once) {
  CountedLayer layer(*backend, rowwise());
  auto& [inner, counting, on, device, linear] = layer;
  linear.forward(device.forward(true), on);
  linear.backward(device.backward(true), on);
  const std::string cast = "cast bf16->e4m3fn scale=row+col out=codes,transposed pow2";
  const std::string summing = "cast bf16->e4m3fn scale=row+col out=codes,transposed,sum:bf16 pow2";
  BOOST_TEST_CHECK(
      counting.calls == (std::vector<std::string>{cast, cast, "gemm e4m3fn*e4m3fn->bf16 nt scale=row,row bias fast",
                                                  summing, "gemm e4m3fn*e4m3fn->bf16 nt scale=row,row",
                                                  "gemm e4m3fn*e4m3fn->bf16 nt scale=row,row"}),
      boost::test_tools::per_element());
  BOOST_TEST(linear.saved_bytes() == 8U * 16 + 4 * 16);

  counting.calls.clear();
  linear.backward({.grad_output = device.grad_output, .grad_weight = device.grad_weight}, on);
  BOOST_TEST_CHECK(counting.calls == (std::vector<std::string>{"cast bf16->e4m3fn scale=col out=transposed pow2",
                                                               "gemm e4m3fn*e4m3fn->bf16 nt scale=row,row"}),
                   boost::test_tools::per_element());
}

// How grad_weight gets its input if nothing was kept, and how much memory each way keeps.
BOOST_AUTO_TEST_CASE(a_step_may_be_computed_again) {
  for (const LinearConfig& config : every_config()) {
    for (const auto& [prologue, epilogue] : {std::pair{"", ""}, {"", "silu(x)"}, {"tanh(x)", "sigmoid(x)"}}) {
      BOOST_TEST_CONTEXT(print(config) << " " << prologue << " " << epilogue) {
        const HostInputs host = make_inputs({16, 32, 24}, Dtype::bf16, Dtype::bf16, 1);
        const LinearCase kept(host, Dtype::bf16, Dtype::bf16, *backend, stream);
        const LinearCase made(host, Dtype::bf16, Dtype::bf16, *backend, stream);
        LinearFusion fusion;
        if (*epilogue != 0) fusion.epilogue = parse_pointwise(epilogue);
        if (*prologue != 0) fusion.prologue = parse_pointwise(prologue);
        DelayedScaling scales(*backend);
        Float8Linear one(*backend, {32, 24, true}, config, {.name = "one", .fusion = fusion, .delayed = &scales});
        Float8Linear two(*backend, {32, 24, true}, config, {.name = "two", .fusion = fusion, .delayed = &scales});
        one.forward(kept.forward(true), stream);
        one.backward(kept.backward(true), stream);

        LinearForward tensors = made.forward(true);
        tensors.keep_for_backward = false;
        two.forward(tensors, stream);
        BOOST_TEST(two.saved_bytes() == 0U);
        BOOST_TEST(refusal([&] { two.backward(made.backward(true), stream); }) ==
                   "Float8Linear backward: has no forward() before it that kept what it needs: run forward() first, or "
                   "recompute()");
        two.recompute(tensors, stream);
        BOOST_TEST(two.saved_bytes() == one.saved_bytes());
        two.backward(made.backward(true), stream);
        BOOST_TEST((made.result_bytes(stream) == kept.result_bytes(stream)));
        two.release();
        BOOST_TEST(two.saved_bytes() == 0U);
        two.forward(made.forward(true), stream);
        two.backward(made.backward(true), stream);
        BOOST_TEST((made.result_bytes(stream) == kept.result_bytes(stream)));
      }
    }
  }
}

// M * K codes are half the size of a bf16 input; the scale_inv, 4 bytes each, come on top.
BOOST_AUTO_TEST_CASE(bytes_kept_by_each_recipe) {
  constexpr std::int64_t kM = 256, kK = 384, kN = 128;
  const std::size_t codes = kM * kK;
  const auto kept = [&](const LinearConfig& config) {
    const LinearCase device(make_inputs({kM, kK, kN}, Dtype::bf16, Dtype::bf16, 1), Dtype::bf16, Dtype::bf16, *backend,
                            stream);
    DelayedScaling scales(*backend);
    Float8Linear linear(*backend, {kK, kN}, config, {.delayed = &scales});
    linear.forward(device.forward(false), stream);
    return linear.saved_bytes();
  };
  BOOST_TEST(kept(tensorwise()) == codes + 4);
  BOOST_TEST(kept(delayed()) == codes + 4);
  BOOST_TEST(kept(rowwise()) == codes + 4 * kK);
  BOOST_TEST(kept(rowwise_folded()) == codes + 4 * kM);
  BOOST_TEST(kept(blockwise()) == codes + 4 * kK * (kM / 128));
  BOOST_TEST(kept(rowwise_with_gw_hp()) == 0U);  // a view of the caller's bf16
  BOOST_TEST(kept(high_precision()) == 0U);
  LinearConfig again = rowwise();
  again.input = again.weight = OtherCodes::again;
  BOOST_TEST(kept(again) == 0U);
}

// Twenty steps with changing data: the scale comes from the maxima of the earlier steps.
BOOST_AUTO_TEST_CASE(delayed_scales_follow_the_maxima) {
  constexpr CaseShape kShape{16, 32, 24};
  DelayedScaling scales(*backend, {.history_length = 3});
  Float8Linear linear(*backend, {32, 24}, delayed(), {.name = "layer", .delayed = &scales});
  std::vector<double> maxima;
  for (int step = 0; step < 20; ++step) {
    HostInputs host = make_inputs(kShape, Dtype::f32, Dtype::f32, static_cast<unsigned>(step));
    for (double& value : host.input.values) value = static_cast<float>(value * (1 + step % 5));
    const LinearCase device(host, Dtype::f32, Dtype::f32, *backend, stream);
    double amax = 0;
    for (const double value : host.input.values) amax = std::max(amax, std::abs(value));
    if (step == 0) maxima.push_back(amax);  // the first scale comes from the first data
    const std::size_t from = maxima.size() > 3 ? maxima.size() - 3 : 0;
    const double largest = *std::max_element(maxima.begin() + static_cast<std::ptrdiff_t>(from), maxima.end());
    linear.weight_changed();
    linear.forward(device.forward(false), stream);
    linear.backward(device.backward(false), stream);
    float scale[3] = {};
    for (int slot = 0; slot < 3; ++slot) {
      backend->device_api().copy_to_host(&scale[slot], scales.scale(slot).data, sizeof scale[slot], stream);
    }
    BOOST_TEST(scale[0] == static_cast<float>(448 / largest), "step " << step);
    // The same layer with these scales fixed, for the input, the weight and grad_output, in this order.
    LinearConfig expected = delayed();
    const auto fix = [](std::optional<Cast>& cast, float of_slot) {
      cast->scaling = Scaling::fixed;
      cast->scale = of_slot;
    };
    fix(expected.output.a, scale[0]);
    fix(expected.grad_weight.b, scale[0]);
    fix(expected.output.b, scale[1]);
    fix(expected.grad_input.b, scale[1]);
    fix(expected.grad_input.a, scale[2]);
    fix(expected.grad_weight.a, scale[2]);
    BOOST_TEST_CONTEXT("step " << step) {
      check_within(device.output.read(stream), expected_output(expected, host.input, host.weight, nullptr, Dtype::f32),
                   "output");
      check_within(device.grad_input.read(stream),
                   expected_grad_input(expected, host.grad_output, host.weight, Dtype::f32), "grad_input");
      check_within(device.grad_weight.read(stream),
                   expected_grad_weight(expected, host.grad_output, host.input, Dtype::f32), "grad_weight");
    }
    scales.sync_amax_history(stream);
    maxima.push_back(amax);
  }
}

// The first micro-batch of the first step has no tokens (a mixture of experts, say): the first data are the second's.
BOOST_AUTO_TEST_CASE(a_micro_batch_without_tokens_starts_no_delayed_scale) {
  for (const char* const epilogue : {"", "silu(x)"}) {
    HostInputs host = make_inputs({16, 32, 24}, Dtype::f32, Dtype::f32, 3);
    for (double& value : host.input.values) value = static_cast<float>(value * 1e-4);
    for (double& value : host.grad_output.values) value = static_cast<float>(value * 1e-7);
    const LinearCase device(host, Dtype::f32, Dtype::f32, *backend, stream);
    const LinearCase none(make_inputs({0, 32, 24}, Dtype::f32, Dtype::f32, 4), Dtype::f32, Dtype::f32, *backend,
                          stream);
    const auto step = [&](bool first_without_tokens) {
      DelayedScaling scales(*backend);
      LinearFusion fusion;
      if (*epilogue != '\0') fusion.epilogue = parse_pointwise(epilogue);
      Float8Linear linear(*backend, {32, 24}, delayed(), {.name = "layer", .fusion = fusion, .delayed = &scales});
      if (first_without_tokens) {
        LinearForward empty = none.forward(false);
        empty.weight = device.weight;
        linear.forward(empty, stream);
        linear.backward(none.backward(false), stream);
        BOOST_TEST((scales.needs_start(0) && !scales.needs_start(1) && scales.needs_start(2)));
      }
      linear.forward(device.forward(false), stream);
      linear.backward(device.backward(false), stream);
      return device.result_bytes(stream);
    };
    const std::vector<std::uint8_t> expected = step(false);
    BOOST_TEST((step(true) == expected), "epilogue " << epilogue);
  }
}

BOOST_AUTO_TEST_CASE(delayed_scales_need_a_place) {
  BOOST_TEST(refusal([&] {
               Float8Linear(*backend, {16, 8}, delayed());
             }) ==
             "Float8Linear delayed: is missing, but input has delayed scales: give LinearOptions the model's "
             "DelayedScaling");
}

// Adding the same gradient twice: in f32 exactly double; in 16 bits one rounding of the old value plus the gradient.
BOOST_AUTO_TEST_CASE(a_layer_that_cannot_be_made_leaves_no_slots) {
  DelayedScaling scales(*backend);
  scales.add("taken.grad_output", Dtype::e5m2);
  scales.add("mlp.down.weight", Dtype::e4m3fn);
  const auto exists = [](const std::string& name) {
    return "delayed scaling slot \"" + name + "\": already exists; each slot needs its own name";
  };
  BOOST_TEST(refusal([&] {
               Float8Linear(*backend, {16, 8}, delayed(), {.name = "taken", .delayed = &scales});
             }) == exists("taken.grad_output"));
  BOOST_TEST(refusal([&] { Mlp(*backend, {16, 32}, delayed(), {.delayed = &scales}); }) == exists("mlp.down.weight"));
  BOOST_TEST(scales.size() == 2);
  BOOST_TEST(scales.add("taken.input", Dtype::e4m3fn) == 2);  // and their names are free
}

BOOST_AUTO_TEST_CASE(gradients_of_weights_accumulate_within_the_gemm) {
  for (const Recipe& recipe : recipes()) {
    for (const Dtype dtype : kHighPrecisionDtypes) {
      for (const Dtype main : {dtype, Dtype::f32}) {
        BOOST_TEST_CONTEXT(recipe.name << ", " << name(dtype) << " into " << name(main)) {
          const CaseShape shape{9, 16, 24};
          const HostInputs host = make_inputs(shape, dtype, bias_dtype_of(recipe.config, dtype), 1);
          const LinearCase device(host, dtype, bias_dtype_of(recipe.config, dtype), *backend, stream);
          const auto gradient = DeviceMatrix::poisoned(shape.out_features, shape.in_features, main, *backend, stream);
          DelayedScaling scales(*backend);
          Float8Linear linear(*backend, {16, 24, true}, recipe.config, {.delayed = &scales});
          linear.forward(device.forward(true), stream);
          linear.backward({.grad_output = device.grad_output, .grad_weight = gradient}, stream);
          const Matrix once = gradient.read(stream);
          linear.backward({.grad_output = device.grad_output, .grad_weight = gradient, .accumulate = true}, stream);
          const Matrix twice = gradient.read(stream);
          ExpectedMatrix expected = expected_grad_weight(recipe.config, host.grad_output, host.input, main);
          for (std::size_t i = 0; i < once.values.size(); ++i) {
            if (main == Dtype::f32) BOOST_REQUIRE_EQUAL(twice.values[i], 2 * once.values[i]);
            expected.value.values[i] += once.values[i];
            expected.bound.values[i] += unit_roundoff(main) * std::abs(once.values[i]);
          }
          check_within(twice, expected, "grad_weight");
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(what_is_to_be_added_to_must_be_there) {
  const HostInputs host = make_inputs({8, 16, 24}, Dtype::bf16, Dtype::bf16, 1);
  const LinearCase device(host, Dtype::bf16, Dtype::bf16, *backend, stream);
  Float8Linear linear(*backend, {16, 24}, tensorwise());
  linear.forward(device.forward(false), stream);
  BOOST_TEST(refusal([&] {
               linear.backward({.grad_output = device.grad_output, .grad_input = device.grad_input, .accumulate = true},
                               stream);
             }) == "Float8Linear grad_weight: is missing, but accumulate asks for it to be added to");
}

// Layers that share a workspace: the second layer's forward() does not overwrite what the first layer's backward()
// needs.
BOOST_AUTO_TEST_CASE(a_shared_workspace_keeps_nothing_of_a_layer) {
  for (const LinearConfig& config : every_config()) {
    BOOST_TEST_CONTEXT(print(config)) {
      const CaseShape shape{9, 16, 24};
      const HostInputs host = make_inputs(shape, Dtype::bf16, Dtype::bf16, 1);
      const HostInputs other = make_inputs(shape, Dtype::bf16, Dtype::bf16, 2);
      const LinearCase first(host, Dtype::bf16, Dtype::bf16, *backend, stream);
      const LinearCase second(other, Dtype::bf16, Dtype::bf16, *backend, stream);
      Float8Workspace workspace;
      DelayedScaling scales(*backend);
      const auto make = [&](const char* called) {
        return Float8Linear(*backend, {16, 24, true}, config,
                            {.name = called, .delayed = &scales, .workspace = &workspace});
      };
      Float8Linear one = make("one");
      Float8Linear two = make("two");
      one.forward(first.forward(true), stream);
      two.forward(second.forward(true), stream);
      two.backward(second.backward(true), stream);
      one.backward(first.backward(true), stream);
      check_within(first.grad_weight.read(stream),
                   expected_grad_weight(config, host.grad_output, host.input, Dtype::bf16), "grad_weight");
      check_within(first.grad_input.read(stream),
                   expected_grad_input(config, host.grad_output, host.weight, Dtype::bf16), "grad_input");
    }
  }
}

BOOST_AUTO_TEST_CASE(high_precision_is_three_gemms_and_nothing_else) {
  CountedLayer layer(*backend, high_precision(), Dtype::f16);
  auto& [inner, counting, on, device, linear] = layer;
  const int before = counting.allocations;
  linear.forward(device.forward(true), on);
  linear.backward(device.backward(true), on);
  BOOST_TEST_CHECK(counting.calls == (std::vector<std::string>{"gemm f16*f16->f16 nt bias", "gemm f16*f16->f16 nn",
                                                               "gemm f16*f16->f16 tn", "column_sum f16->f16"}),
                   boost::test_tools::per_element());
  BOOST_TEST(counting.allocations == before);
  BOOST_TEST(linear.saved_bytes() == 0U);
}

BOOST_AUTO_TEST_CASE(weight_codes_are_kept_until_the_weight_changes) {
  const CaseShape shape{8, 16, 24};
  const HostInputs host = make_inputs(shape, Dtype::bf16, Dtype::bf16, 1);
  const HostInputs other = make_inputs(shape, Dtype::bf16, Dtype::bf16, 2);
  LinearCase device(host, Dtype::bf16, Dtype::bf16, *backend, stream);
  const DeviceMatrix other_weight(other.weight, Dtype::bf16, *backend, stream);
  Float8Linear linear(*backend, {shape.in_features, shape.out_features}, tensorwise());
  const ExpectedMatrix with_old = expected_output(tensorwise(), host.input, host.weight, nullptr, Dtype::bf16);
  const ExpectedMatrix with_new = expected_output(tensorwise(), host.input, other.weight, nullptr, Dtype::bf16);

  linear.forward(device.forward(false), stream);
  check_within(device.output.read(stream), with_old, "first output");

  device.weight.write(other.weight, stream);
  device.output.poison(stream);
  linear.forward(device.forward(false), stream);
  check_within(device.output.read(stream), with_old, "output before weight_changed()");

  linear.weight_changed();
  linear.backward(device.backward(false), stream);
  check_within(device.grad_input.read(stream),
               expected_grad_input(tensorwise(), host.grad_output, host.weight, Dtype::bf16),
               "grad_input, which belongs to the weight of the last forward");
  device.output.poison(stream);
  linear.forward(device.forward(false), stream);
  check_within(device.output.read(stream), with_new, "output after weight_changed()");

  device.weight.write(host.weight, stream);
  linear.weight_changed();
  linear.forward(device.forward(false), stream);
  check_within(device.output.read(stream), with_old, "output with the first weight again");
  LinearForward elsewhere = device.forward(false);
  elsewhere.weight = other_weight;
  device.output.poison(stream);
  linear.forward(elsewhere, stream);
  check_within(device.output.read(stream), with_new, "output with a weight at another address");
}

BOOST_AUTO_TEST_CASE(a_steady_step_allocates_nothing) {
  for (const LinearConfig& config : every_config()) {
    Stream inner(*backend);
    CountingBackend counting(*backend, &inner);
    Stream on(counting);
    const auto make = [&](std::int64_t tokens) {
      return LinearCase(make_inputs({tokens, 16, 24}, Dtype::bf16, Dtype::bf16, 1), Dtype::bf16, Dtype::bf16, counting,
                        on);
    };
    const LinearCase small = make(8);
    const LinearCase large = make(40);
    DelayedScaling scales(counting);
    Float8Linear linear(counting, {16, 24, true}, config, {.delayed = &scales});
    const auto allocations_of_a_step = [&](const LinearCase& device) {
      const int before = counting.allocations;
      linear.forward(device.forward(true), on);
      linear.backward(device.backward(true), on);
      linear.weight_changed();
      return counting.allocations - before;
    };
    const bool float8 = config.output.a || config.grad_input.a || config.grad_weight.a;
    BOOST_TEST((allocations_of_a_step(small) > 0) == float8, print(config));
    BOOST_TEST(allocations_of_a_step(small) == 0, print(config));
    // If every factor is kept and rows are wide, the larger step may already fit.
    BOOST_TEST(((allocations_of_a_step(large) > 0) || !float8 || !config.grad_weight.a), print(config));
    BOOST_TEST(allocations_of_a_step(small) == 0, print(config));
    BOOST_TEST(allocations_of_a_step(large) == 0, print(config));
  }
}

BOOST_AUTO_TEST_CASE(a_batch_may_grow_and_shrink) {
  Float8Linear linear(*backend, {24, 12, true}, tensorwise());
  for (const std::int64_t tokens : {4, 64, 0, 3, 100}) {
    const HostInputs host = make_inputs({tokens, 24, 12}, Dtype::bf16, Dtype::bf16, static_cast<unsigned>(tokens));
    const LinearCase device(host, Dtype::bf16, Dtype::bf16, *backend, stream);
    linear.weight_changed();
    linear.forward(device.forward(true), stream);
    linear.backward(device.backward(true), stream);
    BOOST_TEST_CONTEXT("M=" << tokens) {
      check_within(device.output.read(stream),
                   expected_output(tensorwise(), host.input, host.weight, &host.bias, Dtype::bf16), "output");
      check_within(device.grad_weight.read(stream),
                   expected_grad_weight(tensorwise(), host.grad_output, host.input, Dtype::bf16), "grad_weight");
    }
  }
}

BOOST_AUTO_TEST_CASE(saved_bytes_are_one_per_element_of_the_input) {
  const CaseShape shape{8, 16, 24};
  const LinearCase device(make_inputs(shape, Dtype::bf16, Dtype::bf16, 1), Dtype::bf16, Dtype::bf16, *backend, stream);
  Float8Linear linear(*backend, {16, 24}, tensorwise());
  BOOST_TEST(linear.saved_bytes() == 0U);
  linear.forward(device.forward(false), stream);
  BOOST_TEST(linear.saved_bytes() == 8U * 16U + 4U);

  LinearConfig gw_hp = tensorwise();
  gw_hp.grad_weight = {};
  Float8Linear viewing(*backend, {16, 24}, gw_hp);
  viewing.forward(device.forward(false), stream);
  BOOST_TEST(viewing.saved_bytes() == 0U);
}

BOOST_AUTO_TEST_CASE(repeats_to_the_bit) {
  const HostInputs host = make_inputs({37, 50, 29}, Dtype::bf16, Dtype::bf16, 5);
  std::vector<std::vector<std::uint8_t>> results;
  for (const int threads : {1, 2, 5}) {
    const std::unique_ptr<Backend> cpu = make_cpu_backend(threads);
    Stream on(*cpu);
    LinearCase device(host, Dtype::bf16, Dtype::bf16, *cpu, on);
    Float8Linear linear(*cpu, {50, 29, true}, tensorwise());
    linear.forward(device.forward(true), on);
    linear.backward(device.backward(true), on);
    results.push_back(device.result_bytes(on));
    // backward() changes nothing that it needs.
    device.grad_input.poison(on);
    device.grad_weight.poison(on);
    device.grad_bias.poison(on);
    linear.backward(device.backward(true), on);
    results.push_back(device.result_bytes(on));
  }
  for (const std::vector<std::uint8_t>& result : results) BOOST_TEST((result == results.front()));
}

BOOST_AUTO_TEST_CASE(layers_share_a_workspace) {
  const CaseShape shape_1{8, 16, 24};
  const CaseShape shape_2{8, 40, 12};
  const HostInputs host_1 = make_inputs(shape_1, Dtype::bf16, Dtype::bf16, 1);
  const HostInputs host_2 = make_inputs(shape_2, Dtype::bf16, Dtype::bf16, 2);
  LinearCase device_1(host_1, Dtype::bf16, Dtype::bf16, *backend, stream);
  LinearCase device_2(host_2, Dtype::bf16, Dtype::bf16, *backend, stream);
  const auto step = [&](Float8Workspace* workspace) {
    Float8Linear linear_1(*backend, {16, 24, true}, tensorwise(), {.workspace = workspace});
    Float8Linear linear_2(*backend, {40, 12, true}, tensorwise(), {.workspace = workspace});
    device_1.poison_results(stream);
    device_2.poison_results(stream);
    linear_1.forward(device_1.forward(true), stream);
    linear_2.forward(device_2.forward(true), stream);
    linear_2.backward(device_2.backward(true), stream);
    linear_1.backward(device_1.backward(true), stream);
    std::vector<std::uint8_t> bytes = device_1.result_bytes(stream);
    const std::vector<std::uint8_t> more = device_2.result_bytes(stream);
    bytes.insert(bytes.end(), more.begin(), more.end());
    return bytes;
  };
  Float8Workspace workspace;
  const std::vector<std::uint8_t> apart = step(nullptr);
  const std::vector<std::uint8_t> shared = step(&workspace);
  BOOST_TEST((apart == shared));
  BOOST_TEST(workspace.memory.bytes() >= 8U * 40);
}

BOOST_AUTO_TEST_CASE(moves_with_what_it_saved) {
  const HostInputs host = make_inputs({8, 16, 24}, Dtype::bf16, Dtype::bf16, 1);
  const LinearCase device(host, Dtype::bf16, Dtype::bf16, *backend, stream);
  std::vector<Float8Linear> layers;
  layers.emplace_back(*backend, LinearShape{16, 24, true}, tensorwise());
  layers.front().forward(device.forward(true), stream);
  Float8Linear moved = std::move(layers.front());
  layers.clear();
  moved.backward(device.backward(true), stream);
  check_within(device.grad_weight.read(stream),
               expected_grad_weight(tensorwise(), host.grad_output, host.input, Dtype::bf16), "grad_weight");
}

BOOST_AUTO_TEST_CASE(gradients_of_parameters_may_be_f32) {
  const CaseShape shape{20, 16, 24};
  LinearConfig gw_hp = tensorwise();
  gw_hp.grad_weight = {};
  for (const LinearConfig& config : {tensorwise(), gw_hp, high_precision()}) {
    const HostInputs host = make_inputs(shape, Dtype::bf16, Dtype::bf16, 1);
    const LinearCase device(host, Dtype::bf16, Dtype::bf16, *backend, stream);
    const DeviceMatrix grad_weight = DeviceMatrix::poisoned(24, 16, Dtype::f32, *backend, stream);
    const DeviceMatrix grad_bias = DeviceMatrix::poisoned(1, 24, Dtype::f32, *backend, stream);
    Float8Linear linear(*backend, {16, 24, true}, config);
    linear.forward(device.forward(true), stream);
    linear.backward({.grad_output = device.grad_output, .grad_weight = grad_weight, .grad_bias = grad_bias}, stream);
    check_within(grad_weight.read(stream), expected_grad_weight(config, host.grad_output, host.input, Dtype::f32),
                 print(config) + ": f32 grad_weight");
    check_within(grad_bias.read(stream), expected_grad_bias(host.grad_output, Dtype::f32), "f32 grad_bias");
  }
}

BOOST_AUTO_TEST_CASE(nan_in_the_input_shows) {
  HostInputs host = make_inputs({4, 16, 8}, Dtype::bf16, Dtype::bf16, 1);
  host.input.at(2, 3) = std::nan("");
  const LinearCase device(host, Dtype::bf16, Dtype::bf16, *backend, stream);
  Float8Linear linear(*backend, {16, 8}, tensorwise());
  linear.forward(device.forward(false), stream);
  for (const double value : device.output.read(stream).values) BOOST_TEST(std::isnan(value));
}

BOOST_AUTO_TEST_CASE(zero_tensors_give_zero) {
  HostInputs host = make_inputs({4, 16, 8}, Dtype::bf16, Dtype::bf16, 1);
  host.input = zeros(4, 16);
  host.grad_output = zeros(4, 8);
  const LinearCase device(host, Dtype::bf16, Dtype::bf16, *backend, stream);
  Float8Linear linear(*backend, {16, 8, true}, tensorwise());
  linear.forward(device.forward(true), stream);
  linear.backward(device.backward(true), stream);
  const Matrix output = device.output.read(stream);
  for (std::int64_t r = 0; r < 4; ++r) {
    for (std::int64_t c = 0; c < 8; ++c) BOOST_TEST(output.at(r, c) == host.bias.at(0, c));
  }
  for (const DeviceMatrix* gradient : {&device.grad_input, &device.grad_weight, &device.grad_bias}) {
    for (const double value : gradient->read(stream).values) BOOST_TEST(value == 0.0);
  }
}

BOOST_AUTO_TEST_CASE(refuses_a_layer_that_cannot_exist) {
  BOOST_TEST(refusal([&] {
               Float8Linear(*backend, {-1, 4}, tensorwise());
             }) == "Float8Linear in_features: is -1, but must be 0 or more");
  BOOST_TEST(refusal([&] {
               Float8Linear(*backend, {4, -2}, tensorwise());
             }) == "Float8Linear out_features: is -2, but must be 0 or more");
  LinearConfig mixed = tensorwise();
  mixed.output.a.reset();
  BOOST_CHECK_EXCEPTION(Float8Linear(*backend, {4, 4}, mixed), Error, [](const Error& error) {
    return error.code() == ErrorCode::invalid_spec && std::string(error.what()).starts_with("linear config: ");
  });
}

BOOST_AUTO_TEST_CASE(names_the_tensor_that_is_wrong) {
  const LinearCase device(make_inputs({4, 16, 8}, Dtype::bf16, Dtype::bf16, 1), Dtype::bf16, Dtype::bf16, *backend,
                          stream);
  Float8Linear linear(*backend, {16, 8, true}, tensorwise());
  const auto forward_with = [&](test::FunctionRef<void(LinearForward&)> change) {
    LinearForward tensors = device.forward(true);
    change(tensors);
    return refusal([&] { linear.forward(tensors, stream); });
  };
  const auto backward_with = [&](test::FunctionRef<void(LinearBackward&)> change) {
    LinearBackward tensors = device.backward(true);
    change(tensors);
    return refusal([&] { linear.backward(tensors, stream); });
  };

  BOOST_TEST(
      backward_with([](LinearBackward&) {}) ==
      "Float8Linear backward: has no forward() before it that kept what it needs: run forward() first, or recompute()");

  BOOST_TEST(forward_with([](LinearForward& t) { t.input.cols = 15; }) ==
             "Float8Linear input: is bf16[4, 15] on cpu, row stride 16, but must have 16 columns = in_features");
  BOOST_TEST(forward_with([](LinearForward& t) { t.input.dtype = Dtype::e4m3fn; }) ==
             "Float8Linear input: is e4m3fn, but must be f32 or bf16 or f16");
  BOOST_TEST(forward_with([](LinearForward& t) { t.weight.dtype = Dtype::f32; }) ==
             "Float8Linear weight: is f32, but must be bf16, as input is");
  BOOST_TEST(forward_with([](LinearForward& t) { t.weight.rows = 7; }) ==
             "Float8Linear weight: is bf16[7, 16] on cpu, but must be [8, 16] = [out_features, in_features]");
  BOOST_TEST(forward_with([](LinearForward& t) { t.output.rows = 3; }) ==
             "Float8Linear output: is bf16[3, 8] on cpu, but must be [4, 8] = [rows of input, out_features]");
  BOOST_TEST(forward_with([](LinearForward& t) { t.output.dtype = Dtype::f16; }) ==
             "Float8Linear output: is f16, but must be bf16, as input is");
  BOOST_TEST(forward_with([](LinearForward& t) { t.bias = {}; }) ==
             "Float8Linear bias: is missing; it must be [1, 8] = a vector of out_features");
  BOOST_TEST(forward_with([](LinearForward& t) { t.input = {}; }) ==
             "Float8Linear input: is missing; it must have 16 columns = in_features");
  BOOST_TEST(forward_with([](LinearForward& t) { t.weight = {}; }) ==
             "Float8Linear weight: is missing; it must be bf16, as input is");
  BOOST_TEST(forward_with([](LinearForward& t) { t.bias.dtype = Dtype::f32; }) ==
             "Float8Linear bias: is f32, but must be bf16, as input is");
  BOOST_TEST(forward_with([](LinearForward& t) { t.input.data = nullptr; }) ==
             "Float8Linear input: is bf16[4, 16] on cpu; its data pointer is null; only an empty tensor may have none");
  BOOST_TEST(forward_with([](LinearForward& t) { t.input.row_stride = 8; }) ==
             "Float8Linear input: is bf16[4, 16] on cpu, row stride 8; the row stride must be at least the number of "
             "columns, or rows overlap");
  BOOST_TEST(forward_with([](LinearForward& t) {
               t.weight.device = {DeviceType::cuda, 1};
             }) == "Float8Linear weight: is bf16[8, 16] on cuda:1; this backend works on cpu: copy it there");
  BOOST_TEST(forward_with([](LinearForward& t) {
               t.input.rows = t.output.rows = -1;
             }).starts_with("Float8Linear input: is bf16[-1, 16] on cpu; sizes and strides must not be negative"));
  BOOST_TEST(forward_with([](LinearForward& t) {
               t.input.rows = t.output.rows = std::int64_t{1} << 40;
               t.input.row_stride = std::int64_t{1} << 40;
             }).starts_with("Float8Linear input: "));
  BOOST_TEST(forward_with([&](LinearForward& t) { t.output.data = device.input.view().data; }) ==
             "Float8Linear output: overlaps Float8Linear input: give it separate memory");

  linear.forward(device.forward(true), stream);
  BOOST_TEST(backward_with([](LinearBackward& t) { t.grad_output.rows = 3; }) ==
             "Float8Linear grad_output: is bf16[3, 8] on cpu, but must be [4, 8] = [rows of the last forward's input, "
             "out_features]");
  BOOST_TEST(backward_with([](LinearBackward& t) { t.grad_output.dtype = Dtype::f16; }) ==
             "Float8Linear grad_output: is f16, but must be bf16, as input is");
  BOOST_TEST(backward_with([](LinearBackward& t) { t.grad_input.cols = 8; }) ==
             "Float8Linear grad_input: is bf16[4, 8] on cpu, row stride 16, but must be [4, 16] = [rows of the last "
             "forward's input, in_features]");
  BOOST_TEST(backward_with([](LinearBackward& t) { t.grad_weight.dtype = Dtype::e5m2; }) ==
             "Float8Linear grad_weight: is e5m2, but must be f32 or bf16 or f16");
  BOOST_TEST(backward_with([](LinearBackward& t) { t.grad_bias.dtype = Dtype::e5m2; }) ==
             "Float8Linear grad_bias: is e5m2, but must be f32 or bf16 or f16");
  BOOST_TEST(backward_with([](LinearBackward& t) { t.grad_bias.cols = 9; }) ==
             "Float8Linear grad_bias: is bf16[1, 9] on cpu, row stride 8, but must be [1, 8] = a vector of "
             "out_features");
  BOOST_TEST(
      backward_with([](LinearBackward& t) { t.grad_input.data = nullptr; }) ==
      "Float8Linear grad_input: is bf16[4, 16] on cpu; its data pointer is null; only an empty tensor may have none");
  // Refused before grad_input is written, although only grad_weight and grad_bias are wrong.
  BOOST_TEST(backward_with([](LinearBackward& t) {
               t.grad_weight.data = static_cast<char*>(t.grad_weight.data) + 1;
             }).find("is misaligned: it must be a multiple of 2 bytes") != std::string::npos);
  BOOST_TEST(
      backward_with([](LinearBackward& t) { t.grad_bias.row_stride = 0; }).starts_with("Float8Linear grad_bias: "));
  BOOST_TEST(backward_with([&](LinearBackward& t) { t.grad_input.data = device.grad_output.view().data; }) ==
             "Float8Linear grad_input: overlaps Float8Linear grad_output: give it separate memory");
  BOOST_TEST(backward_with([&](LinearBackward& t) { t.grad_weight.data = t.grad_bias.data; }) ==
             "Float8Linear grad_weight: overlaps Float8Linear grad_bias: give it separate memory");

  Float8Linear without_bias(*backend, {16, 8}, tensorwise());
  BOOST_TEST(refusal([&] { without_bias.forward(device.forward(true), stream); }) ==
             "Float8Linear bias: is given, but the layer was made without one: set bias in its LinearShape");
  without_bias.forward(device.forward(false), stream);
  BOOST_TEST(refusal([&] { without_bias.backward(device.backward(true), stream); }) ==
             "Float8Linear grad_bias: is given, but the layer was made without a bias");

  const std::unique_ptr<Backend> other = make_cpu_backend(1);
  Stream elsewhere(*other);
  BOOST_TEST(refusal([&] { linear.forward(device.forward(true), elsewhere); }) ==
             "Float8Linear stream: belongs to another backend than the layer: make it from the layer's backend");
}

BOOST_AUTO_TEST_CASE(bias_of_an_f32_layer_is_bf16_in_fp8_and_f32_otherwise) {
  const LinearCase device(make_inputs({4, 16, 8}, Dtype::f32, Dtype::f32, 1), Dtype::f32, Dtype::f32, *backend, stream);
  Float8Linear float8(*backend, {16, 8, true}, tensorwise());
  BOOST_TEST(refusal([&] { float8.forward(device.forward(true), stream); }) ==
             "Float8Linear bias: is f32, but must be bf16: an FP8 GEMM with f32 output takes a bf16 bias");
  Float8Linear plain(*backend, {16, 8, true}, high_precision());
  BOOST_TEST(refusal([&] { plain.forward(device.forward(true), stream); }) == "no error");
}

BOOST_AUTO_TEST_CASE(a_failed_forward_leaves_nothing_to_go_back_to) {
  Stream inner(*backend);
  CountingBackend failing(*backend, &inner);
  Stream on(failing);
  const LinearCase device(make_inputs({4, 16, 8}, Dtype::bf16, Dtype::bf16, 1), Dtype::bf16, Dtype::bf16, failing, on);
  Float8Linear linear(failing, {16, 8}, tensorwise());
  linear.forward(device.forward(false), on);
  failing.gemm_fails = true;
  BOOST_CHECK_THROW(linear.forward(device.forward(false), on), Error);
  failing.gemm_fails = false;
  BOOST_TEST(
      refusal([&] { linear.backward(device.backward(false), on); }) ==
      "Float8Linear backward: has no forward() before it that kept what it needs: run forward() first, or recompute()");
  linear.forward(device.forward(false), on);
  BOOST_CHECK_NO_THROW(linear.backward(device.backward(false), on));

  // A cast on the side stream has overwritten the codes, though it then failed.
  Stream side(failing);
  Float8Linear beside(failing, {16, 8}, tensorwise(), {.side = &side});
  beside.forward(device.forward(false), on);
  beside.weight_changed();
  failing.after_cast = [](const CastSpec&, const CastTensors&, Stream&) {
    throw Error(ErrorCode::cuda_failed, "cast", "failed");
  };
  BOOST_CHECK_THROW(beside.forward(device.forward(false), on), Error);
  failing.after_cast = nullptr;
  BOOST_TEST(
      refusal([&] { beside.backward(device.backward(false), on); }).starts_with("Float8Linear backward: has no"));
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE_END()
