// A dry run of a layer asks for the same kernels and sizes as a real one.
#include "ingot/nn/planning/layer_runs.h"

#include <boost/test/unit_test.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "ingot/codegen/gemm/gemm_candidates.h"
#include "ingot/codegen/generate.h"
#include "ingot/codegen/recording.h"
#include "ingot/nn/recipe/linear_gemms.h"
#include "ingot/nn/recipe/recipes.h"
#include "ingot/runtime/context/cpu_backend.h"
#include "ingot/runtime/context/dry_run.h"
#include "ingot/runtime/core/stream.h"
#include "ingot/runtime/jit/recorder.h"
#include "support/expect_error.h"

BOOST_AUTO_TEST_SUITE(test_layer_runs)

using namespace ingot;
using test::check_contains;
using test::error_of;

namespace {

bool is_matmul(const KernelSpec& spec) {
  return std::holds_alternative<GemmSpec>(spec) || std::holds_alternative<GemmPairSpec>(spec) ||
         std::holds_alternative<DequantMatmulSpec>(spec);
}

// All but matmuls, whose kernels are a GPU's choice, and what serves them.
using Lines = std::set<std::string>;

Lines casts_of(const Recording& recording) {
  Lines lines;
  for (const KernelSpec& spec : recording.kernels()) {
    if (!is_matmul(spec) && !std::holds_alternative<RelayoutSpec>(spec)) lines.insert(print(spec));
  }
  return lines;
}

Lines matmuls_of(const Recording& recording) {
  Lines lines;
  for (const MatmulCall& call : recording.matmuls()) lines.insert(print(call));
  return lines;
}

Lines without(const Lines& all, const Lines& others) {
  Lines rest;
  std::ranges::set_difference(all, others, std::inserter(rest, rest.end()));
  return rest;
}

Lines sources_of_matmuls(const std::vector<KernelPass>& kernels) {
  Lines sources;
  for (const KernelPass& kernel : kernels) {
    if (is_matmul(kernel.spec)) sources.insert(generate(kernel.spec, kernel.pass).text);
  }
  return sources;
}

// Kernels that multiply: those that a run asks for, and those that are made ahead for it.
struct Multipliers {
  std::size_t asked_for = 0;
  std::size_t made = 0;
};

// A run on the CPU, which computes, and a dry run: the casts are the same, and the matmuls of the dry run are those
// of the other and perhaps more.
template <class Run>
Multipliers compare_with_cpu(const std::string& what, const Run& run) {
  Recorder recorder;
  const std::unique_ptr<Backend> cpu = make_cpu_backend(2, &recorder);
  run(*cpu);
  const Recording real = recorder.recording();
  DryRun dry(gpu_named("h200"));
  run(dry.backend());
  const Recording found = dry.recording();
  BOOST_TEST_CHECK(casts_of(found) == casts_of(real), what << ": casts differ" << boost::test_tools::per_element());
  const Lines missed = without(matmuls_of(real), matmuls_of(found));
  for (const std::string& line : missed) BOOST_ERROR(what << ": the dry run lacks " << line);
  Lines asked_for;
  for (const KernelSpec& spec : found.kernels()) {
    if (is_matmul(spec)) asked_for.insert(generate(spec).text);
  }
  const Lines made = sources_of_matmuls(kernels_of(found, matmul_device(dry.gpu())));
  BOOST_TEST(without(asked_for, made).empty(), what);
  return {.asked_for = asked_for.size(), .made = made.size()};
}

std::vector<TrainedLayer> small_layers() {
  using Kind = TrainedLayerKind;
  return {{.name = "linear", .kind = Kind::linear, .in_features = 256, .out_features = 128},
          {.name = "bias", .kind = Kind::linear, .in_features = 256, .out_features = 128, .bias = true},
          {.name = "rms", .kind = Kind::rms_norm_linear, .in_features = 256, .out_features = 128},
          {.name = "layer", .kind = Kind::layer_norm_linear, .in_features = 256, .out_features = 128, .bias = true},
          {.name = "mlp", .kind = Kind::gated_mlp, .in_features = 128, .out_features = 256},
          {.name = "norm_mlp", .kind = Kind::layer_norm_mlp, .in_features = 128, .out_features = 256, .bias = true},
          {.name = "norm_gated", .kind = Kind::rms_norm_gated_mlp, .in_features = 128, .out_features = 256}};
}

const KnownModel& llama3_8b() { return known_model("llama3-8b"); }

std::vector<LinearConfig> all_recipes() {
  std::vector<LinearConfig> all;
  for (const Recipe& recipe : recipes()) all.push_back(recipe.config);
  return all;
}

std::size_t count_matmuls(const std::vector<KernelPass>& kernels) {
  return static_cast<std::size_t>(
      std::ranges::count_if(kernels, [](const KernelPass& kernel) { return is_matmul(kernel.spec); }));
}

}  // namespace

