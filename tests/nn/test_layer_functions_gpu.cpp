// The functions of layers on CUDA: the bits of the classes, in any order of forwards and backwards, and in graphs that
// run side by side.
#include "support/gpu_test.h"

#include <array>
#include <string>
#include <vector>

#include "ingot/nn/linear/float8_tensor.h"
#include "ingot/nn/recipe/recipes.h"
#include "ingot/runtime/context/context.h"
#include "ingot/runtime/context/cpu_backend.h"
#include "ingot/runtime/cuda/graph.h"
#include "nn/module_case.h"

namespace ingot::test {
BOOST_AUTO_TEST_SUITE(test_layer_functions_gpu)

namespace {

Context& context() {
  static Context one(cuda_options());
  return one;
}

struct Fixture {
  Backend& backend = context().backend();
  Stream stream{backend};
};

constexpr CaseShape kLarge{64, 96, 80};
constexpr LinearShape kLargeLinear{kLarge.in_features, kLarge.out_features, true};

LinearCase linear_case(const LinearConfig& config, Dtype dtype, unsigned seed, Backend& backend, Stream& stream) {
  const Dtype bias = bias_dtype_of(config, dtype);
  return {make_inputs(kLarge, dtype, bias, seed), dtype, bias, backend, stream};
}

}  // namespace

BOOST_FIXTURE_TEST_SUITE(layer_functions, Fixture)

BOOST_AUTO_TEST_CASE(of_linear_layers_give_the_classes_bits) {
  struct Kind {
    Dtype dtype;
    const char* prologue;
    const char* epilogue;
  };
  constexpr std::array kKinds{Kind{Dtype::bf16, "", ""}, Kind{Dtype::f16, "", ""}, Kind{Dtype::f32, "", ""},
                              Kind{Dtype::bf16, "tanh(x)", ""}, Kind{Dtype::bf16, "", "silu(x)"}};
  for (const Recipe& recipe : recipes()) {
    for (const auto& [dtype, prologue, epilogue] : kKinds) {
      BOOST_TEST_CONTEXT(recipe.name << ", " << name(dtype) << " [" << prologue << "] [" << epilogue << "]") {
        LinearFusion fusion;
        if (*prologue != 0) fusion.prologue = parse_pointwise(prologue);
        if (*epilogue != 0) fusion.epilogue = parse_pointwise(epilogue);
        LinearCase device = linear_case(recipe.config, dtype, 1, backend, stream);
        DelayedScaling delayed(backend);
        Float8Linear layer(backend, kLargeLinear, recipe.config, {.fusion = fusion, .delayed = &delayed});
        layer.forward(device.forward(true), stream);
        layer.backward(device.backward(true), stream);
        const Bytes expected = device.result_bytes(stream);
        FunctionLayer functions({.config = recipe.config, .shape = kLargeLinear, .dtypes = {dtype}, .fusion = fusion},
                                backend, stream);
        functions.use(delayed);
        FunctionSaved kept(functions.plan, kLarge.tokens, backend, stream);
        device.poison_results(stream);
        functions.forward(device.forward(true), &kept.saved, stream, true);
        functions.backward(device.backward(true), device.forward(true), kept.saved, stream);
        BOOST_TEST((device.result_bytes(stream) == expected));
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(of_modules_give_the_classes_bits) {
  for (const Recipe& recipe : recipes()) {
    for (const NormOptions& norm : {kNorms[0], kNorms[5]}) {
      BOOST_TEST_CONTEXT(recipe.name << ", " << print(norm)) {
        DelayedScaling delayed(backend);
        const NormCase owned(recipe.config, norm, Dtype::bf16, 1, backend, stream);
        NormLinear layer(norm.kind, backend, shape_of(norm), recipe.config, {.delayed = &delayed});
        layer.forward(owned.forward(), stream);
        layer.backward(owned.backward(), stream);
        const NormCase given(recipe.config, norm, Dtype::bf16, 1, backend, stream);
        const NormFunctions functions({.linear = {.config = recipe.config, .shape = kLinear}, .norm = norm}, delayed,
                                      backend, stream);
        Saved<NormLinearPlan> kept(functions.plan, kShape.tokens, backend, stream);
        functions.forward(given.forward(), &kept.saved, stream);
        functions.backward(given.backward(), given.forward(), kept.saved, stream);
        BOOST_TEST((given.result_bytes(stream) == owned.result_bytes(stream)));
      }
    }
    for (const MlpKind& kind : {kMlps[0], kMlps[3]}) {
      BOOST_TEST_CONTEXT(recipe.name << ", " << kind.activation) {
        DelayedScaling delayed(backend);
        const MlpCase owned(recipe.config, kind, Dtype::bf16, 1, backend, stream);
        Mlp mlp(backend, kMlp, recipe.config, {.activation = kind.activation, .norm = kind.norm, .delayed = &delayed});
        mlp.forward(owned.forward(), stream);
        mlp.backward(owned.backward(), stream);
        const MlpCase given(recipe.config, kind, Dtype::bf16, 1, backend, stream);
        const MlpFunctions functions(plan_options(recipe.config, kind), delayed, backend, stream);
        Saved<MlpPlan> kept(functions.plan, kShape.tokens, backend, stream);
        functions.forward(given.forward(), &kept.saved, stream);
        functions.backward(given.backward(), given.forward(), kept.saved, stream);
        BOOST_TEST((given.result_bytes(stream) == owned.result_bytes(stream)));
      }
    }
  }
}

// Three forwards before three backwards in another order, then a graph of each step, replayed on two streams at once.
BOOST_AUTO_TEST_CASE(in_any_order_and_in_graphs_side_by_side) {
  for (const LinearConfig& config : {tensorwise(), rowwise(), blockwise()}) {
    BOOST_TEST_CONTEXT(ingot::print(config)) {
      FunctionLayer functions({.config = config, .shape = kLargeLinear}, backend, stream);
      std::vector<LinearCase> cases;
      std::vector<FunctionSaved> kept;
      std::vector<Bytes> expected;
      for (unsigned i = 0; i < 3; ++i) {
        cases.push_back(linear_case(config, Dtype::bf16, i + 1, backend, stream));
        kept.emplace_back(functions.plan, kLarge.tokens, backend, stream);
      }
      functions.cast_weight(cases[0].weight, stream);
      const PoisonedRegion scratch(functions.plan.forward_scratch(kLarge.tokens).bytes, backend, stream);
      const PoisonedRegion back(functions.plan.backward_scratch(kLarge.tokens).bytes, backend, stream);
      const auto forward_of = [&](std::size_t i) {
        LinearForward tensors = cases[i].forward(true);
        tensors.weight = cases[0].weight;
        return tensors;
      };
      const auto forward = [&](std::size_t i, Stream& on, const MemoryRegion& memory) {
        linear_forward(functions.plan, backend, functions.forward_tensors(forward_of(i), &kept[i].saved, memory),
                       {.stream = on});
      };
      const auto backward = [&](std::size_t i, Stream& on, const MemoryRegion& memory) {
        linear_backward(functions.plan, backend,
                        functions.backward_tensors(cases[i].backward(true), forward_of(i), kept[i].saved, memory),
                        {.stream = on});
      };
      for (std::size_t i = 0; i < 3; ++i) {
        forward(i, stream, scratch);
        backward(i, stream, back);
        expected.push_back(cases[i].result_bytes(stream));
        cases[i].poison_results(stream);
      }
      for (std::size_t i = 0; i < 3; ++i) forward(i, stream, scratch);
      for (const std::size_t i : {1, 2, 0}) backward(i, stream, back);
      for (std::size_t i = 0; i < 3; ++i) BOOST_TEST((cases[i].result_bytes(stream) == expected[i]), i);

      const PoisonedRegion other(functions.plan.forward_scratch(kLarge.tokens).bytes, backend, stream);
      const PoisonedRegion other_back(functions.plan.backward_scratch(kLarge.tokens).bytes, backend, stream);
      Graph first(stream, [&] {
        forward(0, stream, scratch);
        backward(0, stream, back);
      });
      Graph second(stream, [&] {
        forward(1, stream, other);
        backward(1, stream, other_back);
      });
      Stream beside(backend);
      for (int round = 0; round < 20; ++round) {
        cases[0].poison_results(stream);
        cases[1].poison_results(stream);
        beside.wait_for(stream);
        for (int i = 0; i < 10; ++i) {
          first.replay(stream);
          second.replay(beside);
        }
        stream.wait_for(beside);
        BOOST_TEST((cases[0].result_bytes(stream) == expected[0]));
        BOOST_TEST((cases[1].result_bytes(stream) == expected[1]));
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(scales_of_casts_have_the_cpus_bits) {
  const std::unique_ptr<Backend> cpu = make_cpu_backend();
  Stream on_cpu(*cpu);
  const Matrix values = Random(1).normal(70, 130, Dtype::bf16);
  for (const ScaleGranularity scale : {kTensorwise, kRowwise, kColumnwise}) {
    for (const bool pow2 : {false, true}) {
      const CastSpec spec{.scale = scale, .pow2 = pow2};
      BOOST_TEST_CONTEXT(ingot::print(spec)) {
        const auto scales = [&](Backend& of, Stream& on) {
          const DeviceMatrix input(values, Dtype::bf16, of, on);
          const auto made = DeviceMatrix::poisoned(1, scale_count(scale, values.rows, values.cols), Dtype::f32, of, on);
          write_scales(spec, input, made, of, on);
          return made.bytes(on);
        };
        BOOST_TEST((scales(backend, stream) == scales(*cpu, on_cpu)));
      }
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ingot::test
