// bench_linear: times a layer's step, forward and backward, with every recipe and with bf16 in the same run. Checks
// each result before it times it, and prints a roofline of measured rates next to each time. At the end it measures
// what a step of a small layer costs the host, by the layer's class and by its functions.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "ceiling.h"
#include "contenders.h"
#include "host_cost.h"
#include "ingot/runtime/cuda/graph.h"
#include "ingot/runtime/util/error.h"
#include "linear_functions_step.h"
#include "linear_step.h"
#include "program.h"

namespace ingot::bench {
namespace {

using Json = nlohmann::ordered_json;

struct Options : CaseOptions {
  bool host = false;
  double fused_products = kFusedProducts;
  std::string recipe{};
};

struct RecipeResult {
  std::string recipe;
  std::string config;
  bool side = false;  // does the layer have a side stream?
  StepQuality quality{};
  Timing timing{};
  std::size_t saved_bytes = 0;
  double roofline_us = 0;
  std::string fault{};
};

struct CaseResult {
  LinearBenchCase bench_case;
  std::vector<RecipeResult> recipes{};  // baseline first
};

double speedup(const CaseResult& result, const RecipeResult& of) {
  return result.recipes.front().timing.median_us / of.timing.median_us;
}

// The host's time for a step, in microseconds.
struct HostStep {
  std::string recipe;
  std::int64_t launches = 0;
  double by_class = 0;
  double by_functions = 0;
  double captured = 0;  // the step as one graph
};

class Bench {
 public:
  Bench(Context& context, const Options& options)
      : gpu_(context),
        random_(gpu_.backend(), gpu_.stream(),
                [this](void* to, const void* from, std::size_t bytes) { gpu_.copy(to, from, bytes); }),
        side_(gpu_.backend()),
        fused_products_(options.fused_products),
        measure_(options.quick ? MeasureOptions{.rounds = 3, .graph_us = 1500}
                               : MeasureOptions{.rounds = 11, .graph_us = 4000}) {
    for (const Recipe& known : recipes()) {
      if (options.recipe.empty() || recipes_.empty() || known.name == options.recipe) recipes_.push_back(known);
    }
    if (!options.recipe.empty()) return;
    // The third way to handle scales that do not transpose (docs/layers.md): keep only the caller's tensors and cast
    // again.
    Recipe again{.name = "rowwise_again", .config = rowwise()};
    again.config.input = again.config.weight = OtherCodes::again;
    recipes_.push_back(again);
  }

  // Measures the rates of the roofline: a copy, and GEMMs of 8192 cubed with all operands ready.
  Rates measure_rates() {
    Rates rates{.tb_per_s = measure_copy_ceiling(gpu_, random_, measure_).tb_per_s};
    rates.bf16_tflops = gemm_tflops({.a = Dtype::bf16, .b = Dtype::bf16});
    rates.fp8_tflops = gemm_tflops({.scale_a = kRowwise, .scale_b = kRowwise, .fast_accumulation = true});
    return rates;
  }

  CaseResult run(const LinearBenchCase& c, const Rates& rates) {
    fmt::print(stderr, "{}\n", name(c));
    CaseResult result{.bench_case = c};
    const auto copies = make_copies(gpu_, random_, c.size);
    std::vector<std::unique_ptr<RecipeSteps>> steps;
    std::vector<std::unique_ptr<Replay>> replays;
    std::vector<std::size_t> timed;
    StepSample baseline;
    // Times small layers once more with a side stream, which the baseline does not use.
    const std::size_t rounds = LinearOptions::is_small(c.size.tokens, c.size.in_features, c.size.out_features) ? 2 : 1;
    for (std::size_t i = 0; i < rounds * recipes_.size(); ++i) {
      const Recipe& recipe = recipes_[i % recipes_.size()];
      const bool beside = i >= recipes_.size();
      result.recipes.push_back({.recipe = fmt::format("{}{}", recipe.name, beside ? " +side" : ""),
                                .config = print(recipe.config),
                                .side = beside,
                                .roofline_us = roofline_us(c, recipe.config, rates)});
      auto step = std::make_unique<RecipeSteps>(gpu_, c, recipe, copies, beside ? &side_ : nullptr, fused_products_);
      auto replay = std::make_unique<Replay>(gpu_, step->call(), measure_);
      for (const auto& tensors : copies) tensors->poison(gpu_);
      replay->launch();
      StepSample found = sample(gpu_, *copies.back());
      RecipeResult& entry = result.recipes.back();
      entry.saved_bytes = step->saved_bytes();
      if (result.recipes.size() == 1) {
        entry.fault = fault_of_baseline(gpu_, c, *copies.back());
        baseline = std::move(found);
      } else {
        entry.quality = quality(baseline, found);
        entry.fault = fault(entry.quality);
      }
      steps.push_back(std::move(step));
      if (!entry.fault.empty()) continue;
      timed.push_back(result.recipes.size() - 1);
      replays.push_back(std::move(replay));
    }
    warm_up(replays, 40);
    const std::vector<Timing> timings = measure(replays, measure_);
    for (std::size_t i = 0; i < timed.size(); ++i) result.recipes[timed[i]].timing = timings[i];
    return result;
  }

