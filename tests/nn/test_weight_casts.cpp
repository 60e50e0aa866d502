// All weights of a model cast together: each layer's bits are those of a layer that casts its own, and no layer casts
// one itself; the functions' codes are cast_weight()'s; what is refused.
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "ingot/codegen/types/target.h"
#include "ingot/nn/modules/gated_mlp.h"
#include "ingot/nn/modules/mlp.h"
#include "ingot/nn/modules/norm_linear.h"
#include "ingot/nn/modules/weight_casts.h"
#include "ingot/runtime/context/cpu_backend.h"
#include "ingot/runtime/context/dry_run.h"
#include "ingot/runtime/cuda/graph.h"
#include "nn/counting_backend.h"
#include "nn/function_case.h"
#include "support/expect_error.h"
#include "support/function_ref.h"

BOOST_AUTO_TEST_SUITE(test_weight_casts)

using namespace ingot;
using namespace ingot::test;

namespace {

constexpr std::int64_t kTokens = 9, kIn = 32, kHidden = 48;

// A model with a layer of each class, its weights and its gradients.
struct Layers {
  Layers(const LinearConfig& config, Backend& on, Stream& with, std::optional<Dtype> weight_dtype = {})
      : backend(&on),
        stream(&with),
        delayed(on),
        plain(on, {.in_features = kIn, .out_features = kIn}, config,
              {.name = "plain", .weight_dtype = weight_dtype, .delayed = &delayed}),
        normed(NormKind::rms, on, {.linear = {.in_features = kIn, .out_features = kIn}, .affine = false}, config,
               {.name = "normed", .weight_dtype = weight_dtype, .delayed = &delayed}),
        mlp(on, {.features = kIn, .hidden = kHidden}, config, {.weight_dtype = weight_dtype, .delayed = &delayed}) {
    const Dtype own = weight_dtype.value_or(Dtype::bf16);
    Random random(5);
    x = make(random, kTokens, kIn, Dtype::bf16);
    grad = make(random, kTokens, kIn, Dtype::bf16);
    weights.push_back(make(random, kIn, kIn, own));
    weights.push_back(make(random, kIn, kIn, own));
    weights.push_back(make(random, kHidden, kIn, own));
    weights.push_back(make(random, kIn, kHidden, own));
    for (const auto& weight : weights) {
      grads.push_back(empty(weight->view().rows, weight->view().cols));
    }
    for (auto* values : {&y1, &y2, &y3, &g1, &g2, &g3}) *values = empty(kTokens, kIn);
  }

  std::unique_ptr<DeviceMatrix> make(Random& random, std::int64_t rows, std::int64_t cols, Dtype dtype) const {
    return std::make_unique<DeviceMatrix>(random.normal(rows, cols, dtype), dtype, *backend, *stream);
  }
  std::unique_ptr<DeviceMatrix> empty(std::int64_t rows, std::int64_t cols) const {
    return std::make_unique<DeviceMatrix>(DeviceMatrix::poisoned(rows, cols, Dtype::bf16, *backend, *stream));
  }

  void add_to(WeightCasts& casts) {
    casts.add(plain, *weights[0], *stream);
    casts.add(normed, *weights[1], *stream);
    casts.add(mlp, *weights[2], *weights[3], *stream);
  }

  void step() {
    plain.forward({.input = *x, .weight = *weights[0], .output = *y1}, *stream);
    normed.forward({.input = *y1, .weight = *weights[1], .output = *y2}, *stream);
    mlp.forward({.input = *y2, .up_weight = *weights[2], .down_weight = *weights[3], .output = *y3}, *stream);
    mlp.backward({.grad_output = *grad, .grad_input = *g3, .grad_up_weight = *grads[2], .grad_down_weight = *grads[3]},
                 *stream);
    normed.backward({.grad_output = *g3, .grad_input = *g2, .grad_weight = *grads[1]}, *stream);
    plain.backward({.grad_output = *g2, .grad_input = *g1, .grad_weight = *grads[0]}, *stream);
  }

  // Stands in for an optimizer.
  void change_weights(unsigned seed) {
    Random random(seed);
    for (const auto& weight : weights) {
      const Tensor& view = weight->view();
      weight->write(random.normal(view.rows, view.cols, view.dtype), *stream);
    }
    delayed.sync_amax_history(*stream);
  }

