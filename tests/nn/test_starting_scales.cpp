// Delayed scales that start with the data of their casts (LinearScale::start), on the CPU reference: the codes, and so
// all results, of dynamic scaling, the maxima of what was cast, and the refusal of too little memory.
#include <boost/test/unit_test.hpp>

#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ingot/nn/modules/delayed_scaling.h"
#include "ingot/nn/modules/float8_linear.h"
#include "ingot/nn/recipe/recipes.h"
#include "ingot/runtime/context/cpu_backend.h"
#include "ingot/runtime/util/error.h"
#include "nn/module_case.h"
#include "support/expect_error.h"

BOOST_AUTO_TEST_SUITE(test_starting_scales)

using namespace ingot;
using namespace ingot::test;

namespace {

// Three slots for each layer, in the order of Part.
void add_slots(DelayedScaling& scaling, int layers) {
  for (int layer = 0; layer < layers; ++layer) {
    for (const char* tensor : {"input", "weight"}) {
      scaling.add(std::to_string(layer) + tensor, Dtype::e4m3fn);
    }
    scaling.add(std::to_string(layer) + "grad_output", Dtype::e5m2);
  }
}

struct Fixture {
  std::unique_ptr<Backend> backend = make_cpu_backend(1);
  Stream stream{*backend};
  std::vector<PoisonedRegion> memory{};

  void start(const LinearPlan& plan, Part& part) {
    const auto start_one = [&](LinearScale& scale, const std::optional<Cast>& cast) {
      memory.emplace_back(kStartingScaleBytes, *backend, stream);
      scale = starting_scale(*backend, *cast, scale.amax, memory.back(), stream);
    };
    start_one(part.scales.input, plan.scaling.input);
    start_one(part.scales.weight, plan.scaling.weight);
    start_one(part.scales.grad_output, plan.scaling.grad_output);
  }

  std::vector<float> scales_of(const DelayedScaling& scaling) {
    std::vector<float> scales(static_cast<std::size_t>(scaling.size()));
    backend->device_api().copy_to_host(scales.data(), scaling.scale(0).data, scales.size() * sizeof(float), stream);
    return scales;
  }
  float scale_of(const LinearScale& scale) {
    float value = 0;
    backend->device_api().copy_to_host(&value, scale.scale.data, sizeof(value), stream);
    return value;
  }

  template <class SavedOf, class Functions, class Case>
  Bytes step(const Functions& functions, const Case& of) {
    SavedOf kept(functions.plan, kShape.tokens, *backend, stream);
    functions.forward(of.forward(), &kept.saved, stream);
    functions.backward(of.backward(), of.forward(), kept.saved, stream);
    return of.result_bytes(stream);
  }
};

}  // namespace

BOOST_FIXTURE_TEST_SUITE(starting_scales, Fixture)