BOOST_AUTO_TEST_SUITE(layer_runs)

BOOST_AUTO_TEST_CASE(models_are_known_by_name) {
  for (const KnownModel& model : known_models()) BOOST_TEST(&known_model(model.name) == &model);
  check_contains(error_of([] { known_model("llama9"); }, ErrorCode::invalid_argument),
                 {"model: \"llama9\" must be one of llama2-7b, llama2-70b, llama3-8b, llama3-70b, mixtral-8x7b, "
                  "qwen3-30b-a3b, qwen3-235b-a22b, deepseek-v3, gpt-oss-20b, gpt-oss-120b"});
  check_contains(error_of([] { known_model("", "--set"); }, ErrorCode::invalid_argument),
                 {"--set: \"\" must be one of "});
}

BOOST_AUTO_TEST_CASE(each_recipe_and_layer_asks_for_what_it_asks_for_on_the_cpu) {
  Multipliers all;
  for (const Recipe& recipe : recipes()) {
    for (const TrainedLayer& layer : small_layers()) {
      const Multipliers these = compare_with_cpu(std::string(recipe.name) + " " + layer.name, [&](Backend& backend) {
        run_training(backend, {.layers = {layer},
                               .recipes = {recipe.config},
                               .tokens = {128},
                               .grad_weight = Dtype::f32,
                               .recompute = true});
      });
      all.asked_for += these.asked_for;
      all.made += these.made;
    }
  }
  fmt::print("kernels that multiply: {} are made for {} that the runs ask for: {:.2f} times as many\n", all.made,
             all.asked_for, static_cast<double>(all.made) / static_cast<double>(all.asked_for));
}

// So a store that is filled ahead has the kernel of both gradients, and none of one alone.
BOOST_AUTO_TEST_CASE(gradients_of_gate_and_up_are_one_pass) {
  for (const LinearConfig& config : {rowwise(), tensorwise()}) {
    DryRun dry(gpu_named("h200"));
    run_training(dry.backend(), {.layers = {{.name = "mlp",
                                             .kind = TrainedLayerKind::rms_norm_gated_mlp,
                                             .in_features = 128,
                                             .out_features = 256}},
                                 .recipes = {config},
                                 .tokens = {128}});
    const Recording recording = dry.recording();
    Lines found;
    for (const KernelSpec& spec : recording.kernels()) {
      if (std::holds_alternative<ElementwiseSpec>(spec)) found.insert(print(spec));
    }
    const Pointwise activation = parse_pointwise("silu(x) * up");
    const Lines expected{print(ElementwiseSpec{
        .pointwise = backward(activation, "x"), .second = backward(activation, "up"), .amax = config == tensorwise()})};
    BOOST_TEST_CHECK(found == expected, boost::test_tools::per_element());
  }
}

// DelayedScaling::start(), which callers of the functions have in their first step. (Layers start theirs within a
// cast.)
BOOST_AUTO_TEST_CASE(delayed_scales_may_be_started_from_a_tensor) {
  for (const bool is_delayed : {true, false}) {
    DryRun dry(gpu_named("h200"));
    run_training(dry.backend(), {.layers = {{.name = "linear", .in_features = 128, .out_features = 256}},
                                 .recipes = {is_delayed ? delayed() : rowwise()},
                                 .tokens = {128}});
    BOOST_TEST(casts_of(dry.recording()).contains("amax bf16 scale=tensor") == is_delayed);
  }
}

BOOST_AUTO_TEST_CASE(weights_are_quantized_as_on_the_cpu) {
  for (const WeightOnlyOptions& options :
       {WeightOnlyOptions{.dtype = Dtype::e4m3fn}, WeightOnlyOptions{.dtype = Dtype::e4m3fn, .scale = kRowGroups},
        WeightOnlyOptions{.dtype = Dtype::e2m1fn, .mx = true},
        WeightOnlyOptions{.dtype = Dtype::e4m3fn, .layout = WeightLayout::row_major}}) {
    compare_with_cpu(std::string(name(options.dtype)), [&](Backend& backend) {
      run_decoding(backend, {.layers = {{.name = "linear", .in_features = 256, .out_features = 128, .bias = true}},
                             .weights = {options},
                             .tokens = {1, 16},
                             .high_precision = true});
    });
  }
}

// The matmuls of a layer are those that tuning plans.
BOOST_AUTO_TEST_CASE(matmuls_of_every_recipe) {
  const TrainedLayer layer{.name = "qkv", .in_features = 4096, .out_features = 6144};
  for (const Recipe& recipe : recipes()) {
    Lines planned;
    for (const LinearGemm& gemm :
         linear_gemms(recipe.config, {.tokens = 8192, .in_features = 4096, .out_features = 6144}, Dtype::bf16)) {
      planned.insert(print(gemm.call));
    }
    DryRun dry(gpu_named("h200"));
    run_training(dry.backend(), {.layers = {layer}, .recipes = {recipe.config}, .tokens = {8192}});
    BOOST_TEST_CHECK(matmuls_of(dry.recording()) == planned, recipe.name << boost::test_tools::per_element());
  }
}

