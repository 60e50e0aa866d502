// bench_choice: is the kernel that the library takes without tuning a good one? For each GEMM of choice.h, which the
// cost model was not fitted on, the autotuner's procedure finds the best candidate, with the library's choice as the
// one to beat; then the two run against each other. All kernels are compiled first, in parallel. With --calls and
// --every it produces the data that the cost model is fitted to: the times of all kernels on other GEMMs.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "choice.h"
#include "ingot/codegen/gemm/gemm_candidates.h"
#include "ingot/codegen/gemm/gemm_estimate.h"
#include "ingot/runtime/context/context.h"
#include "ingot/runtime/jit/warm_up.h"
#include "ingot/runtime/measure/autotuner.h"
#include "ingot/runtime/measure/gpu_measurer.h"
#include "ingot/runtime/measure/timing.h"
#include "ingot/runtime/util/error.h"
#include "machine.h"
#include "program.h"

namespace ingot::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kFinalRounds = 9;
constexpr double kAny = 1e9;

struct Options : CaseOptions {
  bool every = false;
  double budget = 150;
  std::string calls{};
};

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

Clock::time_point after(double seconds) {
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

// A rough estimate of how long a GEMM takes to measure, in arbitrary units.
double weight(const GemmCall& call) { return 1 + products_of(call.size) * 1e-12; }

class Bench {
 public:
  Bench(Context& context, const Options& options)
      : context_(&context),
        options_(&options),
        gpu_(context),
        random_(gpu_.backend(), gpu_.stream(),
                [this](void* to, const void* from, std::size_t bytes) { gpu_.copy(to, from, bytes); }) {}

  // The candidates for a call, with the library's own choice first.
  std::vector<MatmulSpec> candidates_of(const GemmCall& call) const {
    std::vector<GemmSpec> all = gemm_candidates(
        call, {.target = context_->cache().target(), .multiprocessors = context_->tuning_machine().multiprocessors});
    all.insert(all.begin(), call.spec);
    if (options_->every) add_every_tiling(all);
    return {all.begin(), all.end()};
  }

  // Compiles the candidates of all cases. A failure is not reported here but with its case.
  void compile(const std::vector<ChoiceCase>& cases) const {
    std::vector<KernelSpec> specs;
    for (const ChoiceCase& c : cases) {
      for (const MatmulSpec& candidate : candidates_of(c.call)) {
        const auto& spec = std::get<GemmSpec>(candidate);
        if (spec.kernel != GemmKernel::cublaslt) specs.emplace_back(spec);
      }
    }
    try {
      warm(context_->cache(), specs, context_->cache().target(), 0);
    } catch (const Error& error) {
      fmt::print(stderr, "bench_choice: warning: {}\n", error.what());
    }
  }

  // share: the part of the time left until `deadline` that this case may use.
  Choice run(const ChoiceCase& c, double share, Clock::time_point deadline) {
    Choice choice{.gemm = c};
    const Clock::time_point enough =
        Clock::now() + std::chrono::duration_cast<Clock::duration>((deadline - Clock::now()) * share);
    GpuMeasurer measurer(gpu_, random_, c.call.spec, c.call.size);
    const AutotuneResult result = autotune(candidates_of(c.call), measurer,
                                           {.fewest_rounds = options_->quick ? 1 : 3,
                                            .most_rounds = options_->quick   ? 1
                                                           : options_->every ? 5
                                                                             : 11,
                                            .behind = options_->every ? kAny : AutotuneOptions{}.behind,
                                            .stop = [&] { return Clock::now() >= deadline; },
                                            .hurry = [&] { return Clock::now() >= enough; }});
    choice.problem = problem_of(result);
    if (!choice.problem.empty()) return choice;
    choice.untuned = untuned_kernel(result);
    const Trial& untuned = result.trials.front();
    const Trial& best = result.trials[*result.chosen];
    if (options_->every) {
      for (const Trial& t : result.trials) {
        if (t.problem.empty()) choice.every.push_back({.kernel = kernel_of(t.spec), .us = t.median_us});
      }
    }
    if (&best == &untuned) {
      choice.best = choice.untuned;
      choice.best_us = choice.untuned_us = untuned.median_us;
      return choice;
    }
    choice.best = kernel_of(best.spec);
    std::vector<double> of_untuned;
    std::vector<double> of_best;
    for (int round = 0; round < (options_->quick ? 1 : kFinalRounds); ++round) {
      of_untuned.push_back(measurer.measure(untuned.spec));
      of_best.push_back(measurer.measure(best.spec));
    }
    choice.untuned_us = median(of_untuned);
    choice.best_us = median(of_best);
    return choice;
  }

 private:
  // Adds also the tilings that the cost model considers slow.
  static void add_every_tiling(std::vector<GemmSpec>& specs) {
    const auto of_sm90 = std::ranges::find(specs, GemmKernel::sm90, &GemmSpec::kernel);
    if (of_sm90 == specs.end()) return;
    GemmSpec spec = *of_sm90;
    for (const GemmTiling& tiling : gemm_tilings(specs.front())) {
      spec.tiling = tiling;
      if (std::ranges::find(specs, spec) == specs.end()) specs.push_back(spec);
    }
  }

  static std::string problem_of(const AutotuneResult& result) {
    for (const Trial& trial : result.trials) {
      if (trial.wrong) return fmt::format("WRONG  {}: {}", kernel_of(trial.spec), trial.problem);
    }
    if (result.stopped) return "not reached: the budget is spent";
    const Trial& untuned = result.trials.front();
    if (!result.chosen || !untuned.problem.empty()) return "FAILED  " + untuned.problem;
    return {};
  }

  // Candidates are in the library's order of preference, so the first one that works is the library's choice.
  static std::string untuned_kernel(const AutotuneResult& result) {
    for (const Trial& trial : result.trials) {
      if (names_kernel(trial.spec) && trial.problem.empty()) return kernel_of(trial.spec);
    }
    return "?";
  }

  Context* context_;
  const Options* options_;
  MeasuredGpu gpu_;
  RandomData random_;
};

void write(const std::string& path, const Machine& machine, double compile_s, const std::vector<Choice>& choices) {
  nlohmann::ordered_json json = header("gemm choice", machine);
  json["compile_seconds"] = compile_s;
  json["summary"] = to_json(summary_of(choices));
  json["cases"] = nlohmann::ordered_json::array();
  for (const Choice& choice : choices) json["cases"].push_back(to_json(choice));
  write_json(path, json);
}

int run(const Options& options) {
  std::vector<ChoiceCase> cases = options.calls.empty() ? choice_cases() : read_choice_cases(options.calls);
  keep_chosen(cases, options.filters,
              [](const ChoiceCase& c) { return name(c) + ", " + print(KernelSpec(c.call.spec)); });
  if (options.list) {
    for (const ChoiceCase& c : cases) fmt::print("{:<48}{}\n", name(c), print(KernelSpec(c.call.spec)));
    return 0;
  }
  std::optional<ContextOptions> on_cuda = cuda_options();
  if (!on_cuda) return kSkipped;
  on_cuda->tuning = Tuning::off;  // `untuned` must not know any tuning records
  Context context(*on_cuda);
  const Machine machine = machine_of(context, options.commit);
  Bench bench(context, options);

  const Clock::time_point begin = Clock::now();
  const Clock::time_point deadline = after(options.budget);
  bench.compile(cases);
  const double compile_s = seconds_since(begin);
  fmt::print(stderr, "kernels ready after {:.1f} s\n", compile_s);
  double left = 0;
  for (const ChoiceCase& c : cases) left += weight(c.call);
  std::vector<Choice> choices;
  for (const ChoiceCase& c : cases) {
    choices.push_back({.gemm = c, .problem = "not reached: the budget is spent"});
    if (Clock::now() >= deadline) continue;
    try {
      choices.back() = bench.run(c, weight(c.call) / left, deadline);
    } catch (const Error& error) {
      choices.back().problem = std::string("FAILED  ") + error.what();
    }
    left -= weight(c.call);
    fmt::print(stderr, "{:>3}/{} {:6.1f} s  {}\n", choices.size(), cases.size(), seconds_since(begin), name(c));
  }
  fmt::print(
      "Ingot {} ({}), {}, driver {}, cuBLASLt {}, {}; {:.1f} s, of which {:.1f} s until the kernels were ready\n\n{}",
      machine.ingot, machine.commit, machine.device, machine.driver, machine.cublaslt, machine.date,
      seconds_since(begin), compile_s, to_text(choices));
  if (!options.json.empty()) write(options.json, machine, compile_s, choices);
  const bool failed = std::ranges::any_of(
      choices, [](const Choice& c) { return c.problem.starts_with("WRONG") || c.problem.starts_with("FAILED"); });
  return failed ? kFailed : 0;
}

}  // namespace
}  // namespace ingot::bench

int main(int argc, char** argv) {
  CLI::App app{"Compares the kernels that Ingot chooses without tuning with the best that tuning finds.",
               "bench_choice"};
  ingot::bench::Options options;
  add_options(app, options);
  app.add_option("--calls", options.calls, "A file of other GEMMs: a name, a tab and a call as ingot tune takes it");
  app.add_flag("--every", options.every, "Time every kernel to the end, slow ones too, and write the times to --json");
  app.add_option("--budget", options.budget, "Seconds for all cases; cases beyond that are left out")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  return ingot::bench::run_program(app, argc, argv, [&] { return ingot::bench::run(options); });
}
