#include "options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "ingot/nn/recipe/recipes.h"
#include "ingot/runtime/util/error.h"
#include "option_checks.h"

namespace train_lm {
namespace {

struct Preset {
  ModelShape shape;
  std::int64_t batch, steps, warmup_steps, checkpoint_every;
  double learning_rate;
};

// Takes a minute per model on two cores.
constexpr Preset kSmall{.shape = {.context = 32, .embedding = 16, .hidden = 512, .blocks = 2},
                        .batch = 256,
                        .steps = 400,
                        .warmup_steps = 20,
                        .checkpoint_every = 50,
                        .learning_rate = 2e-3};
// 135 million parameters. A checkpoint has 1.6 GB, so it is written only when asked for.
constexpr Preset kLarge{.shape = {.context = 128, .embedding = 32, .hidden = 8192, .blocks = 2},
                        .batch = 8192,
                        .steps = 600,
                        .warmup_steps = 100,
                        .checkpoint_every = 0,
                        .learning_rate = 4e-4};

template <class Value>
void fill(Value& value, Value unset, Value preset) {
  if (value == unset) value = preset;
}

void require(bool condition, const char* option, const std::string& rule) {
  if (!condition) throw ingot::Error(ingot::ErrorCode::invalid_argument, option, rule);
}

void add_options(CLI::App& app, Options& options) {
  // Limits that keep every size of the model far from overflowing 64 bits.
  const CLI::Range size(std::int64_t{1}, std::int64_t{1} << 20);
  const CLI::Range count(std::int64_t{1}, std::int64_t{1} << 30);
  const CLI::Range count_or_none(std::int64_t{0}, std::int64_t{1} << 30);
  app.add_option("--text", options.text, "file to train on (default: the King James Bible of Debian's bible-kjv)");
  app.add_option("--out", options.out, "folder for loss.csv, loss.svg, summary.json and the checkpoint")
      ->capture_default_str();
  app.add_option("--device", options.device, "auto, cpu or cuda")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}))
      ->capture_default_str();
  app.add_option("--size", options.size, "small or large (default: small on the CPU, large on a GPU)")
      ->check(CLI::IsMember({"small", "large"}));
  app.add_option("--only", options.only, "train only bf16 or only fp8")->check(CLI::IsMember({"bf16", "fp8"}));
  std::vector<std::string> recipes;
  for (const ingot::Recipe& recipe : ingot::recipes()) recipes.emplace_back(recipe.name);
  app.add_option("--recipe", options.recipe, "recipe of the FP8 model")
      ->check(CLI::IsMember(recipes))
      ->capture_default_str();
  app.add_option("--context", options.shape.context, "bytes of text that predict the next one")->check(size);
  app.add_option("--embedding", options.shape.embedding, "dimensions per byte; width = context x embedding")
      ->check(size);
  app.add_option("--hidden", options.shape.hidden, "width inside a block")->check(size);
  app.add_option("--blocks", options.shape.blocks, "residual blocks of two linear layers")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1024}));
  app.add_option("--batch", options.batch, "windows per step, each predicting one byte")->check(size);
  app.add_option("--steps", options.steps, "optimizer steps")->check(count);
  app.add_option("--lr", options.learning_rate, "peak learning rate (default: by size and blocks)")
      ->check(examples::number_in(1e-12, 1e3));
  app.add_option("--final-lr", options.final_rate, "learning rate at the end, as a share of the peak")
      ->check(examples::number_in(0.0, 1.0))
      ->capture_default_str();
  app.add_option("--warmup", options.warmup_steps, "steps of linear warm-up before the cosine")->check(count_or_none);
  app.add_option("--weight-decay", options.weight_decay, "AdamW's weight decay")
      ->check(examples::number_in(0.0, 1e3))
      ->capture_default_str();
  app.add_option("--clip", options.clip, "the most that the norm of all gradients may be, 0 for any")
      ->check(examples::number_in(0.0, 1e6))
      ->capture_default_str();
  static constexpr std::array<const char*, 3> kWeightCodes{"each", "together", "masters"};
  app.add_option_function<std::string>(
         "--weight-codes",
         [&options](const std::string& name) {
           const auto at = std::ranges::find(kWeightCodes, name) - kWeightCodes.begin();
           options.weight_codes = static_cast<WeightCodes>(at);
         },
         "how weights become FP8 codes: each by its layer, all together in one launch, or so of their f32 masters, "
         "without a bf16 weight")
      ->check(CLI::IsMember(std::vector<std::string>(kWeightCodes.begin(), kWeightCodes.end())))
      ->default_str("together");
  app.add_option("--ranks", options.ranks,
                 "ranks that divide each batch, the f32 weights and the optimizer's state: threads on the CPU, a GPU "
                 "each with NCCL")
      ->check(CLI::Range(1, 1024));
  app.add_option("--micro-batches", options.micro_batches,
                 "parts of a step whose gradients are accumulated; with --ranks those of all ranks (default: one each)")
      ->check(count)
      ->capture_default_str();
  app.add_option("--graph", options.graph, "auto, on or off: replay steps from a CUDA graph")
      ->check(CLI::IsMember({"auto", "on", "off"}))
      ->capture_default_str();
  app.add_option("--seed", options.seed, "seed of the weights and the batches")
      ->check(examples::seed())
      ->capture_default_str();
  app.add_option("--checkpoint-every", options.checkpoint_every, "steps between checkpoints, 0 for none")
      ->check(count_or_none);
  app.add_flag("--resume", options.resume, "go on from the checkpoint in --out");
}

}  // namespace

