// Trains a byte-level language model twice, in bf16 and in FP8, and shows that the losses agree.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <exception>
#include <vector>

#include "ingot/codegen/kernel_spec.h"
#include "ingot/nn/recipes.h"
#include "ingot/runtime/context.h"
#include "ingot/runtime/error.h"
#include "ingot/runtime/util/standard_output.h"
#include "op_runner.h"
#include "options.h"
#include "report.h"
#include "text.h"
#include "trainer.h"

namespace train_lm {
namespace {

ingot::ContextOptions context_options(const Options& options) {
  ingot::ContextOptions result = ingot::ContextOptions::from_environment();
  using Where = ingot::ContextOptions::Where;
  if (options.device != "auto") result.where = options.device == "cpu" ? Where::cpu : Where::cuda;
  return result;
}

// Compiles the kernels that training on a GPU launches, unless the store has them. On a GPU this keeps the compiler out
// of the first step; on a machine without one it fills the store for a machine that has a GPU.
void warm_up(ingot::Context& context, const ingot::LinearConfig& config) {
  if (context.compiler() == nullptr) return;
  using ingot::Dtype;
  std::vector<ingot::KernelSpec> specs{ingot::ColumnSumSpec{.in = Dtype::bf16, .out = Dtype::bf16}};
  const auto add = [&](const ingot::TensorCasts& casts, bool sums) {
    if (!casts.codes && !casts.transposed) return;
    ingot::CastSpec spec = cast_spec(casts, Dtype::bf16);
    if (sums && spec.transposed) spec.sum = Dtype::bf16;  // the gradient of the bias
    if (std::ranges::find(specs, ingot::KernelSpec(spec)) == specs.end()) specs.emplace_back(spec);
  };
  add(input_casts(config), false);
  add(weight_casts(config), false);
  const bool folds = config.input == ingot::OtherCodes::folded || config.weight == ingot::OtherCodes::folded;
  if (!folds) add(grad_output_casts(config), true);
  if (config.output.a && config.output.a->scaling == ingot::Scaling::delayed) {
    specs.emplace_back(ingot::AmaxSpec{.in = Dtype::bf16});
    specs.emplace_back(ingot::AmaxHistorySpec{});
  }
  context.cache().warm(specs, context.cache().target(), 0);
  for (const std::string_view op : all_op_names()) context.cache().compiled(source_of(op), context.cache().target());
}

int run(int argc, char** argv) {
  CLI::App app("Trains a byte-level language model twice, in bf16 and in FP8, from the same seed on the same batches.");
  Options options;
  add_options(app, options);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;  // 0: --help
  }
  ingot::Context context(context_options(options));
  const bool on_gpu = context.device().type == ingot::DeviceType::cuda;
  complete(options, on_gpu);
  const ingot::ContextInfo info = context.info();
  fmt::print("Training on {}{}\n", info.device_name, info.reason.empty() ? "" : fmt::format(" ({})", info.reason));
  const std::vector<std::uint8_t> text = load_text(options.text);
  fmt::print("{} bytes of text; {:.2f} million parameters; {} steps of {} windows\n", text.size(),
             static_cast<double>(options.shape.parameters()) / 1e6, options.steps, options.batch);
  std::fflush(stdout);  // before the progress, which goes to stderr
  std::filesystem::create_directories(options.out);
  warm_up(context, ingot::recipe(options.recipe));

  Trainer trainer(context, options, text);
  std::vector<std::string> names{"bf16", "fp8"};
  if (!options.only.empty()) names = {options.only};
  const std::vector<History> histories = trainer.train(names);

  const ingot::KernelCache::Stats stats = context.cache().stats();
  Report report{.runs = {},
                .tokens_per_step = options.batch,
                .parameters = options.shape.parameters(),
                .device = info.device_name,
                .target = ingot::print(info.target),
                .recipe = options.recipe,
                .kernels = {.compiled = stats.compiled,
                            .loaded = stats.loaded,
                            .launched = context.backend().launches() + trainer.launches()}};
  for (std::size_t i = 0; i < names.size(); ++i) report.runs.push_back({.name = names[i], .history = histories[i]});
  fmt::print("{}", table(report));
  write_report(options.out, report);
  fmt::print("loss curves: {}, numbers: {}\n", (options.out / "loss.svg").string(),
             (options.out / "loss.csv").string());
  return 0;
}

}  // namespace
}  // namespace train_lm

int main(int argc, char** argv) {
  ingot::reserve_standard_streams();
  try {
    const int status = train_lm::run(argc, argv);
    ingot::finish_standard_output();
    return status;
  } catch (const ingot::Error& error) {
    std::fputs(fmt::format("train_lm: error: {}\n{}", error.what(), error.log()).c_str(), stderr);
  } catch (const std::exception& error) {
    std::fputs(fmt::format("train_lm: error: {}\n", error.what()).c_str(), stderr);
  }
  return 1;
}
