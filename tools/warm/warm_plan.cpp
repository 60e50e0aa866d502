// The layers run on a DryRun of each GPU, which is the library's own CUDA code on a driver that does nothing. So the
// plan knows no layer's kernels, and layers to come are covered by being run.
#include "warm/warm_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <system_error>
#include <utility>
#include <variant>

#include "ingot/codegen/recording.h"
#include "ingot/codegen/types/target.h"
#include "ingot/nn/linear/grouped_linear.h"
#include "ingot/nn/planning/layer_runs.h"
#include "ingot/nn/recipe/recipes.h"
#include "ingot/runtime/context/dry_run.h"
#include "ingot/runtime/jit/recorder.h"
#include "ingot/runtime/jit/warm_up.h"
#include "ingot/runtime/tuning/tuning_import.h"
#include "ingot/runtime/util/error.h"
#include "usage_error.h"
#include "warm/warm_layers.h"

namespace ingot::tools {
namespace {

[[noreturn]] void refuse(const std::string& option, std::string_view value, const std::string& allowed) {
  throw Error(ErrorCode::invalid_argument, option, fmt::format("\"{}\" must be {}", value, allowed));
}

std::optional<std::int64_t> parse_number(std::string_view text) {
  constexpr std::int64_t kMost = std::int64_t{1} << 30;
  std::int64_t value = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || stop != text.data() + text.size() || value < 1 || value > kMost) return std::nullopt;
  return value;
}

Dtype parse_activations(const std::string& text) {
  if (text == "bf16") return Dtype::bf16;
  if (text == "f16") return Dtype::f16;
  refuse("--dtype", text, "bf16 or f16");
}

std::vector<LinearConfig> configs(const std::vector<std::string>& names) {
  std::vector<LinearConfig> configs;
  if (names.empty()) {
    for (const Recipe& each : recipes()) configs.push_back(each.config);
  }
  for (const std::string& name : names) configs.push_back(read_argument([&] { return recipe(name); }));
  return configs;
}

// "e4m3fn" or "e4m3fn:1x128"
WeightOnlyOptions parse_weight_format(const std::string& text) {
  const std::string_view whole = text;
  const std::size_t colon = whole.find(':');
  const std::optional<Dtype> dtype = parse_dtype(whole.substr(0, colon));
  if (!dtype || std::ranges::find(kWeightDtypes, *dtype) == kWeightDtypes.end()) {
    refuse("--weight-only", text, "a weight's dtype, such as e4m3fn, or e4m3fn:1x128 with its granularity");
  }
  WeightOnlyOptions options{.dtype = *dtype};
  const bool is_fp8 = std::ranges::find(kFp8Dtypes, *dtype) != kFp8Dtypes.end();
  const std::string_view scale = colon == std::string_view::npos ? (is_fp8 ? "row" : "mx") : whole.substr(colon + 1);
  if (scale == "mx") {
    options.mx = true;
    return options;
  }
  const std::optional<ScaleGranularity> granularity = parse_granularity(scale);
  if (!granularity) refuse("--weight-only", text, "a dtype and tensor, row, 1x128, 1x64, 1x32, 128x128 or mx");
  options.scale = *granularity;
  return options;
}

std::vector<WeightOnlyOptions> weight_formats(const WarmRequest& request) {
  if (request.weights.empty()) return {WeightOnlyOptions{}};
  std::vector<WeightOnlyOptions> formats;
  for (const std::string& text : request.weights) formats.push_back(parse_weight_format(text));
  return formats;
}

ModelLayers layers_of(const WarmRequest& request) {
  ModelLayers all;
  for (const std::string& name : request.sets) add(all, known_model_layers(name));
  for (const std::filesystem::path& file : request.layers) add(all, read_layers(file));
  return all;
}

// Calls use() with a part at a time: a recording of a whole large range would take gigabytes.
template <class Use>
void in_parts(std::span<const std::int64_t> tokens, const Use& use) {
  constexpr std::size_t kAtOnce = 64;
  for (; !tokens.empty(); tokens = tokens.subspan(std::min(kAtOnce, tokens.size()))) {
    const auto part = tokens.first(std::min(kAtOnce, tokens.size()));
    use(std::vector<std::int64_t>(part.begin(), part.end()));
  }
}

bool has_experts(const ModelLayers& layers) {
  const auto trains = [](const TrainedLayer& layer) { return layer.kind == TrainedLayerKind::experts; };
  const auto decodes = [](const DecodedLayer& layer) { return layer.experts > 0; };
  return std::ranges::any_of(layers.training, trains) || std::ranges::any_of(layers.decoding, decodes);
}

// Of recipes that were named and leave experts out: all recipes, the default, are all that each layer takes.
void warn_of_recipes(const WarmRequest& request, const ModelLayers& layers) {
  if (!has_experts(layers) || request.training_tokens.empty()) return;
  std::string without, taken;
  const auto add = [](std::string& names, std::string_view name) {
    names += fmt::format("{}{}", names.empty() ? "" : ", ", name);
  };
  for (const Recipe& each : recipes()) {
    if (experts_take(each.config)) {
      add(taken, each.name);
    } else if (std::ranges::find(request.recipes, each.name) != request.recipes.end()) {
      add(without, each.name);
    }
  }
  if (!without.empty()) request.warn(fmt::format("experts are left out of {}: they train by {}", without, taken));
}

bool has_grouped_gemms(const Gpu& gpu) { return gpu.target == target_for(9, 0); }

// Without experts that train where there is no kernel for them.
ModelLayers layers_for(const Gpu& gpu, const WarmRequest& request, const ModelLayers& layers) {
  if (has_grouped_gemms(gpu) || !has_experts(layers)) return layers;
  request.warn(
      fmt::format("experts are left out of training and of decoding with activations in FP8 for {}: their GEMMs run on "
                  "Hopper ({})",
                  gpu.name, print(target_for(9, 0))));
  ModelLayers rest = layers;
  std::erase_if(rest.training, [](const TrainedLayer& layer) { return layer.kind == TrainedLayerKind::experts; });
  return rest;
}

// Calls use(recording) for each part of the layers' runs.
template <class Use>
void run_layers(const WarmRequest& request, const ModelLayers& layers, const Gpu& gpu, const Use& use) {
  const Dtype dtype = parse_activations(request.dtype);
  const std::vector<std::int64_t> training = parse_tokens("--tokens", request.training_tokens);
  const std::vector<std::int64_t> decoding = parse_tokens("--decode", request.decoding_tokens);
  if (!layers.training.empty() && !training.empty()) {
    TrainingRun run{.layers = layers.training, .recipes = configs(request.recipes), .dtype = dtype};
    run.grad_weight = dtype;
    in_parts(training, [&](std::vector<std::int64_t> tokens) {
      DryRun dry(gpu);
      run.tokens = std::move(tokens);
      run_training(dry.backend(), run);
      use(dry.recording());
    });
  }
  if (!layers.decoding.empty() && !decoding.empty()) {
    DecodingRun run{
        .layers = layers.decoding, .weights = weight_formats(request), .dtype = dtype, .high_precision = true};
    run.grouped_gemms = has_grouped_gemms(gpu);
    in_parts(decoding, [&](std::vector<std::int64_t> tokens) {
      DryRun dry(gpu);
      run.tokens = std::move(tokens);
      run_decoding(dry.backend(), run);
      use(dry.recording());
    });
  }
}

Recording read_recordings(const WarmRequest& request) {
  Recording all;
  for (const std::filesystem::path& file : request.recordings) {
    const RecordingFile read = read_usable_recording(file);
    if (!read.problem.empty()) request.warn(read.problem);
    all.add(read.recording);
  }
  return all;
}

constexpr std::int64_t kMostTokens = 16384;  // the layers run once with each

[[noreturn]] void refuse_so_many(const std::string& option, std::string_view text) {
  refuse(option, text,
         fmt::format("at most {} numbers, because the layers run once with each; name only those that a run will have",
                     kMostTokens));
}

void add_range(std::string_view part, std::size_t dash, const std::string& option, std::vector<std::int64_t>& tokens) {
  const auto from = parse_number(part.substr(0, dash));
  const auto to = parse_number(part.substr(dash + 1));
  if (!from || !to || *from > *to) refuse(option, part, "a range such as 1-256");
  if (*to - *from >= kMostTokens) refuse_so_many(option, part);
  for (std::int64_t number = *from; number <= *to; ++number) tokens.push_back(number);
}

}  // namespace