  // For a step of a layer with 256 features and 256 tokens, all in batches that alternate. The stream is idle, so the
  // host never waits.
  std::vector<HostStep> host_steps() {
    const LinearBenchCase c{.size = {256, 256, 256}};
    std::vector<std::unique_ptr<StepTensors>> copies;
    copies.push_back(std::make_unique<StepTensors>(gpu_, random_, c.size, 1));
    const StepTensors& t = *copies.front();
    const FunctionsStepTensors tensors{t.input, t.weight, t.grad_output, t.output, t.grad_input, t.grad_weight};
    std::vector<std::unique_ptr<RecipeSteps>> by_class;
    std::vector<std::unique_ptr<FunctionsStep>> by_functions;
    std::vector<std::unique_ptr<Graph>> graphs;
    std::vector<HostStep> costs;
    std::vector<std::function<void()>> calls;
    for (const Recipe& recipe : recipes_) {
      RecipeSteps& step = *by_class.emplace_back(std::make_unique<RecipeSteps>(gpu_, c, recipe, copies));
      FunctionsStep& functions =
          *by_functions.emplace_back(std::make_unique<FunctionsStep>(recipe, tensors, gpu_.backend(), gpu_.stream()));
      step.enqueue(0);
      functions.enqueue();
      const std::int64_t before = gpu_.backend().device_api().launches();
      step.enqueue(0);
      costs.push_back(
          {.recipe = std::string(recipe.name), .launches = gpu_.backend().device_api().launches() - before});
      Graph& graph = *graphs.emplace_back(std::make_unique<Graph>(gpu_.stream(), [&step] { step.enqueue(0); }));
      graph.replay(gpu_.stream());  // instantiates it
      calls.insert(calls.end(), {[&step] { step.enqueue(0); }, [&functions] { functions.enqueue(); },
                                 [&graph, this] { graph.replay(gpu_.stream()); }});
    }
    const std::vector<double> ns = host_ns(gpu_, calls, measure_.rounds);
    for (std::size_t i = 0; i < costs.size(); ++i) {
      costs[i].by_class = ns[3 * i] * 1e-3;
      costs[i].by_functions = ns[3 * i + 1] * 1e-3;
      costs[i].captured = ns[3 * i + 2] * 1e-3;
    }
    return costs;
  }

 private:
  double gemm_tflops(const GemmSpec& spec) {
    constexpr std::int64_t kSize = 8192;
    const LinearBenchCase c{.size = {kSize, kSize, kSize}};
    const auto copies = make_copies(gpu_, random_, c.size);
    std::vector<Float8Tensor> codes(2 * copies.size());
    const auto operand = [&](const OwnedTensor& values, Float8Tensor& to) {
      if (is_fp8(spec.a)) {
        cast_to(to, {.scale = kRowwise}, values, gpu_.backend(), gpu_.stream());
        return to.codes.view();
      }
      return values.view();
    };
    std::vector<GemmTensors> tensors;
    for (std::size_t i = 0; i < copies.size(); ++i) {
      GemmTensors gemm{.a = operand(copies[i]->input, codes[2 * i]),
                       .b = operand(copies[i]->weight, codes[2 * i + 1]),
                       .out = copies[i]->output};
      if (is_fp8(spec.a)) {
        gemm.scale_inv_a = codes[2 * i].scale_inv;
        gemm.scale_inv_b = codes[2 * i + 1].scale_inv;
      }
      tensors.push_back(gemm);
    }
    std::vector<std::unique_ptr<Replay>> replays;
    replays.push_back(std::make_unique<Replay>(
        gpu_,
        RotatedCall{
            .copies = static_cast<int>(copies.size()),
            .enqueue =
                [&](int copy) { gpu_.backend().gemm(spec, tensors[static_cast<std::size_t>(copy)], gpu_.stream()); }},
        measure_));
    warm_up(replays, 20);
    return operations(c) / 3 / measure(replays, measure_).front().median_us * 1e-6;
  }

