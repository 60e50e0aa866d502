// Modules of several parts (a norm and its layer, MLPs) as functions of tensors and as owners, on the CPU reference:
// the same bits by the same calls, forwards and backwards in any order, inference, recomputation, release, and every
// refusal.
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "ingot/nn/modules/delayed_scaling.h"
#include "ingot/nn/modules/gated_mlp.h"
#include "ingot/nn/modules/norm_linear.h"
#include "ingot/runtime/context/cpu_backend.h"
#include "ingot/runtime/util/error.h"
#include "nn/counting_backend.h"
#include "nn/module_case.h"
#include "support/expect_error.h"
#include "support/function_ref.h"

BOOST_AUTO_TEST_SUITE(test_module_functions)

using namespace ingot;
using namespace ingot::test;

namespace {

// What owner and functions do, one after the other: a step, and one whose forward keeps nothing. The layer's own weight
// is cast in the first of them.
template <class Forward, class Backward, class Recompute, class CastOnce>
void run_steps(const Forward& forward, const Backward& backward, const Recompute& recompute,
               const CastOnce& cast_once) {
  forward(true);
  backward();
  cast_once();
  forward(false);
  recompute();
  backward();
}

struct Fixture {
  std::unique_ptr<Backend> backend = make_cpu_backend(1);
  Stream stream{*backend};
  static std::string refusal(test::FunctionRef<void()> act, ErrorCode code = ErrorCode::invalid_argument) {
    return error_of(act, code);
  }

  void check_norm_owner(const LinearConfig& config, const NormOptions& norm, Dtype dtype, const char* epilogue) {
    CountingBackend counting(*backend, &stream);
    Stream on(counting);
    DelayedScaling delayed(counting);
    LinearFusion fusion;
    if (*epilogue != 0) fusion.epilogue = parse_pointwise(epilogue);
    const DeviceMatrix gate(Random(9).normal(kShape.tokens, kShape.out_features, dtype), dtype, counting, on);
    const auto forward_of = [&](const NormCase& of, bool keeps) {
      NormLinearForward made = of.forward();
      if (!fusion.epilogue.inputs().empty()) made.epilogue_inputs[0] = gate;
      made.keep_for_backward = keeps;
      return made;
    };
    const NormCase owned(config, norm, dtype, 1, counting, on);
    NormLinear layer(norm.kind, counting, shape_of(norm), config, {.fusion = fusion, .delayed = &delayed});
    for (int step = 0; step < 2; ++step) {
      counting.calls.clear();
      layer.weight_changed();
      run_steps([&](bool keeps) { layer.forward(forward_of(owned, keeps), on); },
                [&] { layer.backward(owned.backward(), on); }, [&] { layer.recompute(forward_of(owned, false), on); },
                [] {});
    }
    const std::vector<std::string> calls = counting.calls;

    const NormCase given(config, norm, dtype, 1, counting, on);
    NormFunctions functions(
        {.linear = {.config = config, .shape = kLinear, .dtypes = {dtype}, .fusion = fusion}, .norm = norm}, delayed,
        counting, on);
    Saved<NormLinearPlan> kept(functions.plan, kShape.tokens, counting, on);
    counting.calls.clear();
    run_steps([&](bool keeps) { functions.forward(forward_of(given, keeps), keeps ? &kept.saved : nullptr, on); },
              [&] { functions.backward(given.backward(), forward_of(given, true), kept.saved, on); },
              [&] { functions.recompute(forward_of(given, false), kept.saved, on); }, [&] { functions.casts = false; });
    BOOST_TEST_CHECK(counting.calls == calls, boost::test_tools::per_element());
    BOOST_TEST((given.result_bytes(on) == owned.result_bytes(on)));
    BOOST_TEST(functions.plan.saved_memory(kShape.tokens).bytes_of_parts() == layer.saved_bytes());
  }

  // Whatever the order, the thread and the stream, each case has the bits of a step alone.
  template <class Case, class Layer>
  void check_many(const std::vector<Case>& cases, const Layer& layer) {
    const auto forget = [&](const Case& of) {
      for (const Tensor& result : of.result_tensors()) {
        backend->device_api().fill_zero(result.data, byte_span(result, "result"), stream);
      }
    };
    const auto alone = [&](const Case& of, Stream& on) {
      auto kept = layer.saved(*backend, on);
      layer.functions.forward(of.forward(), &kept.saved, on);
      layer.functions.backward(of.backward(), of.forward(), kept.saved, on);
    };
    std::vector<Bytes> expected;
    for (const Case& each : cases) {
      forget(each);
      alone(each, stream);
      expected.push_back(each.result_bytes(stream));
    }
    const auto check = [&](const char* what) {
      for (std::size_t i = 0; i < cases.size(); ++i) {
        BOOST_TEST((cases[i].result_bytes(stream) == expected[i]), what);
        forget(cases[i]);
      }
    };
    check("one by one");
    std::array<std::size_t, 3> order{0, 1, 2};
    do {
      std::vector<decltype(layer.saved(*backend, stream))> kept;
      for (std::size_t i = 0; i < cases.size(); ++i) kept.push_back(layer.saved(*backend, stream));
      for (std::size_t i = 0; i < cases.size(); ++i) {
        layer.functions.forward(cases[i].forward(), &kept[i].saved, stream);
      }
      for (std::size_t i = order.size(); i < cases.size(); ++i) {
        layer.functions.backward(cases[i].backward(), cases[i].forward(), kept[i].saved, stream);
      }
      for (const std::size_t i : order) {
        layer.functions.backward(cases[i].backward(), cases[i].forward(), kept[i].saved, stream);
      }
      check("all forwards before three backwards in any order");
    } while (std::ranges::next_permutation(order).found);
    std::vector<std::thread> threads;
    threads.reserve(cases.size());
    for (const Case& each : cases) {
      threads.emplace_back([&] {
        Stream own(*backend);
        alone(each, own);
      });
    }
    for (std::thread& thread : threads) thread.join();
    check("each on its own thread and stream");
    for (const Case& each : cases) layer.functions.forward(each.forward(), nullptr, stream);
    auto kept = layer.saved(*backend, stream);
    for (const Case& each : cases) {
      layer.functions.recompute(each.forward(), kept.saved, stream);
      layer.functions.backward(each.backward(), each.forward(), kept.saved, stream);
    }
    check("computed again inside each backward");
  }