std::vector<std::int64_t> parse_tokens(const std::string& option, const std::string& text) {
  std::vector<std::int64_t> tokens;
  std::string_view rest = text;
  while (!rest.empty()) {
    const std::string_view part = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), part.size() + 1));
    const std::size_t dash = part.find('-');
    if (dash != std::string_view::npos) {
      add_range(part, dash, option, tokens);
    } else if (const auto number = parse_number(part)) {
      tokens.push_back(*number);
    } else {
      refuse(option, part, "a number of tokens from 1 to 1073741824, or a range such as 1-256");
    }
  }
  std::ranges::sort(tokens);
  tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());  // clang 14 has no ranges::unique
  if (tokens.size() > static_cast<std::size_t>(kMostTokens)) refuse_so_many(option, text);
  return tokens;
}

std::vector<WarmJob> plan_warm(const WarmRequest& request) {
  const ModelLayers layers = layers_of(request);
  const Recording recorded = read_recordings(request);
  std::vector<WarmJob> jobs;
  std::set<std::pair<Target, std::string>> seen;
  warn_of_recipes(request, layers);
  for (const std::string& name : request.gpus) {
    const Gpu& gpu = *read_argument([&] { return &gpu_named(name); });
    const RecordedKernelsOptions options{.tuned = TunedKernels(tuned_matmuls(request.tuned, matmul_device(gpu)))};
    const auto add_kernels = [&](const Recording& recording) {
      for (const KernelPass& each : kernels_of(recording, matmul_device(gpu), options)) {
        Source source = generate(each.spec, each.pass);
        if (!seen.emplace(gpu.target, source.text).second) continue;
        jobs.push_back(
            {.name = source.name, .target = gpu.target, .source = source, .weight = compile_cost(each.spec)});
      }
    };
    run_layers(request, layers_for(gpu, request, layers), gpu, add_kernels);
    add_kernels(recorded);
  }
  std::ranges::stable_sort(jobs, std::greater{}, &WarmJob::weight);
  return jobs;
}

}  // namespace ingot::tools
