#include "options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "ingot/runtime/util/error.h"
#include "option_checks.h"

namespace generate {
namespace {

[[noreturn]] void refuse(const char* option, const std::string& message,
                         ingot::ErrorCode code = ingot::ErrorCode::invalid_argument) {
  throw ingot::Error(code, option, message);
}

void check_quantised(const Options& options) {
  const ingot::Dtype dtype = *ingot::parse_dtype(options.dtype);
  if (ingot::is_sub_byte(dtype) && !options.mx) {
    refuse("--dtype", fmt::format("{} is made with MX's scales only: add --mx", options.dtype));
  }
  if (options.mx && !ingot::is_mx_element(dtype)) {
    std::string elements;
    for (const ingot::Dtype element : ingot::kMxDtypes) {
      elements.append(elements.empty() ? "" : element == ingot::kMxDtypes.back() ? " or " : ", ").append(name(element));
    }
    refuse("--mx", fmt::format("OCP MX has no {}: choose {}, or leave --mx out", options.dtype, elements));
  }
}

// Never overwrites a model.
void check_save(const std::filesystem::path& folder) {
  namespace fs = std::filesystem;
  if (!fs::exists(folder)) return;
  if (!fs::is_directory(folder)) refuse("--save", fmt::format("{} is not a folder", folder.string()));
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const fs::path& file = entry.path();
    if (file.filename() == "config.json" || file.filename() == "model.safetensors.index.json" ||
        file.extension() == ".safetensors") {
      refuse("--save", fmt::format("the folder {} has a model already ({}); choose another folder", folder.string(),
                                   file.filename().string()));
    }
  }
}

std::filesystem::path config_beside(const std::filesystem::path& weights) {
  return (std::filesystem::is_directory(weights) ? weights : weights.parent_path()) / "config.json";
}

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
  app.add_option("--layers", options.layers, "use only this many layers, from the first on")
      ->check(CLI::Range(1, 1024));
  app.add_option("--weights", options.weights,
                 "folder or file of safetensors of bf16, f16 or f32, with Llama's names (default: random)");
  app.add_option("--save", options.save, "folder to write the weights to in bf16, as --weights reads them");
  auto* const prompt =
      app.add_option("--prompt", options.prompt, "token ids, separated by commas, for every sequence (default: random)")
          ->delimiter(',');
  app.add_option("--prompt-length", options.prompt_length, "length of a random prompt")
      ->check(count)
      ->capture_default_str()
      ->excludes(prompt);
  app.add_option("--tokens", options.tokens, "tokens to generate in each sequence")
      ->check(count)
      ->capture_default_str();
  app.add_option("--batch", options.batch, "sequences decoded together")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{64}))
      ->capture_default_str();
  app.add_option("--rounds", options.rounds, "rounds to measure; the report has their median time")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--seed", options.seed, "seed of random weights and prompts")
      ->check(examples::seed())
      ->capture_default_str();
  app.add_option("--only", options.only, "run only bf16 or only quantised weights")
      ->check(CLI::IsMember({"bf16", "quantised"}));
  app.add_option("--dtype", options.dtype, "dtype of the quantised weights; those of 6 and 4 bits need --mx")
      ->check(CLI::IsMember(dtypes))
      ->capture_default_str();
  auto* const scale = app.add_option("--scale", options.scale,
                                     "granularity of the weights' scale_inv: tensor, row, 1x128, 1x64, 1x32, 128x128")
                          ->check(CLI::IsMember({"tensor", "row", "1x128", "1x64", "1x32", "128x128"}))
                          ->capture_default_str();
  app.add_flag("--mx", options.mx, "scale_inv that are powers of two for groups of 32 (OCP MX), instead of --scale")
      ->excludes(scale);
  app.add_flag("--batch-invariant", options.batch_invariant, "a sequence's logits do not depend on the others");
  app.add_flag("--bf16-head", options.bf16_head, "leave the last layer, which gives the logits, in bf16");
  app.add_option("--out", options.out, "file for the report, as JSON");
}

}  // namespace

std::optional<Options> read_options(int argc, char** argv, int& status) {
  return examples::parsed_options(
      "Decodes tokens with a model of Llama's kind, with its weights in bf16 and in fewer bits.", add_options, argc,
      argv, status);
}

void check(const Options& options) {
  namespace fs = std::filesystem;
  if (options.only != "bf16") check_quantised(options);
  if (!options.weights.empty() && !fs::exists(options.weights)) {
    refuse("--weights", fmt::format("no such file or folder: {}", options.weights.string()),
           ingot::ErrorCode::not_found);
  }
  if (!options.save.empty()) check_save(options.save);
  if (options.out.empty()) return;
  const fs::path folder = options.out.has_parent_path() ? options.out.parent_path() : fs::path(".");
  if (!fs::is_directory(folder)) {
    refuse("--out", fmt::format("{} cannot be written: there is no folder {}; make it first", options.out.string(),
                                folder.string()));
  }
  if (fs::is_directory(options.out)) {
    refuse("--out", fmt::format("{} is a folder; name a file", options.out.string()));
  }
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