  void check_many_norms(const LinearConfig& config) {
    const DelayedScaling none(*backend);
    struct Layer {
      NormFunctions functions;
      auto saved(Backend& on, Stream& of) const { return Saved<NormLinearPlan>(functions.plan, kShape.tokens, on, of); }
    } layer{NormFunctions({.linear = {.config = config, .shape = kLinear}}, none, *backend, stream)};
    std::vector<NormCase> cases;
    for (unsigned i = 0; i < 8; ++i) cases.emplace_back(config, kNorms[0], Dtype::bf16, i + 1, *backend, stream);
    layer.functions.forward(cases[0].forward(), nullptr, stream);  // casts the weight, which all use
    layer.functions.casts = false;
    check_many(cases, layer);
  }

  void check_many_mlps(const LinearConfig& config, const MlpKind& kind) {
    const DelayedScaling none(*backend);
    struct Layer {
      MlpFunctions functions;
      auto saved(Backend& on, Stream& of) const { return Saved<MlpPlan>(functions.plan, kShape.tokens, on, of); }
    } layer{MlpFunctions(plan_options(config, kind), none, *backend, stream)};
    std::vector<MlpCase> cases;
    for (unsigned i = 0; i < 8; ++i) cases.emplace_back(config, kind, Dtype::bf16, i + 1, *backend, stream);
    layer.functions.forward(cases[0].forward(), nullptr, stream);
    layer.functions.casts = false;
    check_many(cases, layer);
  }

  // The owner that has this activation and norm by its name, and the functions.
  void check_mlp_owners(const LinearConfig& config, const MlpKind& kind, Dtype dtype) {
    CountingBackend counting(*backend, &stream);
    Stream on(counting);
    DelayedScaling delayed(counting);
    const MlpOptions options{.activation = kind.activation, .norm = kind.norm, .delayed = &delayed};
    const bool is_gated = std::string(kind.activation).find("up") != std::string::npos;
    if (is_gated) {
      GatedMlp mlp(counting, kMlp, config, {.activation = kind.activation, .norm = kind.norm, .delayed = &delayed});
      check_mlp_owner(
          mlp, [](const auto& tensors) { return gated(tensors); }, config, kind, dtype, delayed, counting);
    } else if (kind.norm && kind.norm->kind == NormKind::layer) {
      LayerNormMlp mlp(counting, kMlp, config, options);
      check_mlp_owner(
          mlp, [](const auto& tensors) { return tensors; }, config, kind, dtype, delayed, counting);
    } else {
      Mlp mlp(counting, kMlp, config, options);
      check_mlp_owner(
          mlp, [](const auto& tensors) { return tensors; }, config, kind, dtype, delayed, counting);
    }
    if (!kind.norm || kind.norm->kind != NormKind::rms) return;
    DelayedScaling others(counting);
    RMSNormMlp mlp(counting, kMlp, config, {.activation = kind.activation, .norm = kind.norm, .delayed = &others});
    check_mlp_owner(
        mlp, [](const auto& tensors) { return tensors; }, config, kind, dtype, others, counting);
  }

  template <class Owner, class Rename>
  void check_mlp_owner(Owner& mlp, const Rename& renamed, const LinearConfig& config, const MlpKind& kind, Dtype dtype,
                       const DelayedScaling& delayed, CountingBackend& counting) {
    Stream on(counting);
    const auto forward_of = [&](const MlpCase& of, bool keeps) {
      MlpForward made = of.forward();
      made.keep_for_backward = keeps;
      return made;
    };
    const MlpCase owned(config, kind, dtype, 1, counting, on);
    for (int step = 0; step < 2; ++step) {
      counting.calls.clear();
      mlp.weights_changed();
      run_steps([&](bool keeps) { mlp.forward(renamed(forward_of(owned, keeps)), on); },
                [&] { mlp.backward(renamed(owned.backward()), on); },
                [&] { mlp.recompute(renamed(forward_of(owned, false)), on); }, [] {});
    }
    const std::vector<std::string> calls = counting.calls;

    const MlpCase given(config, kind, dtype, 1, counting, on);
    MlpFunctions functions(plan_options(config, kind, dtype), delayed, counting, on);
    Saved<MlpPlan> kept(functions.plan, kShape.tokens, counting, on);
    counting.calls.clear();
    run_steps([&](bool keeps) { functions.forward(forward_of(given, keeps), keeps ? &kept.saved : nullptr, on); },
              [&] { functions.backward(given.backward(), given.forward(), kept.saved, on); },
              [&] { functions.recompute(forward_of(given, false), kept.saved, on); }, [&] { functions.casts = false; });
    BOOST_TEST_CHECK(counting.calls == calls, boost::test_tools::per_element());
    BOOST_TEST((given.result_bytes(on) == owned.result_bytes(on)));
    BOOST_TEST(functions.plan.saved_memory(kShape.tokens).bytes_of_parts() == mlp.saved_bytes());
  }
};

}  // namespace

BOOST_FIXTURE_TEST_SUITE(module_functions, Fixture)