BOOST_AUTO_TEST_CASE(give_a_norm_and_its_layer_the_bits_of_dynamic_scaling) {
  for (const NormOptions& norm : kNorms) {
    for (const Dtype dtype : {Dtype::f32, Dtype::bf16}) {
      for (const char* const epilogue : {"", "silu(x)"}) {
        BOOST_TEST_CONTEXT(print(norm) << ", " << name(dtype) << " [" << epilogue << "]") {
          LinearFusion fusion;
          if (*epilogue != 0) fusion.epilogue = parse_pointwise(epilogue);
          const auto options = [&](const LinearConfig& config) {
            return NormLinearPlanOptions{
                .linear = {.config = config, .shape = kLinear, .dtypes = {dtype}, .fusion = fusion}, .norm = norm};
          };
          using Kept = Saved<NormLinearPlan>;
          const DelayedScaling none(*backend);
          const NormFunctions dynamic(options(tensorwise()), none, *backend, stream);
          const Bytes expected = step<Kept>(dynamic, NormCase(tensorwise(), norm, dtype, 1, *backend, stream));

          DelayedScaling scaling(*backend);
          add_slots(scaling, 1);
          scaling.allocate(stream);
          NormFunctions starting(options(delayed()), scaling, *backend, stream);
          const LinearScales of_steps = starting.part.scales;
          start(starting.plan.linear, starting.part);
          BOOST_TEST((step<Kept>(starting, NormCase(delayed(), norm, dtype, 1, *backend, stream)) == expected));

          // The maxima that the casts noted make the scales that they started with.
          scaling.sync_amax_history(stream);
          const std::vector<float> scales = scales_of(scaling);
          BOOST_TEST(scales[0] == scale_of(starting.part.scales.input));
          BOOST_TEST(scales[1] == scale_of(starting.part.scales.weight));
          BOOST_TEST(scales[2] == scale_of(starting.part.scales.grad_output));
          starting.part.scales = of_steps;
          BOOST_TEST((step<Kept>(starting, NormCase(delayed(), norm, dtype, 1, *backend, stream)) == expected));
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(give_an_mlp_the_bits_of_dynamic_scaling) {
  for (const MlpKind& kind : kMlps) {
    for (const Dtype dtype : {Dtype::f32, Dtype::bf16}) {
      BOOST_TEST_CONTEXT(kind.activation << (kind.norm ? " after a norm, " : ", ") << name(dtype)) {
        using Kept = Saved<MlpPlan>;
        const DelayedScaling none(*backend);
        const MlpFunctions dynamic(plan_options(tensorwise(), kind, dtype), none, *backend, stream);
        const Bytes expected = step<Kept>(dynamic, MlpCase(tensorwise(), kind, dtype, 1, *backend, stream));

        DelayedScaling scaling(*backend);
        add_slots(scaling, 2);
        scaling.allocate(stream);
        MlpFunctions starting(plan_options(delayed(), kind, dtype), scaling, *backend, stream);
        const LinearScales of_up = starting.up.scales;
        const LinearScales of_down = starting.down.scales;
        start(starting.plan.up.linear, starting.up);
        start(starting.plan.down, starting.down);
        BOOST_TEST((step<Kept>(starting, MlpCase(delayed(), kind, dtype, 1, *backend, stream)) == expected));

        scaling.sync_amax_history(stream);
        starting.up.scales = of_up;
        starting.down.scales = of_down;
        BOOST_TEST((step<Kept>(starting, MlpCase(delayed(), kind, dtype, 1, *backend, stream)) == expected));
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(give_owners_the_bits_of_dynamic_scaling) {
  const auto check = [&](const auto& step) {
    DelayedScaling scaling(*backend, {.finite = true});
    BOOST_TEST((step(delayed(), scaling) == step(tensorwise(), scaling)));
    BOOST_TEST(scaling.size() > 0);
    for (int slot = 0; slot < scaling.size(); ++slot) BOOST_TEST(!scaling.needs_start(slot));
    scaling.sync_amax_history(stream);
    for (int slot = 0; slot < scaling.size(); ++slot) BOOST_TEST(!scaling.needs_start(slot));
  };
  for (const MlpKind& kind : kMlps) {
    check([&](const LinearConfig& config, DelayedScaling& scaling) {
      const MlpCase of(config, kind, Dtype::bf16, 1, *backend, stream);
      Mlp mlp(*backend, kMlp, config, {.activation = kind.activation, .norm = kind.norm, .delayed = &scaling});
      mlp.forward(of.forward(), stream);
      mlp.backward(of.backward(), stream);
      return of.result_bytes(stream);
    });
  }
  for (const NormOptions& norm : kNorms) {
    check([&](const LinearConfig& config, DelayedScaling& scaling) {
      const NormCase of(config, norm, Dtype::bf16, 1, *backend, stream);
      LinearFusion fusion;
      fusion.epilogue = parse_pointwise("silu(x)");
      NormLinear layer(norm.kind, *backend, shape_of(norm), config, {.fusion = fusion, .delayed = &scaling});
      layer.forward(of.forward(), stream);
      layer.backward(of.backward(), stream);
      return of.result_bytes(stream);
    });
  }
}

// What LinearScale::start knows of earlier steps goes on, whatever is cast; what is no scale is made.
BOOST_AUTO_TEST_CASE(go_on_with_the_scales_of_earlier_steps) {
  const LinearPlan plan = linear_plan({.config = delayed(), .shape = kLinear});
  const DeviceMatrix weight(Random(7).weight(kLinear.out_features, kLinear.in_features, Dtype::bf16), Dtype::bf16,
                            *backend, stream);
  const auto scale_with = [&](float known) {
    DelayedScaling scaling(*backend);
    add_slots(scaling, 1);
    scaling.allocate(stream);
    int slot = 0;
    Part part(plan, slot, scaling, *backend, stream);
    start(plan, part);
    const Buffer of_known(*backend, sizeof(float));
    backend->device_api().fill(static_cast<float*>(of_known.data()), known, 1, stream);
    if (known != 0) part.scales.weight.start->known = vector(of_known.data(), Dtype::f32, 1, backend->device());
    cast_weight(plan, *backend, {.weight = weight, .into = part.weight, .scale = part.scales.weight},
                {.stream = stream});
    return scale_of(part.scales.weight);
  };
  const float made = scale_with(0);
  BOOST_TEST(made != 1.0F);
  BOOST_TEST(scale_with(2.5F) == 2.5F);
  for (const float none : {1.0F, -1.0F, std::numeric_limits<float>::infinity()}) BOOST_TEST(scale_with(none) == made);
}

// Data of zeros: the scale stays 1, and nothing becomes NaN.
BOOST_AUTO_TEST_CASE(stay_1_for_zeros) {
  DelayedScaling scaling(*backend);
  add_slots(scaling, 1);
  scaling.allocate(stream);
  const LinearPlan plan = linear_plan({.config = delayed(), .shape = kLinear});
  int slot = 0;
  Part part(plan, slot, scaling, *backend, stream);
  start(plan, part);
  const DeviceMatrix weight(zeros(kLinear.out_features, kLinear.in_features), Dtype::bf16, *backend, stream);
  cast_weight(plan, *backend, {.weight = weight, .into = part.weight, .scale = part.scales.weight}, {.stream = stream});
  BOOST_TEST(scale_of(part.scales.weight) == 1.0F);
}

// A layer whose weight is zeros in its first step casts that of the second as dynamic scaling does.
BOOST_AUTO_TEST_CASE(a_layer_whose_weight_begins_at_zero) {
  DelayedScaling scaling(*backend, {.finite = true});
  Float8Linear layer(*backend, kLinear, delayed(), {.name = "zero", .delayed = &scaling});
  Float8Linear dynamic(*backend, kLinear, tensorwise(), {.name = "dynamic"});
  const auto dtype = Dtype::bf16;
  const DeviceMatrix input(Random(3).normal(kShape.tokens, kLinear.in_features, dtype), dtype, *backend, stream);
  const DeviceMatrix none(zeros(kLinear.out_features, kLinear.in_features), dtype, *backend, stream);
  Matrix small = Random(4).weight(kLinear.out_features, kLinear.in_features, dtype);
  for (double& value : small.values) value *= 0x1p-14;
  const DeviceMatrix bias(zeros(1, kLinear.out_features), dtype, *backend, stream);
  const DeviceMatrix weight(small, dtype, *backend, stream);
  const auto output_of = [&](Float8Linear& of, const DeviceMatrix& with) {
    const DeviceMatrix output = DeviceMatrix::poisoned(kShape.tokens, kLinear.out_features, dtype, *backend, stream);
    of.forward({.input = input, .weight = with, .bias = bias, .output = output, .keep_for_backward = false}, stream);
    return output.read(stream).values;
  };
  output_of(layer, none);
  scaling.sync_amax_history(stream);
  BOOST_TEST((output_of(layer, weight) == output_of(dynamic, weight)));
  scaling.sync_amax_history(stream);
  BOOST_TEST(!scaling.needs_start(1));
}

BOOST_AUTO_TEST_CASE(refuse_too_little_memory) {
  const PoisonedRegion small(kStartingScaleBytes - 1, *backend, stream);
  const auto act = [&] { starting_scale(*backend, {.dtype = Dtype::e4m3fn}, {}, small, stream); };
  BOOST_TEST(error_of(act, ErrorCode::invalid_argument) == "starting scale into: has 19 bytes, but must have 20");
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE_END()