  MeasuredGpu gpu_;
  RandomData random_;
  Stream side_;
  double fused_products_;
  MeasureOptions measure_;
  std::vector<Recipe> recipes_;
};

void print_table(const std::vector<CaseResult>& results) {
  fmt::print("\n{:<46}{:<20}{:>10}{:>9}{:>9}{:>11}{:>10}{:>12}\n", "case", "recipe", "us", "min", "max", "over bf16",
             "roofline", "MB saved");
  for (const CaseResult& result : results) {
    for (const RecipeResult& r : result.recipes) {
      if (!r.fault.empty()) {
        fmt::print("{:<46}{:<20} WRONG  {}\n", name(result.bench_case), r.recipe, r.fault);
        continue;
      }
      fmt::print("{:<46}{:<20}{:>10.1f}{:>9.1f}{:>9.1f}{:>11.3f}{:>10.2f}{:>12.2f}\n", name(result.bench_case),
                 r.recipe, r.timing.median_us, r.timing.min_us, r.timing.max_us, speedup(result, r),
                 r.roofline_us / r.timing.median_us, static_cast<double>(r.saved_bytes) * 1e-6);
    }
  }
}

Json to_json(const CaseResult& result) {
  const LinearBenchCase& c = result.bench_case;
  Json json{{"case", name(c)},
            {"work", c.work == LinearWork::linear ? "linear" : "layernorm, linear, sigmoid"},
            {"tokens", c.size.tokens},
            {"in_features", c.size.in_features},
            {"out_features", c.size.out_features},
            {"recipes", Json::array()}};
  for (const RecipeResult& r : result.recipes) {
    Json entry{{"recipe", r.recipe}, {"config", r.config}, {"side_stream", r.side}};
    if (!r.fault.empty()) {
      entry["wrong"] = r.fault;
    } else {
      entry["us"] = timing_json(r.timing);
      entry["over_bf16"] = speedup(result, r);
      entry["roofline_us"] = r.roofline_us;
      entry["of_roofline"] = r.roofline_us / r.timing.median_us;
      entry["saved_bytes"] = r.saved_bytes;
      if (&r != &result.recipes.front()) {
        entry["db_beside_bf16"] = {{"output", r.quality.output_db},
                                   {"grad_input", r.quality.grad_input_db},
                                   {"grad_weight", r.quality.grad_weight_db}};
      }
    }
    json["recipes"].push_back(entry);
  }
  return json;
}

// Adds rates and cases, and writes them after each case, so that a killed run leaves its results so far. False if a
// result is wrong.
bool run_cases(Bench& bench, const std::vector<LinearBenchCase>& cases, const std::string& path, Json& json) {
  const Rates rates = bench.measure_rates();
  json["rates"] = {
      {"fp8_tflops", rates.fp8_tflops}, {"bf16_tflops", rates.bf16_tflops}, {"copy_tb_per_s", rates.tb_per_s}};
  json["cases"] = Json::array();
  std::vector<CaseResult> results;
  bool right = true;
  for (const LinearBenchCase& c : cases) {
    results.push_back(bench.run(c, rates));
    json["cases"].push_back(to_json(results.back()));
    if (!path.empty()) write_json(path, json);
    for (const RecipeResult& r : results.back().recipes) right = right && r.fault.empty();
  }
  print_table(results);
  fmt::print(
      "\nroofline: GEMMs at {:.0f} (FP8) and {:.0f} (bf16) TFLOPS, all else at {:.2f} TB/s, one after the other\n",
      rates.fp8_tflops, rates.bf16_tflops, rates.tb_per_s);
  return right;
}

void add_host_steps(const std::vector<HostStep>& steps, Json& json) {
  fmt::print("\n{:<46}{:>10}{:>12}{:>14}{:>10}\n", "host cost of a step of 256 x 256 x 256, us", "launches", "by class",
             "by functions", "captured");
  for (const HostStep& step : steps) {
    fmt::print("{:<46}{:>10}{:>12.1f}{:>14.1f}{:>10.1f}\n", step.recipe, step.launches, step.by_class,
               step.by_functions, step.captured);
    json["launches_of_a_256_step"][step.recipe] = step.launches;
    json["host_us_of_a_256_step"][step.recipe] = step.by_class;
    json["host_us_of_a_256_step_by_functions"][step.recipe] = step.by_functions;
    json["host_us_of_a_256_step_captured"][step.recipe] = step.captured;
  }
}

int run(const Options& options) {
  std::vector<LinearBenchCase> cases = linear_cases();
  keep_chosen(cases, options.filters, name);
  if (!options.recipe.empty()) static_cast<void>(recipe(options.recipe));
  if (options.list) {
    for (const LinearBenchCase& c : cases) fmt::print("{}\n", name(c));
    return 0;
  }
  std::optional<ContextOptions> on_cuda = cuda_options();
  if (!on_cuda) return kSkipped;
  Context context(*on_cuda);
  Bench bench(context, options);
  Json json = header("linear", machine_of(context, options.commit));
  const bool right = options.host || run_cases(bench, cases, options.json, json);
  add_host_steps(bench.host_steps(), json);
  if (!options.json.empty()) write_json(options.json, json);
  return right ? 0 : kFailed;
}

}  // namespace
}  // namespace ingot::bench

int main(int argc, char** argv) {
  CLI::App app{"Times a linear layer's step, forward and backward, with every recipe.", "bench_linear"};
  ingot::bench::Options options;
  add_options(app, options);
  app.add_option("--recipe", options.recipe, "Only this recipe, and bf16");
  app.add_option(
         "--fused-products", options.fused_products,
         "blockwise: with more products, tokens * in_features * out_features, the epilogue is a pass (inf: never)")
      ->capture_default_str();
  app.add_flag("--host", options.host, "Only what a small layer's step costs the host");
  return ingot::bench::run_program(app, argc, argv, [&] { return ingot::bench::run(options); });
}