  std::vector<std::uint8_t> results() {
    std::vector<std::uint8_t> all;
    for (const auto* values : {&y1, &y2, &y3, &g1, &g2, &g3}) {
      const auto bytes = (*values)->bytes(*stream);
      all.insert(all.end(), bytes.begin(), bytes.end());
    }
    for (const auto& values : grads) {
      const auto bytes = values->bytes(*stream);
      all.insert(all.end(), bytes.begin(), bytes.end());
    }
    return all;
  }

  Backend* backend;
  Stream* stream;
  DelayedScaling delayed;
  Float8Linear plain;
  NormLinear normed;
  Mlp mlp;
  std::unique_ptr<DeviceMatrix> x, grad, y1, y2, y3, g1, g2, g3;
  std::vector<std::unique_ptr<DeviceMatrix>> weights, grads;
};

struct Fixture {
  std::unique_ptr<Backend> inner = make_cpu_backend(1);
  Stream inner_stream{*inner};
  CountingBackend backend{*inner, &inner_stream};
  Stream stream{backend};

  std::int64_t casts_so_far() const {
    return std::ranges::count_if(backend.calls, [](const std::string& call) { return call.starts_with("cast "); });
  }
  std::string refusal(test::FunctionRef<void()> act) { return error_of(act, ErrorCode::invalid_argument); }
};

}  // namespace

BOOST_FIXTURE_TEST_SUITE(weight_casts, Fixture)

