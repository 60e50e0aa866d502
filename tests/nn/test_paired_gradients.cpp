// Layers' backwards whose two GEMMs are one call of Backend::gemm_pair(): it is the call that multiplies_together()
// asked about, whatever the recipe, the gradients' dtypes and the module, so that what is decided ahead (a side stream
// or none) fits what is launched.
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ingot/nn/recipe/recipes.h"
#include "ingot/runtime/context/cpu_backend.h"
#include "ingot/runtime/gemm/gemm_tensors.h"
#include "nn/counting_backend.h"
#include "nn/module_case.h"

BOOST_AUTO_TEST_SUITE(test_paired_gradients)

using namespace ingot;
using namespace ingot::test;

namespace {

struct Fixture {
  std::unique_ptr<Backend> cpu = make_cpu_backend(2);
  Stream of_cpu{*cpu};
  CountingBackend counting{*cpu, &of_cpu};
  Stream stream{counting};
  DelayedScaling delayed{counting};

  Fixture() { counting.pairs_gemms = true; }

  // Runs the backward; asks before it.
  template <class Plan, class Tensors, class Backward>
  void expect_the_same(const std::string& what, const Plan& plan, const Tensors& tensors, std::size_t pairs,
                       const Backward& backward) {
    BOOST_TEST_CONTEXT(what) {
      counting.asked.clear();
      counting.paired.clear();
      BOOST_TEST(multiplies_together(plan, counting, tensors));
      const auto asked = counting.asked;
      backward(tensors);
      BOOST_TEST(counting.paired.size() == pairs);
      BOOST_TEST(asked.size() == pairs);
      for (const auto& pair : counting.paired) BOOST_TEST((std::ranges::find(asked, pair) != asked.end()));
    }
  }
};

}  // namespace

BOOST_FIXTURE_TEST_SUITE(paired_gradients, Fixture)

BOOST_AUTO_TEST_CASE(of_a_norm_and_its_layer) {
  for (const Recipe& recipe : recipes()) {
    if (recipe.name == "delayed") continue;
    for (const NormOptions& norm : kNorms) {
      for (const bool accumulate : {false, true}) {
        const NormCase device(recipe.config, norm, Dtype::bf16, 7, *cpu, of_cpu);
        const NormFunctions functions(
            {.linear = {.name = "wq", .config = recipe.config, .shape = kLinear}, .norm = norm}, delayed, counting,
            stream);
        Saved saved(functions.plan, kShape.tokens, counting, stream);
        functions.forward(device.forward(), &saved.saved, stream);
        NormLinearBackward gradients = device.backward();
        gradients.accumulate = accumulate;
        const PoisonedRegion scratch(
            functions.plan.backward_scratch(kShape.tokens, {.input = true, .weight = true, .bias = true}).bytes,
            counting, stream);
        const auto tensors = functions.tensors(gradients, device.forward(), saved.saved, scratch);
        expect_the_same(
            std::string(recipe.name) + ", " + print(norm), functions.plan, tensors, 1,
            [&](const auto& all) { norm_linear_backward(functions.plan, counting, all, {.stream = stream}); });
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(of_an_mlp) {
  for (const Recipe& recipe : recipes()) {
    if (recipe.name == "delayed") continue;
    for (const MlpKind& kind : kMlps) {
      const MlpCase device(recipe.config, kind, Dtype::bf16, 7, *cpu, of_cpu);
      const MlpFunctions functions(plan_options(recipe.config, kind, Dtype::bf16), delayed, counting, stream);
      Saved saved(functions.plan, kShape.tokens, counting, stream);
      functions.forward(device.forward(), &saved.saved, stream);
      const PoisonedRegion scratch(
          functions.plan
              .backward_scratch(
                  kShape.tokens,
                  {.input = true, .up_weight = true, .up_bias = true, .down_weight = true, .down_bias = true})
              .bytes,
          counting, stream);
      const auto tensors = functions.tensors(device.backward(), device.forward(), saved.saved, scratch);
      expect_the_same(std::string(recipe.name) + ", " + kind.activation, functions.plan, tensors, 2,
                      [&](const auto& all) { mlp_backward(functions.plan, counting, all, {.stream = stream}); });
    }
  }
}

// A caller of the functions may wait for the side stream that it gave, in a capture too: it waits for the work so
// far. A backward of one gradient asks for no pair.
BOOST_AUTO_TEST_CASE(a_side_stream_is_forked_and_not_used) {
  Stream side(counting);
  const NormOptions norm{.kind = NormKind::rms};
  const NormCase device(rowwise(), norm, Dtype::bf16, 7, *cpu, of_cpu);
  const NormFunctions functions({.linear = {.name = "wq", .config = rowwise(), .shape = kLinear}, .norm = norm},
                                delayed, counting, stream);
  Saved saved(functions.plan, kShape.tokens, counting, stream);
  functions.forward(device.forward(), &saved.saved, stream);
  const PoisonedRegion scratch(
      functions.plan.backward_scratch(kShape.tokens, {.input = true, .weight = true, .bias = true}).bytes, counting,
      stream);
  auto tensors = functions.tensors(device.backward(), device.forward(), saved.saved, scratch);
  counting.streams.clear();
  norm_linear_backward(functions.plan, counting, tensors, {.stream = stream, .side = &side});
  BOOST_TEST(counting.paired.size() == 1U);
  BOOST_TEST((std::ranges::count(counting.streams, &side) == 0));
  BOOST_REQUIRE(counting.waiting.size() == 1U);
  BOOST_TEST((counting.waiting[0] == &side && counting.awaited[0] == &stream));
  tensors.grad_weight = {};
  BOOST_TEST(!multiplies_together(functions.plan, counting, tensors));
  norm_linear_backward(functions.plan, counting, tensors, {.stream = stream});
  BOOST_TEST(counting.paired.size() == 1U);
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE_END()