// A delayed layer's second step, so that its scales are there: the first one also starts them.
BOOST_AUTO_TEST_CASE(of_a_norm_and_its_layer_give_the_owners_bits_by_the_same_calls) {
  for (const LinearConfig& config : every_config()) {
    for (const NormOptions& norm : kNorms) {
      for (const Dtype dtype : kHighPrecisionDtypes) {
        for (const char* const epilogue : {"", "silu(x)", "sigmoid(x)", "x * gate"}) {
          BOOST_TEST_CONTEXT(ingot::test::print(kShape) << " " << ingot::print(config) << ", " << print(norm) << ", "
                                                        << name(dtype) << " [" << epilogue << "]") {
            check_norm_owner(config, norm, dtype, epilogue);
          }
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(of_an_mlp_give_the_owners_bits_by_the_same_calls) {
  for (const LinearConfig& config : every_config()) {
    for (const MlpKind& kind : kMlps) {
      for (const Dtype dtype : kHighPrecisionDtypes) {
        BOOST_TEST_CONTEXT(ingot::print(config)
                           << ", " << kind.activation << (kind.norm ? " after a norm, " : ", ") << name(dtype)) {
          check_mlp_owners(config, kind, dtype);
        }
      }
    }
  }
}

// Two forwards that kept nothing, computed again in between, and their backwards in the other order.
BOOST_AUTO_TEST_CASE(forwards_may_keep_nothing_and_come_before_other_backwards) {
  for (const LinearConfig& config : every_config()) {
    BOOST_TEST_CONTEXT(ingot::print(config)) {
      const MlpKind kind = kMlps[2];
      DelayedScaling delayed(*backend);
      Mlp mlp(*backend, kMlp, config, {.activation = kind.activation, .norm = kind.norm, .delayed = &delayed});
      const MlpCase first(config, kind, Dtype::bf16, 1, *backend, stream);
      mlp.forward(first.forward(), stream);
      mlp.backward(first.backward(), stream);
      const Bytes of_first = first.result_bytes(stream);
      const MlpCase second(config, kind, Dtype::bf16, 2, *backend, stream);
      mlp.weights_changed();
      mlp.forward(second.forward(), stream);
      mlp.backward(second.backward(), stream);
      const Bytes of_second = second.result_bytes(stream);

      const MlpCase one(config, kind, Dtype::bf16, 1, *backend, stream);
      const MlpCase two(config, kind, Dtype::bf16, 2, *backend, stream);
      const MlpFunctions at_one(plan_options(config, kind), delayed, *backend, stream);
      const MlpFunctions at_two(plan_options(config, kind), delayed, *backend, stream);
      Saved<MlpPlan> kept_one(at_one.plan, kShape.tokens, *backend, stream);
      Saved<MlpPlan> kept_two(at_two.plan, kShape.tokens, *backend, stream);
      at_two.forward(two.forward(), nullptr, stream);
      at_one.forward(one.forward(), &kept_one.saved, stream);
      at_two.recompute(two.forward(), kept_two.saved, stream);
      at_one.backward(one.backward(), one.forward(), kept_one.saved, stream);
      at_two.backward(two.backward(), two.forward(), kept_two.saved, stream);
      BOOST_TEST((one.result_bytes(stream) == of_first));
      BOOST_TEST((two.result_bytes(stream) == of_second));
    }
  }
}

// Plans and weights' codes of many forwards at once: on one stream in any order, on eight streams of eight threads, and
// computed again inside each backward.
BOOST_AUTO_TEST_CASE(many_forwards_share_plans_and_codes) {
  for (const Recipe& recipe : recipes()) {
    if (recipe.name == "delayed") continue;  // its maxima are one tensor, which its callers order
    BOOST_TEST_CONTEXT(recipe.name) {
      check_many_norms(recipe.config);
      for (const MlpKind& kind : kMlps) check_many_mlps(recipe.config, kind);
    }
  }
}

BOOST_AUTO_TEST_CASE(owners_infer_recompute_and_release) {
  for (const Recipe& recipe : recipes()) {
    for (const NormOptions& norm : kNorms) {
      for (const char* const epilogue : {"", "silu(x)"}) {
        BOOST_TEST_CONTEXT(recipe.name << ", " << print(norm) << " [" << epilogue << "]") {
          DelayedScaling delayed(*backend);
          LinearOptions options{.delayed = &delayed};
          if (*epilogue != 0) options.fusion.epilogue = parse_pointwise(epilogue);
          NormLinear layer(norm.kind, *backend, shape_of(norm), recipe.config, options);
          const NormCase kept(recipe.config, norm, Dtype::bf16, 1, *backend, stream);
          layer.forward(kept.forward(), stream);
          layer.backward(kept.backward(), stream);
          const std::size_t bytes = layer.saved_bytes();

          const NormCase again(recipe.config, norm, Dtype::bf16, 1, *backend, stream);
          NormLinearForward forward = again.forward();
          forward.keep_for_backward = false;
          layer.forward(forward, stream);
          BOOST_TEST((again.linear.output.bytes(stream) == kept.linear.output.bytes(stream)));
          BOOST_TEST(layer.saved_bytes() == 0U);
          BOOST_TEST(refusal([&] { layer.backward(again.backward(), stream); }) ==
                     "NormLinear backward: has no forward() before it that kept what it needs: run forward() first, or "
                     "recompute()");
          layer.recompute(forward, stream);
          BOOST_TEST(layer.saved_bytes() == bytes);
          layer.backward(again.backward(), stream);
          BOOST_TEST((again.result_bytes(stream) == kept.result_bytes(stream)));
          layer.release();
          BOOST_TEST(layer.saved_bytes() == 0U);
          BOOST_TEST(refusal([&] { layer.backward(again.backward(), stream); }) ==
                     "NormLinear backward: has no forward() before it: run forward() first");
          layer.forward(again.forward(), stream);
          layer.backward(again.backward(), stream);
          BOOST_TEST((again.result_bytes(stream) == kept.result_bytes(stream)));
        }
      }
    }
    for (const MlpKind& kind : kMlps) {
      BOOST_TEST_CONTEXT(recipe.name << ", " << kind.activation << (kind.norm ? " after a norm" : "")) {
        DelayedScaling delayed(*backend);
        Mlp mlp(*backend, kMlp, recipe.config, {.activation = kind.activation, .norm = kind.norm, .delayed = &delayed});
        const MlpCase kept(recipe.config, kind, Dtype::bf16, 1, *backend, stream);
        mlp.forward(kept.forward(), stream);
        mlp.backward(kept.backward(), stream);
        const MlpCase again(recipe.config, kind, Dtype::bf16, 1, *backend, stream);
        MlpForward forward = again.forward();
        forward.keep_for_backward = false;
        mlp.forward(forward, stream);
        BOOST_TEST((again.results[0].bytes(stream) == kept.results[0].bytes(stream)));
        BOOST_TEST(mlp.saved_bytes() == 0U);
        mlp.recompute(forward, stream);
        mlp.backward(again.backward(), stream);
        BOOST_TEST((again.result_bytes(stream) == kept.result_bytes(stream)));
        mlp.release();
        BOOST_TEST(refusal([&] { mlp.backward(again.backward(), stream); }) ==
                   "Mlp backward: has no forward() before it: run forward() first");
      }
    }
  }
}

namespace {

Bytes rounded(const DeviceMatrix& of, Backend& backend, Stream& stream) {
  return DeviceMatrix(of.read(stream), Dtype::bf16, backend, stream).bytes(stream);
}

}  // namespace

// An f32 output is the bf16 layer's before its rounding, and an f32 grad_output of bf16's values has bf16's gradients.
BOOST_AUTO_TEST_CASE(owners_have_an_output_of_another_dtype) {
  for (const LinearConfig& config : {tensorwise(), delayed(), rowwise(), rowwise_folded(), blockwise()}) {
    BOOST_TEST_CONTEXT(ingot::print(config)) {
      const NormOptions norm = kNorms[0];
      DelayedScaling of_bf16(*backend), of_f32(*backend);
      const NormCase narrow(config, norm, Dtype::bf16, 1, *backend, stream);
      NormLinear plain(norm.kind, *backend, shape_of(norm), config, {.delayed = &of_bf16});
      plain.forward(narrow.forward(), stream);
      plain.backward(narrow.backward(), stream);

      const auto output = DeviceMatrix::poisoned(kShape.tokens, kShape.out_features, Dtype::f32, *backend, stream);
      const DeviceMatrix grad_output(narrow.linear.grad_output.read(stream), Dtype::f32, *backend, stream);
      const NormCase wide(config, norm, Dtype::bf16, 1, *backend, stream);
      NormLinear layer(norm.kind, *backend, shape_of(norm), config, {.output_dtype = Dtype::f32, .delayed = &of_f32});
      NormLinearForward forward = wide.forward();
      NormLinearBackward backward = wide.backward();
      forward.output = output;
      backward.grad_output = grad_output;
      layer.forward(forward, stream);
      layer.backward(backward, stream);
      BOOST_TEST((rounded(output, *backend, stream) == narrow.linear.output.bytes(stream)));
      BOOST_TEST((output.read(stream).values != narrow.linear.output.read(stream).values));
      for (const auto result : {&LinearCase::grad_input, &LinearCase::grad_weight, &LinearCase::grad_bias}) {
        BOOST_TEST(((wide.linear.*result).bytes(stream) == (narrow.linear.*result).bytes(stream)));
      }
      BOOST_TEST((wide.grad_gamma.bytes(stream) == narrow.grad_gamma.bytes(stream)));
      BOOST_TEST((wide.grad_beta.bytes(stream) == narrow.grad_beta.bytes(stream)));
      BOOST_TEST(refusal([&] { layer.forward(wide.forward(), stream); }) ==
                 "Float8Linear output: is bf16, but must be f32, the plan's dtype");

      const NormFunctions functions(
          {.linear = {.config = config, .shape = kLinear, .dtypes = {.input = Dtype::bf16, .output = Dtype::f32}},
           .norm = norm},
          of_f32, *backend, stream);
      const Bytes of_owner = output.bytes(stream);
      Saved<NormLinearPlan> kept(functions.plan, kShape.tokens, *backend, stream);
      const auto given = DeviceMatrix::poisoned(kShape.tokens, kShape.out_features, Dtype::f32, *backend, stream);
      forward.output = given;
      functions.forward(forward, &kept.saved, stream);
      functions.backward(backward, forward, kept.saved, stream);
      BOOST_TEST((given.bytes(stream) == of_owner));
      BOOST_TEST((wide.linear.grad_input.bytes(stream) == narrow.linear.grad_input.bytes(stream)));
    }
  }
}

BOOST_AUTO_TEST_CASE(mlps_have_an_output_of_another_dtype) {
  for (const LinearConfig& config : {tensorwise(), delayed(), rowwise(), rowwise_folded(), blockwise()}) {
    for (const MlpKind& kind : kMlps) {
      BOOST_TEST_CONTEXT(ingot::print(config) << ", " << kind.activation) {
        DelayedScaling of_bf16(*backend), of_f32(*backend);
        const MlpCase narrow(config, kind, Dtype::bf16, 1, *backend, stream);
        Mlp plain(*backend, kMlp, config, {.activation = kind.activation, .norm = kind.norm, .delayed = &of_bf16});
        plain.forward(narrow.forward(), stream);
        plain.backward(narrow.backward(), stream);

        const auto output = DeviceMatrix::poisoned(kShape.tokens, kMlp.features, Dtype::f32, *backend, stream);
        const DeviceMatrix grad_output(narrow.inputs[7].read(stream), Dtype::f32, *backend, stream);
        const MlpCase wide(config, kind, Dtype::bf16, 1, *backend, stream);
        MlpForward forward = wide.forward();
        MlpBackward backward = wide.backward();
        forward.output = output;
        backward.grad_output = grad_output;
        const auto step = [&](auto& mlp, const auto& renamed) {
          mlp.forward(renamed(forward), stream);
          mlp.backward(renamed(backward), stream);
        };
        if (std::string(kind.activation).find("up") != std::string::npos) {
          GatedMlp mlp(
              *backend, kMlp, config,
              {.activation = kind.activation, .norm = kind.norm, .output_dtype = Dtype::f32, .delayed = &of_f32});
          step(mlp, [](const auto& tensors) { return gated(tensors); });
        } else {
          Mlp mlp(*backend, kMlp, config,
                  {.activation = kind.activation, .norm = kind.norm, .output_dtype = Dtype::f32, .delayed = &of_f32});
          step(mlp, [](const auto& tensors) { return tensors; });
        }
        BOOST_TEST((rounded(output, *backend, stream) == narrow.results[0].bytes(stream)));
        BOOST_TEST((output.read(stream).values != narrow.results[0].read(stream).values));
        for (std::size_t i = 1; i < narrow.results.size(); ++i) {
          BOOST_TEST((wide.results[i].bytes(stream) == narrow.results[i].bytes(stream)), "result " << i);
        }
      }
    }
  }
}

// A GEMM in high precision has one dtype for both operands: the owners say so, as the functions do.
BOOST_AUTO_TEST_CASE(an_output_dtype_that_cannot_be_is_refused) {
  const std::string message =
      "Float8Linear dtypes: has bf16 for the input and f16 for the output, but the output GEMM is in high precision, "
      "which gives its operands' dtype or f32";
  BOOST_TEST(refusal([&] {
               NormLinear(NormKind::layer, *backend, {.linear = kLinear}, high_precision(),
                          {.output_dtype = Dtype::f16});
             }) == message);
  BOOST_TEST(refusal([&] { Mlp(*backend, kMlp, high_precision(), {.output_dtype = Dtype::f16}); }) == message);
  const NormCase device(high_precision(), kNorms[0], Dtype::bf16, 1, *backend, stream);
  const auto wide = DeviceMatrix::poisoned(kShape.tokens, kShape.out_features, Dtype::f32, *backend, stream);
  NormLinear layer(NormKind::layer, *backend, {.linear = kLinear}, high_precision(), {.output_dtype = Dtype::f32});
  NormLinearForward forward = device.forward();
  const DeviceMatrix bias(Random(1).normal(1, kShape.out_features, Dtype::f32), Dtype::f32, *backend, stream);
  forward.bias = bias;
  forward.output = wide;
  layer.forward(forward, stream);
  NormLinearBackward backward = device.backward();
  backward.grad_output = wide;
  BOOST_TEST(
      refusal([&] { layer.backward(backward, stream); }) ==
      "Float8Linear grad_input: is wanted, but its GEMM is in high precision, whose operands have one dtype, and "
      "grad_output is f32 with an input of bf16: choose a recipe that casts grad_output for it");
}

// An MLP is its parts in sequence: the norm's layer, the activation, the second layer.
BOOST_AUTO_TEST_CASE(an_mlp_is_its_parts_in_sequence) {
  for (const LinearConfig& config : every_config()) {
    for (const MlpKind& kind : kMlps) {
      BOOST_TEST_CONTEXT(ingot::print(config) << ", " << kind.activation << (kind.norm ? " after a norm" : "")) {
        const Dtype dtype = Dtype::bf16;
        const bool gated = kind.activation == std::string("silu(x) * up");
        const std::int64_t columns = gated ? 2 * kMlp.hidden : kMlp.hidden;
        DelayedScaling delayed(*backend), others(*backend);
        const MlpCase whole(config, kind, dtype, 1, *backend, stream);
        const MlpCase apart(config, kind, dtype, 1, *backend, stream);
        Mlp mlp(*backend, kMlp, config, {.activation = kind.activation, .norm = kind.norm, .delayed = &delayed});
        mlp.forward(whole.forward(), stream);
        mlp.backward(whole.backward(), stream);

        const auto empty = [&](std::int64_t cols) {
          return DeviceMatrix::poisoned(kShape.tokens, cols, dtype, *backend, stream);
        };
        const DeviceMatrix hidden = empty(columns), grad_hidden = empty(columns), grad_activation = empty(kMlp.hidden);
        const auto half = [&](const DeviceMatrix& of, bool second) {
          Tensor view = of;
          view.cols = kMlp.hidden;
          if (second) view.data = static_cast<std::byte*>(view.data) + kMlp.hidden * size_of(dtype);
          return view;
        };
        const MlpForward f = apart.forward();
        const MlpBackward b = apart.backward();
        const Pointwise activation = parse_pointwise(kind.activation);
        std::optional<NormLinear> norm_up;
        std::optional<Float8Linear> bare_up;
        const LinearShape up_shape{kMlp.features, columns, true};
        if (kind.norm) {
          norm_up.emplace(kind.norm->kind, *backend,
                          NormLinearShape{.linear = up_shape, .zero_centred = kind.norm->zero_centred}, config,
                          LinearOptions{.name = "up", .delayed = &others});
        } else {
          bare_up.emplace(*backend, up_shape, config, LinearOptions{.name = "up", .delayed = &others});
        }
        Float8Linear down(*backend, {kMlp.hidden, kMlp.features, true}, config,
                          {.name = "down", .fusion = {.prologue = activation}, .delayed = &others});
        if (norm_up) {
          norm_up->forward({.input = f.input,
                            .gamma = f.gamma,
                            .beta = f.beta,
                            .weight = f.up_weight,
                            .bias = f.up_bias,
                            .output = hidden},
                           stream);
        } else {
          bare_up->forward({.input = f.input, .weight = f.up_weight, .bias = f.up_bias, .output = hidden}, stream);
        }
        LinearForward to_down{
            .input = half(hidden, false), .weight = f.down_weight, .bias = f.down_bias, .output = f.output};
        if (gated) to_down.prologue_inputs[0] = half(hidden, true);
        down.forward(to_down, stream);
        down.backward({.grad_output = b.grad_output,
                       .grad_input = grad_activation,
                       .grad_weight = b.grad_down_weight,
                       .grad_bias = b.grad_down_bias},
                      stream);
        for (const char* const by : {"x", "up"}) {
          const bool second = std::string(by) == "up";
          if (second && !gated) continue;
          const Pointwise gradient = ingot::backward(activation, by);
          PointwiseTensors inputs{};
          for (std::size_t i = 0; i < gradient.inputs().size(); ++i) {
            inputs[i] = gradient.inputs()[i].name == "up" ? half(hidden, true) : Tensor(grad_activation);
          }
          backend->elementwise({.in = dtype, .pointwise = gradient},
                               {.input = half(hidden, false), .inputs = inputs, .output = half(grad_hidden, second)},
                               stream);
        }
        if (norm_up) {
          norm_up->backward({.grad_output = grad_hidden,
                             .grad_input = b.grad_input,
                             .grad_gamma = b.grad_gamma,
                             .grad_beta = b.grad_beta,
                             .grad_weight = b.grad_up_weight,
                             .grad_bias = b.grad_up_bias},
                            stream);
        } else {
          bare_up->backward({.grad_output = grad_hidden,
                             .grad_input = b.grad_input,
                             .grad_weight = b.grad_up_weight,
                             .grad_bias = b.grad_up_bias},
                            stream);
        }
        BOOST_TEST((whole.result_bytes(stream) == apart.result_bytes(stream)));
      }
    }
  }
}

// Where the first layer casts the activation's gradients with one dynamic scale, nothing looks for their amax again.
// (That the results are the same, the test before compares.)
BOOST_AUTO_TEST_CASE(the_amax_of_the_activations_gradients_is_found_as_they_are_written) {
  CountingBackend counting(*backend, &stream);
  Stream on(counting);
  int known = 0;
  counting.after_cast = [&](const CastSpec& spec, const CastTensors& t, Stream&) {
    if (t.known_amax.data == nullptr) return;
    ++known;
    BOOST_TEST(t.input.cols == 2 * kMlp.hidden);
    float amax = -1;
    backend->amax({.in = spec.in}, {.input = t.input, .amax = vector(&amax, Dtype::f32, 1, {})}, stream);
    BOOST_TEST(amax == *static_cast<const float*>(t.known_amax.data));
  };
  for (const Recipe& recipe : recipes()) {
    if (recipe.name == "delayed") continue;
    BOOST_TEST_CONTEXT(recipe.name) {
      const MlpKind kind = kMlps[3];
      const MlpCase tensors(recipe.config, kind, Dtype::bf16, 1, counting, on);
      Mlp mlp(counting, kMlp, recipe.config, {.activation = kind.activation, .norm = kind.norm});
      mlp.forward(tensors.forward(), on);
      known = 0;
      mlp.backward(tensors.backward(), on);
      const std::optional<Cast>& cast = recipe.config.grad_input.a;
      const bool tensorwise = cast && cast->granularity == kTensorwise && cast->scaling == Scaling::dynamic;
      BOOST_TEST(known == (tensorwise ? 1 : 0));
    }
  }
}

// By other names.
BOOST_AUTO_TEST_CASE(a_gated_mlp_is_an_mlp) {
  const MlpKind kind = kMlps[3];
  const MlpCase one(rowwise(), kind, Dtype::bf16, 1, *backend, stream);
  const MlpCase other(rowwise(), kind, Dtype::bf16, 1, *backend, stream);
  RMSNormMlp mlp(*backend, kMlp, rowwise(), {.activation = kind.activation, .norm = kind.norm});
  GatedMlp gated(*backend, kMlp, rowwise(), {.norm = kind.norm});
  mlp.forward(one.forward(), stream);
  mlp.backward(one.backward(), stream);
  const MlpForward f = other.forward();
  const MlpBackward b = other.backward();
  GatedMlpForward forward{.input = f.input,
                          .gamma = f.gamma,
                          .gate_up_weight = f.up_weight,
                          .gate_up_bias = f.up_bias,
                          .down_weight = f.down_weight,
                          .down_bias = f.down_bias,
                          .output = f.output,
                          .keep_for_backward = false};
  gated.forward(forward, stream);
  gated.recompute(forward, stream);
  gated.backward({.grad_output = b.grad_output,
                  .grad_input = b.grad_input,
                  .grad_gamma = b.grad_gamma,
                  .grad_gate_up_weight = b.grad_up_weight,
                  .grad_gate_up_bias = b.grad_up_bias,
                  .grad_down_weight = b.grad_down_weight,
                  .grad_down_bias = b.grad_down_bias},
                 stream);
  BOOST_TEST((one.result_bytes(stream) == other.result_bytes(stream)));
  BOOST_TEST(gated.saved_bytes() == mlp.saved_bytes());
  gated.release();
  BOOST_TEST(gated.saved_bytes() == 0U);
}

// What is not asked for is not computed: a backward for the second layer alone stops there.
BOOST_AUTO_TEST_CASE(a_backward_of_an_mlp_goes_as_far_as_gradients_are_wanted) {
  CountingBackend counting(*backend, &stream);
  Stream on(counting);
  const MlpKind kind = kMlps[3];
  const MlpCase tensors(tensorwise(), kind, Dtype::bf16, 1, counting, on);
  Mlp mlp(counting, kMlp, tensorwise(), {.activation = kind.activation, .norm = kind.norm});
  mlp.forward(tensors.forward(), on);
  mlp.backward(tensors.backward(), on);
  const Bytes expected = tensors.results[4].bytes(on);
  counting.calls.clear();
  mlp.backward({.grad_output = tensors.inputs[7], .grad_down_weight = tensors.results[4]}, on);
  BOOST_TEST((tensors.results[4].bytes(on) == expected));
  BOOST_TEST(counting.calls.size() == 2U);  // a cast and a GEMM
}

// Where gamma + 1 has no more digits than the dtype keeps, a zero-centred gamma and the plain one give the same bits.
BOOST_AUTO_TEST_CASE(a_zero_centred_gamma_is_a_gamma_less_one) {
  for (const Recipe& recipe : recipes()) {
    for (const NormKind kind : {NormKind::layer, NormKind::rms}) {
      for (const bool in_mlp : {false, true}) {
        BOOST_TEST_CONTEXT(recipe.name << (kind == NormKind::layer ? " layer" : " rms") << (in_mlp ? " MLP" : "")) {
          Matrix less = Random(4).normal(1, kShape.in_features, Dtype::bf16);
          for (double& value : less.values) value = std::round(value * 8) / 16;
          Matrix plain = less;
          for (double& value : plain.values) value += 1;
          std::vector<Bytes> results;
          for (const bool zero_centred : {false, true}) {
            const NormOptions norm{.kind = kind, .zero_centred = zero_centred};
            const DeviceMatrix gamma(zero_centred ? less : plain, Dtype::bf16, *backend, stream);
            DelayedScaling delayed(*backend);
            if (in_mlp) {
              const MlpCase device(recipe.config, {"gelu(x)", norm}, Dtype::bf16, 1, *backend, stream);
              Mlp mlp(*backend, kMlp, recipe.config, {.norm = norm, .delayed = &delayed});
              MlpForward forward = device.forward();
              forward.gamma = gamma;
              mlp.forward(forward, stream);
              mlp.backward(device.backward(), stream);
              results.push_back(device.result_bytes(stream));
            } else {
              const NormCase device(recipe.config, norm, Dtype::bf16, 1, *backend, stream);
              NormLinear layer(kind, *backend, shape_of(norm), recipe.config, {.delayed = &delayed});
              NormLinearForward forward = device.forward();
              forward.gamma = gamma;
              layer.forward(forward, stream);
              layer.backward(device.backward(), stream);
              results.push_back(device.result_bytes(stream));
            }
          }
          BOOST_TEST((results[0] == results[1]));
        }
      }
    }
  }
}

// ---- refusals --------------------------------------------------------------------------------------------------

BOOST_AUTO_TEST_CASE(memory_of_a_module_must_fit_its_plan) {
  const DelayedScaling none(*backend);
  const NormCase device(rowwise(), kNorms[0], Dtype::bf16, 1, *backend, stream);
  const NormFunctions functions({.linear = {.name = "wq", .config = rowwise(), .shape = kLinear}}, none, *backend,
                                stream);
  const NormLinearMemory told = functions.plan.memory(kShape.tokens);
  const PoisonedRegion saved(told.saved.bytes + 256, *backend, stream);
  const PoisonedRegion scratch(told.forward.bytes + told.backward.bytes, *backend, stream);
  const MemoryRegion whole = saved;
  LinearSaved kept{.memory = whole};
  const auto forward_with = [&](const MemoryRegion& keep, const MemoryRegion& use) {
    kept = {.memory = keep};
    return refusal([&] {
      norm_linear_forward(functions.plan, *backend, functions.tensors(device.forward(), &kept, use),
                          {.stream = stream});
    });
  };
  const std::size_t needed = told.saved.bytes;
  BOOST_TEST(forward_with({}, scratch) == "norm linear \"wq\" saved: is missing; it must have " +
                                              std::to_string(needed) +
                                              " bytes: the plan says how much memory a call needs");
  BOOST_TEST(forward_with({whole.data, needed - 1}, scratch) ==
             "norm linear \"wq\" saved: has " + std::to_string(needed - 1) + " bytes, but needs " +
                 std::to_string(needed) + ": the plan says how much memory a call needs");
  BOOST_TEST(forward_with({static_cast<std::byte*>(whole.data) + 16, needed}, scratch)
                 .ends_with("but must begin at a multiple of 256 bytes"));
  BOOST_TEST(forward_with(whole, {}).starts_with("norm linear \"wq\" scratch: is missing; it must have "));
  BOOST_TEST(forward_with(scratch, scratch) ==
             "norm linear \"wq\" saved: overlaps the scratch: give it separate memory");
  NormLinearForward over = device.forward();
  kept = {.memory = whole};
  over.output.data = whole.data;
  BOOST_TEST(refusal([&] {
               norm_linear_forward(functions.plan, *backend, functions.tensors(over, &kept, scratch),
                                   {.stream = stream});
             }) == "norm linear \"wq\" saved: overlaps output: give it separate memory");
  const auto backward_with = [&](const MemoryRegion& use) {
    return refusal([&] {
      norm_linear_backward(functions.plan, *backend, functions.tensors(device.backward(), device.forward(), kept, use),
                           {.stream = stream});
    });
  };
  BOOST_TEST(backward_with(scratch) == "norm linear \"wq\" backward: has no forward() before it: run forward() first");
  kept = {.memory = whole};
  norm_linear_forward(functions.plan, *backend, functions.tensors(device.forward(), &kept, scratch),
                      {.stream = stream});
  const MemoryRegion of_scratch = scratch;
  BOOST_TEST(backward_with({of_scratch.data, told.backward.bytes - 1}).starts_with("norm linear \"wq\" scratch: has "));
  kept.memory.bytes = 1;
  BOOST_TEST(backward_with(scratch).starts_with("norm linear \"wq\" saved: has 1 byte, but needs "));

  const MlpCase mlp_device(rowwise(), kMlps[1], Dtype::bf16, 1, *backend, stream);
  const MlpFunctions mlp(plan_options(rowwise(), kMlps[1]), none, *backend, stream);
  const std::size_t mlp_bytes = mlp.plan.saved_memory(kShape.tokens).bytes;
  const PoisonedRegion mlp_saved(mlp_bytes, *backend, stream);
  LinearSaved short_by_one{.memory = {MemoryRegion(mlp_saved).data, mlp_bytes - 1}};
  BOOST_TEST(refusal([&] { mlp.forward(mlp_device.forward(), &short_by_one, stream); }) ==
             "MLP \"mlp\" saved: has " + std::to_string(mlp_bytes - 1) + " bytes, but needs " +
                 std::to_string(mlp_bytes) + ": the plan says how much memory a call needs");
}

BOOST_AUTO_TEST_CASE(a_module_takes_what_its_plan_was_made_for) {
  const DelayedScaling none(*backend);
  const NormCase device(rowwise(), kNorms[0], Dtype::bf16, 1, *backend, stream);
  const NormFunctions functions({.linear = {.name = "wq", .config = rowwise(), .shape = kLinear}}, none, *backend,
                                stream);
  const NormFunctions f16({.linear = {.name = "wq", .config = rowwise(), .shape = kLinear, .dtypes = {Dtype::f16}}},
                          none, *backend, stream);
  const NormFunctions wide({.linear = {.name = "wq", .config = rowwise(), .shape = {34, 24, true}}}, none, *backend,
                           stream);
  const NormFunctions rms({.linear = {.name = "wq", .config = rowwise(), .shape = kLinear}, .norm = kNorms[2]}, none,
                          *backend, stream);
  const auto forward_of = [&](const NormFunctions& of, const NormLinearForward& tensors) {
    return refusal([&] { of.forward(tensors, nullptr, stream); });
  };
  BOOST_TEST(forward_of(f16, device.forward()) == "linear \"wq\" input: is bf16, but must be f16, the plan's dtype");
  BOOST_TEST(forward_of(wide, device.forward()) ==
             "linear \"wq\" input: is bf16[9, 33] on cpu, but must have 34 columns = in_features");
  BOOST_TEST(forward_of(rms, device.forward()) == "norm linear \"wq\" beta: is given, but an RMSNorm has none");
  const NormFunctions high({.linear = {.name = "wq", .config = high_precision(), .shape = kLinear}}, none, *backend,
                           stream);
  NormLinearForward without = device.forward();
  without.gamma = {};
  BOOST_TEST(forward_of(high, without).starts_with("norm linear \"wq\" norm gamma: "));

  Saved<NormLinearPlan> kept(functions.plan, kShape.tokens, *backend, stream);
  functions.forward(device.forward(), &kept.saved, stream);
  BOOST_TEST(refusal([&] { rms.backward(device.backward(), device.forward(), kept.saved, stream); }) ==
             "norm linear \"wq\" saved: was written by a forward of another plan: give this backward what its own "
             "forward kept");
  NormLinearForward forgotten = device.forward();
  forgotten.input = {};
  BOOST_TEST(refusal([&] { functions.backward(device.backward(), forgotten, kept.saved, stream); }) ==
             "norm linear \"wq\" input: is missing; backward reads it again: give it what its forward had");
  forgotten = device.forward();
  forgotten.gamma = {};
  BOOST_TEST(refusal([&] { functions.backward(device.backward(), forgotten, kept.saved, stream); }) ==
             "norm linear \"wq\" gamma: is missing; backward reads it again: give it what its forward had");
  const PoisonedRegion scratch(functions.plan.forward_scratch(kShape.tokens).bytes, *backend, stream);
  BOOST_TEST(refusal([&] {
               norm_linear_recompute(functions.plan, *backend, functions.tensors(device.forward(), nullptr, scratch),
                                     {.stream = stream});
             }) == "norm linear \"wq\" saved: is missing; it is what recompute makes");

  const MlpCase mlp_device(rowwise(), kMlps[0], Dtype::bf16, 1, *backend, stream);
  const MlpFunctions mlp(plan_options(rowwise(), kMlps[0]), none, *backend, stream);
  const MlpFunctions gated(plan_options(rowwise(), kMlps[1]), none, *backend, stream);
  Saved<MlpPlan> mlp_kept(mlp.plan, kShape.tokens, *backend, stream);
  mlp.forward(mlp_device.forward(), &mlp_kept.saved, stream);
  BOOST_TEST(
      refusal([&] { gated.backward(mlp_device.backward(), mlp_device.forward(), mlp_kept.saved, stream); }) ==
      "MLP \"mlp\" saved: was written by a forward of another plan: give this backward what its own forward kept");
  BOOST_TEST(
      refusal([&] { gated.forward(mlp_device.forward(), nullptr, stream); }) ==
      "linear \"mlp.gate_up\" weight: is bf16[24, 33] on cpu, but must be [48, 33] = [out_features, in_features]");
  MlpBackward same = mlp_device.backward();
  same.grad_down_bias = same.grad_input;
  same.grad_down_bias.rows = 1;
  BOOST_TEST(refusal([&] { mlp.backward(same, mlp_device.forward(), mlp_kept.saved, stream); }) ==
             "MLP \"mlp\" grad_down_bias: overlaps grad_input: give it separate memory");
  BOOST_TEST(refusal([&] {
               mlp_recompute(mlp.plan, *backend, mlp.tensors(mlp_device.forward(), nullptr, scratch),
                             {.stream = stream});
             }) == "MLP \"mlp\" saved: is missing; it is what recompute makes");
}

BOOST_AUTO_TEST_CASE(what_is_no_module_is_refused) {
  BOOST_TEST(
      refusal([&] { mlp_plan({.name = "m", .shape = kMlp, .activation = "x * gate"}); }, ErrorCode::invalid_spec) ==
      "MLP \"m\" activation: \"x * gate\" must be an expression of x, such as gelu(x), or of x, the gate, and of "
      "the matrix up, such as silu(x) * up");
  BOOST_TEST(refusal([&] { mlp_plan({.name = "m", .shape = {.features = 8, .hidden = -1}}); }) ==
             "MLP \"m\" hidden: is -1, but must be 0 or more");
  BOOST_TEST(refusal([&] {
               norm_linear_plan({.linear = {.name = "wq", .fusion = {.prologue = parse_pointwise("x * 2")}}});
             }) ==
             "norm linear \"wq\" fusion: has a prologue, but the norm is the prologue of this layer: leave it empty");
  BOOST_TEST(refusal([&] {
               norm_linear_plan({.linear = {.name = "wq"}, .norm = NormOptions{.affine = false, .zero_centred = true}});
             }) == "norm linear \"wq\" zero_centred: is set, but the norm is made without gamma: set affine too");
  BOOST_TEST(refusal([&] { norm_linear_plan({.linear = {.name = "wq", .shape = kLinear}}).memory(-1); }) ==
             "linear \"wq\" tokens: is -1, but must be 0 or more");
  const MlpKind kind = kMlps[0];
  const MlpCase device(tensorwise(), kind, Dtype::bf16, 1, *backend, stream);
  Mlp mlp(*backend, kMlp, tensorwise());
  MlpForward forward = device.forward();
  forward.gamma = device.inputs[5];
  BOOST_TEST(refusal([&] { mlp.forward(forward, stream); }) ==
             "Mlp gamma: or beta is given, but the MLP has no norm in front: set norm in its options");
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE_END()
