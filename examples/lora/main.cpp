// Trains adapters of low rank for frozen weights, first with the weights in bf16, then with their FP8 codes and
// scale_inv alone, and shows that the losses agree.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>
#include <exception>
#include <optional>
#include <string>
#include <vector>

#include "ingot/nn/recipe/recipes.h"
#include "ingot/runtime/context/context.h"
#include "ingot/runtime/util/error.h"
#include "ingot/runtime/util/standard_output.h"
#include "model.h"

namespace lora {
namespace {

constexpr double kAgree = 0.01;  // the losses of both bases at the end

struct Options {
  std::string device = "auto";
  std::string recipe = "blockwise";  // the checkpoint's scales, and how its codes are multiplied
  std::int64_t rank = 16;
  std::int64_t steps = 60;
};

// The recipes that take a frozen weight's scale_inv in both directions (docs/checkpoints.md).
const std::vector<std::string> kRecipes{"tensorwise", "rowwise_folded", "blockwise"};

void add_options(CLI::App& app, Options& options) {
  app.add_option("--device", options.device, "auto, cpu or cuda")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}))
      ->capture_default_str();
  app.add_option("--recipe", options.recipe, "how the frozen weights are stored and multiplied in FP8")
      ->check(CLI::IsMember(kRecipes))
      ->capture_default_str();
  app.add_option("--rank", options.rank, "of the adapters")
      ->check(CLI::IsMember({8, 16, 32, 64}))
      ->capture_default_str();
  app.add_option("--steps", options.steps, "optimizer steps")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 20))
      ->capture_default_str();
}

ModelShape shape_of(const Options& options, bool on_gpu) {
  if (on_gpu) return {.tokens = 8192, .features = 4096, .hidden = 8192, .classes = 1024, .rank = options.rank};
  return {.tokens = 1024, .features = 64, .hidden = 128, .classes = 64, .rank = options.rank};
}

// Prints a line and returns the last loss; NaN if the loss has not fallen.
double run_base(ingot::Context& context, ingot::Stream& stream, training::OpRunner& ops, const Task& task,
                const Options& options, const char* name, const std::optional<ingot::LinearConfig>& config) {
  Model model(context.backend(), stream, ops, task, config);
  const bool on_gpu = context.device().type == ingot::DeviceType::cuda;
  const std::vector<float> losses =
      train(context.backend(), stream, ops, model, {.steps = options.steps, .learning_rate = on_gpu ? 2e-3 : 5e-3});
  fmt::print("{:<22} {:>12} {:>12.4f} {:>12.4f}\n", name, model.frozen_bytes(), losses.front(), losses.back());
  return losses.back() < losses.front() || options.steps == 1 ? losses.back() : std::nan("");
}

int run(int argc, char** argv) {
  CLI::App app("Trains adapters of low rank for frozen weights in bf16 and in FP8, and compares the losses.");
  Options options;
  add_options(app, options);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;  // 0: --help
  }
  ingot::ContextOptions where = ingot::ContextOptions::from_environment();
  using Where = ingot::ContextOptions::Where;
  if (options.device != "auto") where.where = options.device == "cpu" ? Where::cpu : Where::cuda;
  ingot::Context context(where);
  ingot::Stream stream(context.backend());
  training::OpRunner ops(context, stream);
  fmt::print("Rank-{} adapters on {}, steps: {}\n", options.rank, context.info().device_name, options.steps);

  const ModelShape shape = shape_of(options, context.device().type == ingot::DeviceType::cuda);
  const Task task(context.backend(), stream, ops, shape, 1);
  fmt::print("{:<22} {:>12} {:>12} {:>12}\n", "frozen weights", "their bytes", "first loss", "last loss");
  const double bf16 = run_base(context, stream, ops, task, options, "bf16", std::nullopt);
  const std::string name = "fp8, " + options.recipe;
  const double fp8 = run_base(context, stream, ops, task, options, name.c_str(), ingot::recipe(options.recipe));
  const double gap = fp8 / bf16 - 1;
  const bool agree = std::abs(gap) <= kAgree;  // false for NaN
  fmt::print("fp8 against bf16: {:+.2f} %, {} {:.0f} %\n", 100 * gap, agree ? "within" : "NOT within", 100 * kAgree);
  return agree ? 0 : 1;
}

}  // namespace
}  // namespace lora

int main(int argc, char** argv) {
  ingot::reserve_standard_streams();
  try {
    const int status = lora::run(argc, argv);
    ingot::finish_standard_output();
    return status;
  } catch (const ingot::Error& error) {
    std::fputs(fmt::format("lora: error: {}\n{}", error.what(), error.log()).c_str(), stderr);
  } catch (const std::exception& error) {
    std::fputs(fmt::format("lora: error: {}\n", error.what()).c_str(), stderr);
  }
  return 1;
}