// A small layer's backward asks a Hopper GPU for one kernel that computes both gradients' GEMMs, and notes the two
// GEMMs for other GPUs. Of a layer that other GPUs run, or a large one, it asks for none.
BOOST_AUTO_TEST_CASE(small_gradients_are_one_launch) {
  const auto pairs = [](const char* gpu, const TrainedLayer& layer, std::int64_t tokens) {
    DryRun dry(gpu_named(gpu));
    run_training(dry.backend(), {.layers = {layer}, .recipes = all_recipes(), .tokens = {tokens}});
    const Recording recording = dry.recording();
    std::size_t count = 0;
    for (const KernelSpec& spec : recording.kernels()) count += std::holds_alternative<GemmPairSpec>(spec) ? 1 : 0;
    Lines planned;
    for (const LinearConfig& recipe : all_recipes()) {
      for (const LinearGemm& gemm :
           linear_gemms(recipe, {tokens, layer.in_features, layer.out_features}, Dtype::bf16)) {
        planned.insert(print(gemm.call));
      }
    }
    BOOST_TEST_CHECK(matmuls_of(recording) == planned, gpu << boost::test_tools::per_element());
    return count;
  };
  const TrainedLayer small{
      .name = "small", .kind = TrainedLayerKind::linear, .in_features = 1024, .out_features = 1024};
  const TrainedLayer large{
      .name = "large", .kind = TrainedLayerKind::linear, .in_features = 4096, .out_features = 4096};
  BOOST_TEST(pairs("h200", small, 1024) >= 5U);
  BOOST_TEST(pairs("l40s", small, 1024) == 0U);
  BOOST_TEST(pairs("h200", large, 8192) == 0U);
}

// Of all its recipes. The GEMMs are compared with linear_gemms() and gemm_order(), without a run. A step of 8192 tokens
// needs no memory here.
BOOST_AUTO_TEST_CASE(a_model_of_8_billion_parameters) {
  for (const char* const gpu : {"h200", "h20", "l40s"}) {
    DryRun dry(gpu_named(gpu));
    const MatmulDevice device = matmul_device(dry.gpu());
    run_training(dry.backend(), {.layers = training_layers(llama3_8b()), .recipes = all_recipes(), .tokens = {8192}});
    const Recording recording = dry.recording();
    const std::vector<KernelPass> kernels = kernels_of(recording, device);

    std::set<std::string> expected;
    for (const ModelLayer& layer : layers_of(llama3_8b())) {
      for (const LinearConfig& recipe : all_recipes()) {
        for (const LinearGemm& gemm :
             linear_gemms(recipe, {8192, layer.in_features, layer.out_features}, Dtype::bf16)) {
          for (const GemmSpec& each : gemm_order(gemm.call, device)) {
            if (each.kernel != GemmKernel::cublaslt) expected.insert(generate(each).text);
          }
        }
      }
    }
    std::set<std::string> found;
    std::set<std::string> sources;
    for (const KernelPass& kernel : kernels) {
      const std::string text = generate(kernel.spec, kernel.pass).text;
      sources.insert(text);
      if (is_matmul(kernel.spec)) found.insert(text);
    }
    BOOST_TEST((found == expected), gpu);
    BOOST_TEST(sources.size() == kernels.size());
    // What the run itself asked for is among them.
    for (const KernelSpec& spec : recording.kernels()) {
      BOOST_TEST(sources.contains(generate(spec, Pass::main).text), print(spec));
    }
  }
}

BOOST_AUTO_TEST_CASE(how_many_kernels_a_model_of_8_billion_parameters_takes) {
  DryRun training(gpu_named("h200"));
  run_training(training.backend(),
               {.layers = training_layers(llama3_8b()), .recipes = all_recipes(), .tokens = {8192}});
  const MatmulDevice device = matmul_device(training.gpu());
  BOOST_TEST(training.recording().matmuls().size() == 69U);  // as `ingot tune --set llama3-8b` lists
  const std::vector<KernelPass> kernels = kernels_of(training.recording(), device);
  BOOST_TEST(kernels.size() == 66U);
  BOOST_TEST(count_matmuls(kernels) == 29U);

  DryRun decoding(gpu_named("h200"));
  run_decoding(decoding.backend(), {.layers = decoding_layers(llama3_8b()),
                                    .weights = {{.dtype = Dtype::e4m3fn}, {.dtype = Dtype::e2m1fn, .mx = true}},
                                    .tokens = {1, 16, 64}});
  const std::vector<KernelPass> decoders = kernels_of(decoding.recording(), device);
  BOOST_TEST(decoding.recording().matmuls().size() == 30U);
  BOOST_TEST(decoders.size() == 46U);
  BOOST_TEST(count_matmuls(decoders) == 41U);
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE_END()