BOOST_AUTO_TEST_CASE(layers_take_the_codes_of_the_list) {
  for (const std::optional<Dtype> weight_dtype : {std::optional<Dtype>(), std::optional(Dtype::f32)}) {
    for (const Recipe& recipe : recipes()) {
      const bool is_float8 = recipe.name != std::string_view("high_precision");
      if (weight_dtype && !is_float8) continue;  // its GEMMs read the weight
      BOOST_TEST_CONTEXT(recipe.name << (weight_dtype ? ", f32 weights" : "")) {
        Layers alone(recipe.config, backend, stream, weight_dtype);
        Layers together(recipe.config, backend, stream, weight_dtype);
        WeightCasts casts(backend);
        together.add_to(casts);
        BOOST_TEST(casts.size() == (is_float8 ? 4U : 0U));
        casts.run(stream);
        for (unsigned step = 0; step < 3; ++step) {
          const std::int64_t before = casts_so_far();
          alone.step();
          const std::int64_t between = casts_so_far();
          together.step();
          // A delayed scale that starts with a cast takes another one before it.
          const std::int64_t of_weight = step == 0 && recipe.name == std::string_view("delayed") ? 2 : 1;
          BOOST_TEST(casts_so_far() - between ==
                     between - before - of_weight * static_cast<std::int64_t>(casts.size()));
          BOOST_TEST((alone.results() == together.results()), "step " << step);
          alone.change_weights(20 + step);
          alone.plain.weight_changed();
          alone.normed.weight_changed();
          alone.mlp.weights_changed();
          together.change_weights(20 + step);
          casts.run(stream);
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(a_gated_mlp_takes_codes_of_f32_masters) {
  const auto make = [&](std::int64_t rows, std::int64_t cols, Dtype dtype, unsigned seed) {
    return DeviceMatrix(Random(seed).normal(rows, cols, dtype), dtype, backend, stream);
  };
  const DeviceMatrix x = make(kTokens, kIn, Dtype::bf16, 1);
  const DeviceMatrix gate_up = make(2 * kHidden, kIn, Dtype::f32, 2), down = make(kIn, kHidden, Dtype::f32, 3);
  const DeviceMatrix first = DeviceMatrix::poisoned(kTokens, kIn, Dtype::bf16, backend, stream);
  const DeviceMatrix second = DeviceMatrix::poisoned(kTokens, kIn, Dtype::bf16, backend, stream);
  const GatedMlpOptions options{.weight_dtype = Dtype::f32};
  GatedMlp alone(backend, {.features = kIn, .hidden = kHidden}, blockwise(), options);
  GatedMlp together(backend, {.features = kIn, .hidden = kHidden}, blockwise(), options);
  WeightCasts casts(backend);
  casts.add(together, gate_up, down, stream);
  casts.run(stream);
  const auto forward = [&](GatedMlp& mlp, const DeviceMatrix& output) {
    const std::int64_t before = casts_so_far();
    mlp.forward({.input = x, .gate_up_weight = gate_up, .down_weight = down, .output = output}, stream);
    return casts_so_far() - before;
  };
  BOOST_TEST(forward(alone, first) == 4);
  BOOST_TEST(forward(together, second) == 2);
  BOOST_TEST((first.bytes(stream) == second.bytes(stream)));
}

BOOST_AUTO_TEST_CASE(weight_changed_and_another_weight_still_count) {
  Layers layers(rowwise(), backend, stream);
  WeightCasts casts(backend);
  layers.add_to(casts);
  casts.run(stream);
  layers.step();
  const std::vector<std::uint8_t> first = layers.results();
  layers.change_weights(30);
  layers.plain.weight_changed();
  layers.normed.weight_changed();
  layers.mlp.weights_changed();
  layers.step();
  Layers alone(rowwise(), backend, stream);
  alone.change_weights(30);
  alone.step();
  BOOST_TEST((layers.results() == alone.results()));
  BOOST_TEST((layers.results() != first));
}

// Between two runs a layer casts another weight itself: its codes are then overwritten, and it casts that weight again.
BOOST_AUTO_TEST_CASE(a_run_is_of_the_weights_that_were_added) {
  for (const bool normed : {false, true}) {
    Layers layers(tensorwise(), backend, stream);
    WeightCasts casts(backend);
    layers.add_to(casts);
    Random random(8);
    const auto other = layers.make(random, kIn, kIn, Dtype::bf16);
    const auto outputs = [&](const Tensor& weight) {
      if (normed) {
        layers.normed.forward({.input = *layers.x, .weight = weight, .output = *layers.y1}, stream);
      } else {
        layers.plain.forward({.input = *layers.x, .weight = weight, .output = *layers.y1}, stream);
      }
      return layers.y1->bytes(stream);
    };
    casts.run(stream);
    const auto of_other = outputs(*other);
    casts.run(stream);
    BOOST_TEST((outputs(*other) == of_other));
    casts.run(stream);
    const std::int64_t before = casts_so_far();
    BOOST_TEST((outputs(*layers.weights[normed ? 1 : 0]) != of_other));
    BOOST_TEST(casts_so_far() - before == 1);  // the input's
  }
}

// The list writes where the codes were, so they stay.
BOOST_AUTO_TEST_CASE(a_released_layer_keeps_the_codes_of_a_list) {
  Layers layers(blockwise(), backend, stream);
  WeightCasts casts(backend);
  layers.add_to(casts);
  casts.run(stream);
  layers.step();
  layers.plain.release();
  layers.normed.release();
  layers.mlp.release();
  layers.change_weights(40);
  casts.run(stream);
  layers.step();
  Layers alone(blockwise(), backend, stream);
  alone.change_weights(40);
  alone.step();
  BOOST_TEST((layers.results() == alone.results()));
}

// Of f32 masters too; and what was cast one by one before the weights changed is not left over.
BOOST_AUTO_TEST_CASE(codes_for_the_functions_are_those_of_cast_weight) {
  for (const Recipe& recipe : recipes()) {
    if (recipe.name == std::string_view("high_precision") || recipe.name == std::string_view("delayed")) continue;
    BOOST_TEST_CONTEXT(recipe.name) {
      const LinearPlan plan = linear_plan({.config = recipe.config,
                                           .shape = {.in_features = kIn, .out_features = 40},
                                           .dtypes = {.weight = Dtype::f32}});
      Random random(8);
      std::vector<std::unique_ptr<DeviceMatrix>> masters;
      std::vector<std::unique_ptr<PoisonedRegion>> regions;
      std::vector<Float8View> codes;
      WeightCasts casts(backend);
      for (int i = 0; i < 3; ++i) {
        masters.push_back(
            std::make_unique<DeviceMatrix>(random.normal(40, kIn, Dtype::f32), Dtype::f32, backend, stream));
        regions.push_back(std::make_unique<PoisonedRegion>(plan.weight_memory().bytes, backend, stream));
        codes.push_back(casts.add(plan, {.weight = *masters.back(), .into = *regions.back()}, stream));
      }
      casts.run(stream);
      for (const auto& master : masters) master->write(random.normal(40, kIn, Dtype::f32), stream);
      casts.run(stream);
      for (std::size_t i = 0; i < 3; ++i) {
        const PoisonedRegion region(plan.weight_memory().bytes, backend, stream);
        cast_weight(plan, backend, {.weight = *masters[i], .into = region}, {stream});
        const MemoryRegion expected = region;
        const MemoryRegion found = *regions[i];
        const auto* a = static_cast<const std::uint8_t*>(expected.data);
        const auto* b = static_cast<const std::uint8_t*>(found.data);
        BOOST_TEST(std::equal(a, a + expected.bytes, b), "weight " << i);
        BOOST_TEST(codes[i].codes.data == found.data);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(recipes_may_differ) {
  Layers rows(rowwise(), backend, stream);
  Layers blocks(blockwise(), backend, stream);
  WeightCasts casts(backend);
  rows.add_to(casts);
  blocks.add_to(casts);
  BOOST_TEST(casts.size() == 8U);
  casts.run(stream);
  const std::int64_t before = casts_so_far();
  rows.step();
  blocks.step();
  Layers alone(blockwise(), backend, stream);
  const std::int64_t between = casts_so_far();
  alone.step();
  BOOST_TEST((blocks.results() == alone.results()));
  BOOST_TEST(between - before < 2 * (casts_so_far() - between));
}

BOOST_AUTO_TEST_CASE(one_launch_for_each_kind) {
  DryRun dry(gpu_named("h200"));
  Stream on_gpu(dry.backend());
  Layers layers(blockwise(), dry.backend(), on_gpu);
  WeightCasts casts(dry.backend());
  layers.add_to(casts);
  const std::int64_t before = dry.backend().device_api().launches();
  casts.run(on_gpu);
  BOOST_TEST(dry.backend().device_api().launches() - before == 1);
}

BOOST_AUTO_TEST_CASE(a_capture_may_not_contain_the_first_cast) {
  DryRun dry(gpu_named("h200"));
  Stream on_gpu(dry.backend());
  Layers layers(rowwise(), dry.backend(), on_gpu);
  WeightCasts casts(dry.backend());
  layers.add_to(casts);
  const auto capture = [&] { Graph graph(on_gpu, [&] { casts.run(on_gpu); }); };
  BOOST_TEST(refusal(capture) ==
             "WeightCasts: has weights that were not cast yet, and a capture must not contain the first cast: call "
             "run() once before");
  casts.run(on_gpu);
  capture();
}

BOOST_AUTO_TEST_CASE(wrong_weights_are_refused) {
  Layers layers(rowwise(), backend, stream);
  WeightCasts casts(backend);
  Random random(3);
  const DeviceMatrix small(random.normal(kIn, kIn - 8, Dtype::bf16), Dtype::bf16, backend, stream);
  check_contains(refusal([&] { casts.add(layers.plain, small, stream); }),
                 {"Float8Linear weight", "but must be [32, 32] = [out_features, in_features]"});
  check_contains(refusal([&] { casts.add(layers.plain, {}, stream); }), {"Float8Linear weight: is missing"});
  const LinearPlan plan = linear_plan({.name = "wq", .config = rowwise(), .shape = {kIn, kIn}});
  check_contains(refusal([&] { casts.add(plan, {.weight = *layers.weights[0], .into = {}}, stream); }),
                 {"linear \"wq\" into"});
  const std::unique_ptr<Backend> other = make_cpu_backend(1);
  WeightCasts foreign(*other);
  BOOST_TEST(refusal([&] { foreign.add(layers.plain, *layers.weights[0], stream); }) ==
             "WeightCasts layer: belongs to another backend than the casts: make both from one");
  // Of an MLP both weights or none are added.
  BOOST_TEST(refusal([&] { casts.add(layers.mlp, *layers.weights[2], small, stream); }) != "");
  BOOST_TEST(casts.size() == 0U);
  layers.add_to(casts);
  BOOST_TEST(refusal([&] { casts.add(layers.plain, *layers.weights[1], stream); }) ==
             "WeightCasts layer: \"plain\" was added before, and has memory for the codes of one weight: make other "
             "casts for another weight");
  casts.run(stream);
  BOOST_TEST(casts.size() == 4U);
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE_END()
