#include "options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "ingot/runtime/error.h"

namespace generate {
namespace {

std::filesystem::path config_beside(const std::filesystem::path& weights) {
  return (std::filesystem::is_directory(weights) ? weights : weights.parent_path()) / "config.json";
}

}  // namespace

void add_options(CLI::App& app, Options& options) {
  std::vector<std::string> names;
  for (const Preset& preset : presets()) names.emplace_back(preset.name);
  std::vector<std::string> dtypes;
  for (const ingot::Dtype dtype : ingot::kWeightDtypes) dtypes.emplace_back(name(dtype));
  const CLI::Range count(std::int64_t{1}, std::int64_t{1} << 20);

  app.add_option("--device", options.device, "auto, cpu or cuda")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}))
      ->capture_default_str();
  app.add_option(
         "--preset", options.preset,
         "sizes of the model (default: those of the weights' config.json, or tiny on the CPU, llama2-7b on a GPU)")
      ->check(CLI::IsMember(names));
  app.add_option("--layers", options.layers, "only the first so many layers")->check(CLI::Range(1, 1024));
  app.add_option("--weights", options.weights, "folder or file of safetensors with Llama's names (default: random)");
  app.add_option("--save", options.save, "folder to write the weights to, as --weights reads them");
  app.add_option("--prompt", options.prompt, "token ids, separated by commas, for every sequence (default: random)")
      ->delimiter(',');
  app.add_option("--prompt-length", options.prompt_length, "of a random prompt")->check(count)->capture_default_str();
  app.add_option("--tokens", options.tokens, "to generate in each sequence")->check(count)->capture_default_str();
  app.add_option("--batch", options.batch, "sequences side by side")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{64}))
      ->capture_default_str();
  app.add_option("--rounds", options.rounds, "of which the median time is told")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--seed", options.seed, "of random weights and prompts")->capture_default_str();
  app.add_option("--only", options.only, "run only bf16 or only quantised weights")
      ->check(CLI::IsMember({"bf16", "quantised"}));
  app.add_option("--dtype", options.dtype, "of the quantised weights")
      ->check(CLI::IsMember(dtypes))
      ->capture_default_str();
  app.add_option("--scale", options.scale, "what shares a factor: tensor, row, 1x128, 1x64, 1x32, 128x128")
      ->check(CLI::IsMember({"tensor", "row", "1x128", "1x64", "1x32", "128x128"}))
      ->capture_default_str();
  app.add_flag("--mx", options.mx, "powers of two for groups of 32 (OCP MX) in place of --scale");
  app.add_flag("--batch-invariant", options.batch_invariant, "a sequence's logits do not depend on the others");
  app.add_flag("--bf16-head", options.bf16_head, "leave the last layer, which gives the logits, in bf16");
  app.add_option("--out", options.out, "file for the report, as JSON");
}

ModelShape shape_of(const Options& options, bool on_gpu) {
  ModelShape shape;
  if (!options.preset.empty()) {
    shape = preset(options.preset).shape;
  } else if (!options.weights.empty()) {
    shape = read_config(config_beside(options.weights));
  } else {
    shape = preset(on_gpu ? "llama2-7b" : "tiny").shape;
  }
  if (options.layers > shape.layers) {
    throw ingot::Error(ingot::ErrorCode::invalid_argument, "--layers",
                       fmt::format("is {}, but the model has {}", options.layers, shape.layers));
  }
  if (options.layers > 0) shape.layers = options.layers;
  return shape;
}

ingot::WeightOnlyOptions weight_options(const Options& options) {
  return {.dtype = *ingot::parse_dtype(options.dtype),
          .scale = *ingot::parse_granularity(options.scale),
          .mx = options.mx,
          .batch_invariant = options.batch_invariant};
}

}  // namespace generate