std::int64_t ModelShape::parameters() const { return 256 * embedding + blocks * 2 * width() * hidden + width() * 256; }

std::optional<Options> read_options(int argc, char** argv, int& status) {
  return examples::parsed_options(
      "Trains a byte-level language model twice, in bf16 and in FP8, from the same seed on the same batches.",
      add_options, argc, argv, status);
}

void complete(Options& options, bool on_gpu) {
  if (options.size.empty()) options.size = on_gpu ? "large" : "small";
  const Preset& preset = options.size == "large" ? kLarge : kSmall;
  fill(options.shape.context, {}, preset.shape.context);
  fill(options.shape.embedding, {}, preset.shape.embedding);
  fill(options.shape.hidden, {}, preset.shape.hidden);
  fill(options.shape.blocks, {}, preset.shape.blocks);
  fill(options.batch, {}, preset.batch);
  fill(options.steps, {}, preset.steps);
  fill(options.warmup_steps, std::int64_t{-1}, preset.warmup_steps);
  if (options.ranks > 0) {
    fill(options.checkpoint_every, std::int64_t{-1}, std::int64_t{0});
    fill(options.micro_batches, std::int64_t{1}, std::int64_t{options.ranks});
  }
  fill(options.checkpoint_every, std::int64_t{-1}, preset.checkpoint_every);
  // The preset's rate is for its blocks; the more there are, the more a step of all of them changes the output.
  const double more_blocks = static_cast<double>(options.shape.blocks) / static_cast<double>(preset.shape.blocks);
  fill(options.learning_rate, {}, preset.learning_rate / std::sqrt(std::max(1.0, more_blocks)));

  const ModelShape& shape = options.shape;
  require(shape.embedding % 8 == 0, "--embedding", fmt::format("is {}, but must be a multiple of 8", shape.embedding));
  require(shape.hidden % 8 == 0, "--hidden", fmt::format("is {}, but must be a multiple of 8", shape.hidden));
  require(options.batch % options.micro_batches == 0, "--micro-batches",
          fmt::format("is {}, but must divide the batch of {}", options.micro_batches, options.batch));
  if (options.ranks > 0) {
    require(options.micro_batches % options.ranks == 0, "--micro-batches",
            fmt::format("is {}, but {} ranks must divide it", options.micro_batches, options.ranks));
    require(options.checkpoint_every == 0 && !options.resume, "--ranks",
            "has no checkpoints: leave out --checkpoint-every and --resume");
  }
  require(options.graph != "on" || on_gpu, "--graph", "is on, but the CPU has no graphs: leave it at auto");
  constexpr std::int64_t kMaxWidth = std::int64_t{1} << 20;
  require(shape.width() <= kMaxWidth, "--context",
          fmt::format("x --embedding is {}, but the model may be at most {} wide", shape.width(), kMaxWidth));
}

std::vector<std::pair<std::string, double>> settings(const Options& options) {
  const ModelShape& shape = options.shape;
  std::vector<std::pair<std::string, double>> all{
      {"context", static_cast<double>(shape.context)}, {"embedding", static_cast<double>(shape.embedding)},
      {"hidden", static_cast<double>(shape.hidden)},   {"blocks", static_cast<double>(shape.blocks)},
      {"batch", static_cast<double>(options.batch)},   {"micro_batches", static_cast<double>(options.micro_batches)},
      {"learning_rate", options.learning_rate},        {"warmup", static_cast<double>(options.warmup_steps)},
      {"weight_decay", options.weight_decay},          {"clip", options.clip},
      {"seed", static_cast<double>(options.seed)}};
  if (options.ranks > 0) all.emplace_back("ranks", options.ranks);
  return all;
}

std::string fingerprint(const Options& options, std::uint64_t text_digest, bool on_gpu) {
  const ModelShape& shape = options.shape;
  // The other two give the same numbers.
  const char* const masters = options.weight_codes == WeightCodes::masters ? " codes=masters" : "";
  return fmt::format(
      "text={:016x} context={} embedding={} hidden={} blocks={} batch={} steps={} lr={} final={} warmup={} decay={} "
      "clip={} "
      "micro={} seed={} only={} recipe={} device={}{}",
      text_digest, shape.context, shape.embedding, shape.hidden, shape.blocks, options.batch, options.steps,
      options.learning_rate, options.final_rate, options.warmup_steps, options.weight_decay, options.clip,
      options.micro_batches, options.seed, options.only.empty() ? "both" : options.only, options.recipe,
      on_gpu ? "cuda" : "cpu", masters);
}

}  // namespace train_lm
