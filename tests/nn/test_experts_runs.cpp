// A dry run of a mixture of experts asks for all that its steps ask for.
#include <boost/test/unit_test.hpp>

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "ingot/codegen/gemm/grouped_gemm_spec.h"
#include "ingot/codegen/generate.h"
#include "ingot/codegen/recording.h"
#include "ingot/nn/planning/layer_runs.h"
#include "ingot/nn/recipe/recipes.h"
#include "ingot/runtime/context/cpu_backend.h"
#include "ingot/runtime/context/dry_run.h"
#include "ingot/runtime/jit/recorder.h"
#include "nn/experts_mlp_case.h"
#include "nn/grouped_linear_case.h"

BOOST_AUTO_TEST_SUITE(test_experts_runs)

using namespace ingot;
using namespace ingot::test;

namespace {

using Lines = std::set<std::string>;

std::vector<LinearConfig> recipes_of_experts() { return {tensorwise(), rowwise()}; }

// All but grouped GEMMs, whose kernels are a GPU's choice.
Lines casts_of(const Recording& recording) {
  Lines lines;
  for (const KernelSpec& spec : recording.kernels()) {
    if (!std::holds_alternative<GroupedGemmSpec>(spec)) lines.insert(print(spec));
  }
  return lines;
}

Lines sources_of(const DryRun& dry) {
  Lines sources;
  for (const KernelPass& kernel : kernels_of(dry.recording(), matmul_device(dry.gpu()))) {
    sources.insert(generate(kernel.spec, kernel.pass).text);
  }
  return sources;
}

constexpr std::int64_t kExperts = 4, kChosen = 2, kTokens = 24, kFeatures = 64, kHidden = 32;

TrainedLayer experts_layer(bool bias) {
  return {.name = "experts",
          .kind = TrainedLayerKind::experts,
          .in_features = kFeatures,
          .out_features = kHidden,
          .bias = bias,
          .experts = kExperts,
          .chosen = kChosen};
}

// What is made ahead.
Lines made_for(const LinearConfig& recipe, bool bias) {
  DryRun dry(gpu_named("h200"));
  run_training(dry.backend(), {.layers = {experts_layer(bias)}, .recipes = {recipe}, .tokens = {kTokens}});
  return sources_of(dry);
}

// The ways in which a program may run experts.
template <class Use>
void for_each_way(const LinearConfig& recipe, const Use& use) {
  for (const OtherCodes weight : {OtherCodes::together, OtherCodes::again}) {
    for (const bool fast : {false, true}) {
      for (const bool accumulate : {false, true}) {
        LinearConfig config = recipe;
        config.weight = weight;
        config.grad_input.fast_accumulation = config.grad_weight.fast_accumulation = fast;
        use(config, fast, accumulate);
      }
    }
  }
}

void check_made(const DryRun& asked, const Lines& made, const std::string& what) {
  const Recording recording = asked.recording();
  for (const KernelPass& kernel : kernels_of(recording, matmul_device(asked.gpu()))) {
    const bool is_made = made.contains(generate(kernel.spec, kernel.pass).text);
    if (!is_made) BOOST_ERROR(what << " lacks " << print(kernel.spec));
  }
  BOOST_TEST(recording.kernels().size() >= 4U, what);
}

}  // namespace

BOOST_AUTO_TEST_CASE(casts_what_it_casts_on_the_cpu) {
  for (const LinearConfig& recipe : recipes_of_experts()) {
    for (const bool bias : {false, true}) {
      const TrainingRun run{.layers = {experts_layer(bias)}, .recipes = {recipe}, .tokens = {kTokens}};
      Recorder recorder;
      const std::unique_ptr<Backend> cpu = make_cpu_backend(2, &recorder);
      run_training(*cpu, run);
      DryRun dry(gpu_named("h200"));
      run_training(dry.backend(), run);
      BOOST_TEST_CHECK(casts_of(dry.recording()) == casts_of(recorder.recording()), boost::test_tools::per_element());
    }
  }
}

// The tests' own runs of the same functions, with their own memory and routing.
BOOST_AUTO_TEST_CASE(nothing_is_missing_of_a_step) {
  for (const LinearConfig& recipe : recipes_of_experts()) {
    const Lines made = made_for(recipe, false);
    for_each_way(recipe, [&](const LinearConfig& config, bool fast, bool accumulate) {
      const ExpertsMlpCase c{.config = config,
                             .experts = kExperts,
                             .tokens = kTokens,
                             .choices = kChosen,
                             .features = kFeatures,
                             .hidden = kHidden,
                             .grad_weight = accumulate ? Dtype::f32 : Dtype::bf16,
                             .accumulate = accumulate,
                             .fast_math = fast};
      DryRun dry(gpu_named("h200"));
      Stream stream(dry.backend());
      ExpertsMlpRun run(c, dry.backend(), stream);
      run.enqueue(true);
      ExpertsMlpForwardTensors inference = run.forward_tensors();
      inference.saved = nullptr;
      Buffer scratch(dry.backend(), run.plan.forward_scratch(kTokens * kChosen, LinearPass::inference).bytes);
      inference.scratch = {scratch.data(), scratch.bytes()};
      experts_mlp_forward(run.plan, dry.backend(), inference, {stream});
      run.enqueue(false);
      check_made(dry, made, describe(c));
    });
  }
}

BOOST_AUTO_TEST_CASE(nothing_is_missing_of_experts_with_biases) {
  for (const LinearConfig& recipe : recipes_of_experts()) {
    const Lines made = made_for(recipe, true);
    for_each_way(recipe, [&](const LinearConfig& config, bool, bool accumulate) {
      for (const bool up : {true, false}) {
        GroupedLinearCase c{.config = config,
                            .ends = zipf_ends(kTokens * kChosen, kExperts),
                            .rows = kTokens * kChosen,
                            .in = up ? kFeatures : kHidden,
                            .out = up ? 2 * kHidden : kFeatures,
                            .grad_weight = accumulate ? Dtype::f32 : Dtype::bf16,
                            .accumulate = accumulate};
        for (const bool keeps : {false, true}) {
          c.keeps_amax = keeps && config.weight == OtherCodes::again;
          DryRun dry(gpu_named("h200"));
          Stream stream(dry.backend());
          GroupedLinearRun run(c, dry.backend(), stream);
          run.enqueue();
          check_made(dry, made, describe(c));
        }
      }
    });
  }
}

BOOST_AUTO_TEST_CASE(other_recipes_run_without_experts) {
  std::vector<std::string> taken;
  for (const Recipe& recipe : recipes()) {
    if (experts_take(recipe.config)) taken.emplace_back(recipe.name);
    DryRun dry(gpu_named("h200"));
    run_training(dry.backend(), {.layers = {experts_layer(false)}, .recipes = {recipe.config}, .tokens = {kTokens}});
    BOOST_TEST(dry.recording().empty() == !experts_take(recipe.config), recipe.name);
  }
  BOOST_TEST((taken == std::vector<std::string>{"tensorwise", "rowwise"}));
}

BOOST_AUTO_TEST_SUITE_END()
