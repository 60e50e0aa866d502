// Trains a byte-level language model twice, in bf16 and in FP8, and shows that the losses agree.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <optional>
#include <thread>
#include <vector>

#include "ingot/runtime/context/context.h"
#include "ingot/runtime/util/error.h"
#include "ingot/runtime/util/standard_output.h"
#include "op_runner.h"
#include "options.h"
#include "prepare.h"
#include "ranks.h"
#include "report.h"
#include "text.h"
#include "trainer.h"

namespace train_lm {
namespace {

ingot::ContextOptions context_options(const Options& options) {
  ingot::ContextOptions result = ingot::ContextOptions::from_environment();
  using Where = ingot::ContextOptions::Where;
  if (options.device != "auto") result.where = options.device == "cpu" ? Where::cpu : Where::cuda;
  if (options.ranks > 1 && result.cpu_threads == 0) {
    result.cpu_threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()) / options.ranks);
  }
  return result;
}

int run(int argc, char** argv) {
  int status = 0;
  std::optional<Options> given = read_options(argc, argv, status);
  if (!given) return status;
  Options& options = *given;
  const ingot::ContextOptions of_context = context_options(options);
  ingot::Context context(of_context);
  const bool on_gpu = context.device().type == ingot::DeviceType::cuda;
  complete(options, on_gpu);
  const ingot::ContextInfo info = context.info();
  fmt::print("Training on {}{}\n", info.device_name, info.reason.empty() ? "" : fmt::format(" ({})", info.reason));
  const std::vector<std::uint8_t> text = load_text(options.text);
  fmt::print("{} bytes of text; {:.2f} million parameters; steps: {}, windows in each: {}\n", text.size(),
             static_cast<double>(options.shape.parameters()) / 1e6, options.steps, options.batch);
  std::fflush(stdout);  // before the progress, which goes to stderr
  std::filesystem::create_directories(options.out);
  std::vector<std::string> names{"bf16", "fp8"};
  if (!options.only.empty()) names = {options.only};
  std::vector<ingot::LinearConfig> configs;
  configs.reserve(names.size());
  for (const std::string& name : names) configs.push_back(config_of(options, name));
  std::vector<History> histories;
  std::int64_t launches = 0;
  const auto train = [&](ingot::Context& own, ingot::Comm* comm) {
    prepare(own, options, configs);
    Trainer trainer(own, options, text, comm);
    std::vector<History> found = trainer.train(names);
    if (comm != nullptr && comm->rank() != 0) return;
    histories = std::move(found);
    launches = trainer.launches();
  };
  if (options.ranks == 0) {
    train(context, nullptr);
  } else {
    on_ranks(context, of_context, options.ranks, [&](ingot::Context& own, ingot::Comm& comm) { train(own, &comm); });
  }

  const ingot::KernelCache::Stats stats = context.cache().stats();
  Report report{
      .runs = {},
      .tokens_per_step = options.batch,
      .parameters = options.shape.parameters(),
      .device = info.device_name,
      .target = ingot::print(info.target),
      .recipe = options.recipe,
      .seed = options.seed,
      .settings = settings(options),
      .kernels = {
          .compiled = stats.compiled, .loaded = stats.loaded, .launched = context.device_api().launches() + launches}};
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
