// A dry run of a mixture of experts asks for all that its steps ask for.
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "ingot/codegen/dequant/dequant_candidates.h"
#include "ingot/codegen/gemm/grouped_gemm_spec.h"
#include "ingot/codegen/generate.h"
#include "ingot/codegen/recording.h"
#include "ingot/nn/planning/known_models.h"
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

std::vector<LinearConfig> recipes_of_experts() { return {tensorwise(), delayed(), rowwise(), blockwise()}; }

bool takes_fast_sums(const LinearConfig& config) { return config.output.a->granularity != kRowGroups; }

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

Lines grouped_gemms_of(const DryRun& dry) {
  Lines lines;
  const Recording recording = dry.recording();
  for (const KernelSpec& spec : recording.kernels()) {
    if (std::holds_alternative<GroupedGemmSpec>(spec)) lines.insert(print(spec));
  }
  return lines;
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
        config.grad_input.fast_accumulation = config.grad_weight.fast_accumulation = fast && takes_fast_sums(config);
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
      inference.up_scales = run.scales.of(0);
      inference.down_scales = run.scales.of(1);
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
                            .accumulate = accumulate,
                            .bias = true};
        for (const bool keeps : {false, true}) {
          const bool finds = takes_fast_sums(config) && config.output.b->scaling == Scaling::dynamic;
          c.keeps_amax = keeps && finds && config.weight == OtherCodes::again;
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

namespace {

// The products of one expert's layer: output, gradient of the input, and gradients of the weight.
Lines trained_products(const LinearConfig& config, std::int64_t rows, std::int64_t n, std::int64_t k,
                       std::int64_t experts, int multiprocessors, bool bias) {
  Lines lines;
  for (const bool fast : {false, true}) {
    const auto add = [&](const GemmConfig& of, const MatmulSize& size, Dtype out, bool along_k, bool is_fast,
                         bool with_bias = false) {
      GroupedGemmSpec spec{.gemm = {.a = of.a->dtype,
                                    .b = of.b->dtype,
                                    .out = out,
                                    .scale_a = of.a->granularity,
                                    .scale_b = of.b->granularity,
                                    .fast_accumulation = is_fast},
                           .along_k = along_k};
      if (out == Dtype::f32) spec.gemm.epilogue.c = out;
      spec.gemm.bias = with_bias;
      lines.insert(print(KernelSpec(with_grouped_tiling(spec, size, experts, multiprocessors))));
    };
    const bool takes_fast = takes_fast_sums(config);
    const std::int64_t columns = takes_fast ? rows : 128 * expert_slots(rows, experts);
    add(config.output, {rows, n, k}, Dtype::bf16, false, takes_fast, bias);
    add(config.grad_input, {rows, k, n}, Dtype::bf16, false, fast && takes_fast);
    for (const Dtype out : {Dtype::bf16, Dtype::f32}) {
      add(config.grad_weight, {n, k, columns}, out, true, fast && takes_fast);
    }
  }
  return lines;
}

std::vector<TrainedLayer> experts_of_known_models() {
  std::vector<TrainedLayer> all;
  for (const KnownModel& model : known_models()) {
    std::ranges::copy_if(training_layers(model), std::back_inserter(all),
                         [](const TrainedLayer& layer) { return layer.kind == TrainedLayerKind::experts; });
  }
  return all;
}

}  // namespace

// The choice is asked directly here, for each product of every known model's experts.
BOOST_AUTO_TEST_CASE(grouped_gemms_of_known_models) {
  const std::vector<TrainedLayer> models = experts_of_known_models();
  BOOST_TEST(models.size() == 6U);
  for (const char* const gpu : {"h200", "h20"}) {
    const int multiprocessors = gpu_named(gpu).multiprocessors;
    for (const TrainedLayer& layer : models) {
      for (const std::int64_t tokens : {1, 333, 8192}) {
        Lines expected;
        for (const LinearConfig& recipe : recipes_of_experts()) {
          const std::int64_t rows = tokens * layer.chosen;
          const std::int64_t in = layer.in_features, out = layer.out_features;
          const auto expect = [&](std::int64_t n, std::int64_t k, bool bias) {
            expected.merge(trained_products(recipe, rows, n, k, layer.experts, multiprocessors, bias));
          };
          expect(2 * out, in, layer.bias);
          expect(in, out, false);  // the MLP's
          if (layer.bias) expect(in, out, true);
        }
        DryRun dry(gpu_named(gpu));
        run_training(dry.backend(), {.layers = {layer}, .recipes = recipes_of_experts(), .tokens = {tokens}});
        BOOST_TEST_CHECK(grouped_gemms_of(dry) == expected, boost::test_tools::per_element());
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(grouped_gemms_that_decode) {
  const int multiprocessors = gpu_named("h200").multiprocessors;
  const GroupedGemmSpec spec{.gemm = {.a = Dtype::e4m3fn,
                                      .b = Dtype::e4m3fn,
                                      .out = Dtype::bf16,
                                      .scale_a = kRowwise,
                                      .scale_b = kRowwise,
                                      .fast_accumulation = true}};
  std::vector<std::int64_t> counts;
  for (std::int64_t tokens = 1; tokens <= 256; ++tokens) counts.push_back(tokens);
  for (const TrainedLayer& layer : experts_of_known_models()) {
    Lines expected;
    for (const std::int64_t tokens : counts) {
      const std::int64_t rows = tokens * layer.chosen;
      const std::int64_t in = layer.in_features, out = layer.out_features;
      for (const MatmulSize& size : {MatmulSize{rows, 2 * out, in}, MatmulSize{rows, in, out}}) {
        expected.insert(print(KernelSpec(with_grouped_tiling(spec, size, layer.experts, multiprocessors))));
      }
    }
    DryRun dry(gpu_named("h200"));
    run_decoding(dry.backend(), {.layers = {{.in_features = layer.in_features,
                                             .out_features = layer.out_features,
                                             .experts = layer.experts,
                                             .chosen = layer.chosen}},
                                 .tokens = counts});
    BOOST_TEST_CHECK(grouped_gemms_of(dry) == expected, boost::test_tools::per_element());
    BOOST_TEST(casts_of(dry.recording()).contains("cast bf16->e4m3fn scale=row out=codes"));
  }
}

// The choice is asked directly here, for each number of tokens: gpt-oss's checkpoints are MXFP4, with biases.
BOOST_AUTO_TEST_CASE(weights_of_few_bits_that_decode) {
  std::vector<std::int64_t> counts;
  for (std::int64_t tokens = 1; tokens <= 256; ++tokens) counts.push_back(tokens);
  for (const char* const gpu : {"h200", "a100"}) {
    const MatmulDevice device = matmul_device(gpu_named(gpu));
    for (const char* const model : {"gpt-oss-20b", "gpt-oss-120b"}) {
      const ModelExperts& experts = known_model(model).experts;
      for (const Dtype dtype : {Dtype::bf16, Dtype::f16}) {
        Lines expected;
        for (const std::int64_t tokens : counts) {
          for (const std::int64_t n : {2 * experts.intermediate, std::int64_t{2880}}) {
            const MatmulSize size = size_of_experts({tokens * experts.chosen, n, 2880}, experts.count, std::nullopt);
            const DequantMatmulSpec spec{.x = dtype,
                                         .weight = Dtype::e2m1fn,
                                         .out = dtype,
                                         .scale = kRowGroups32,
                                         .scale_inv = Dtype::e8m0fnu,
                                         .layout = WeightLayout::packed,
                                         .bias = true,
                                         .experts = true};
            for (const DequantMatmulSpec& each : dequant_order(spec, size, device)) {
              expected.insert(print(KernelSpec(each)));
            }
          }
        }
        DryRun dry(gpu_named(gpu));
        const std::vector<DecodedLayer> layers = decoding_layers(known_model(model));
        run_decoding(dry.backend(),
                     {.layers = {layers.back()}, .tokens = counts, .dtype = dtype, .grouped_gemms = false});
        Lines made;
        for (const KernelPass& each : kernels_of(dry.recording(), device)) {
          if (std::holds_alternative<DequantMatmulSpec>(each.spec)) made.insert(print(each.spec));
        }
        BOOST_TEST_CHECK(made == expected, boost::test_tools::per_element());
        BOOST_TEST(grouped_gemms_of(dry).empty());
      }
    }
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
  BOOST_TEST((taken == std::vector<std::string>{"tensorwise", "delayed", "rowwise", "blockwise"}));
}

// Their published configs say so: heads, their sizes and the sizes of the MLPs.
BOOST_AUTO_TEST_CASE(linear_layers_of_known_mixtures) {
  const auto layers = [](const char* model) {
    std::string text;
    for (const TrainedLayer& layer : training_layers(known_model(model))) {
      text += layer.name + " " + std::to_string(layer.in_features) + " " + std::to_string(layer.out_features) +
              (layer.bias ? " bias" : "");
      if (layer.experts > 0) text += " of " + std::to_string(layer.experts) + " by " + std::to_string(layer.chosen);
      text += "; ";
    }
    return text;
  };
  BOOST_TEST(layers("llama3-8b") ==
             "qkv 4096 6144; attention_out 4096 4096; gate_up 4096 28672; down 14336 4096; lm_head 4096 128256; ");
  BOOST_TEST(layers("mixtral-8x7b") ==
             "qkv 4096 6144; attention_out 4096 4096; lm_head 4096 32000; experts 4096 14336 of 8 by 2; ");
  BOOST_TEST(layers("qwen3-30b-a3b") ==
             "qkv 2048 5120; attention_out 4096 2048; lm_head 2048 151936; experts 2048 768 of 128 by 8; ");
  BOOST_TEST(layers("qwen3-235b-a22b") ==
             "qkv 4096 9216; attention_out 8192 4096; lm_head 4096 151936; experts 4096 1536 of 128 by 8; ");
  BOOST_TEST(layers("deepseek-v3") ==
             "q_a 7168 1536; q_b 1536 24576; kv_a 7168 576; kv_b 512 32768; attention_out 16384 7168; "
             "gate_up 7168 36864; down 18432 7168; shared_gate_up 7168 4096; shared_down 2048 7168; "
             "lm_head 7168 129280; experts 7168 2048 of 256 by 8; ");
  const std::string gpt_oss = "qkv 2880 5120 bias; attention_out 4096 2880 bias; lm_head 2880 201088; ";
  BOOST_TEST(layers("gpt-oss-20b") == gpt_oss + "experts 2880 2880 bias of 32 by 4; ");
  BOOST_TEST(layers("gpt-oss-120b") == gpt_oss + "experts 2880 2880 bias of 128 by 4; ");
  for (const char* const model : {"llama3-8b", "deepseek-v3", "gpt-oss-20b"}) {
    for (const DecodedLayer& layer : decoding_layers(known_model(model))) {
      BOOST_TEST(layer.f32_output == (layer.name == "lm_head"), model << " " << layer.name);
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()
