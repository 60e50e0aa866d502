// bench_gradients: the GEMMs of a layer's two gradients, grad_input and grad_weight, in two launches as gemm() runs
// them and in one (Backend::gemm_pair). The library's own choice between the two is marked. Both results of each way
// are checked before it is timed, and the ways take turns.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "contenders.h"
#include "gemm_buffers.h"
#include "harness.h"
#include "ingot/codegen/gemm/gemm_candidates.h"
#include "ingot/runtime/util/error.h"
#include "machine.h"
#include "program.h"

namespace ingot::bench {
namespace {

using Json = nlohmann::ordered_json;

struct Options : CaseOptions {
  bool tilings = false;
};

struct Case {
  std::string name;
  GemmCase grad_input;
  GemmCase grad_weight;
};

struct Kind {
  const char* name;
  const char* grad_input;
  const char* grad_weight;
};

// As the recipes have them: bf16, tensorwise, rowwise, rowwise_with_gw_hp and blockwise; and with fast accumulation.
constexpr Kind kKinds[] = {
    {"bf16", "gemm bf16*bf16->bf16 nn", "gemm bf16*bf16->bf16 tn"},
    {"tensor", "gemm e5m2*e4m3fn->bf16 nt scale=tensor,tensor", "gemm e5m2*e4m3fn->bf16 nt scale=tensor,tensor"},
    {"row", "gemm e4m3fn*e4m3fn->bf16 nt scale=row,row", "gemm e4m3fn*e4m3fn->bf16 nt scale=row,row"},
    {"tensor fast", "gemm e5m2*e4m3fn->bf16 nt scale=tensor,tensor fast",
     "gemm e5m2*e4m3fn->bf16 nt scale=tensor,tensor fast"},
    {"row, bf16", "gemm e4m3fn*e4m3fn->bf16 nt scale=row,tensor", "gemm bf16*bf16->bf16 tn"},
    {"blocks", "gemm e4m3fn*e4m3fn->bf16 nt scale=1x128,128x128", "gemm e4m3fn*e4m3fn->bf16 nt scale=1x128,1x128"}};

struct LayerSize {
  std::int64_t tokens, in, out;
};

// Small squares; few and many tokens; sizes that fill no tile or no number of multiprocessors.
constexpr LayerSize kSizes[] = {{256, 256, 256},    {512, 512, 512},    {768, 768, 768},    {1008, 1008, 1008},
                                {1024, 1024, 1024}, {1280, 1280, 1280}, {1536, 1536, 1536}, {2048, 2048, 2048},
                                {64, 4096, 4096},   {512, 4096, 4096},  {3008, 1024, 1024}, {4096, 1024, 1024},
                                {8192, 768, 3072},  {8192, 3072, 768},  {2048, 1024, 2816}, {1024, 3584, 512}};

GemmCase gemm_case(const char* line, const MatmulSize& size) {
  GemmSpec spec = std::get<GemmSpec>(parse(line));
  return {.shape = {}, .mode = {}, .spec = spec, .size = size, .cublaslts_order = has_group_scale_inv(spec)};
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const auto& [tokens, in, out] : kSizes) {
    for (const Kind& kind : kKinds) {
      const std::string name = fmt::format("{}x{}x{}, {}", tokens, in, out, kind.name);
      cases.push_back({.name = name,
                       .grad_input = gemm_case(kind.grad_input, {.m = tokens, .n = in, .k = out}),
                       .grad_weight = gemm_case(kind.grad_weight, {.m = out, .n = in, .k = tokens})});
    }
  }
  return cases;
}

struct Contender {
  std::string label;
  bool chosen = false;
  std::function<void(const GemmTensors& grad_input, const GemmTensors& grad_weight)> enqueue;
  Timing timing{};
  std::string fault{};
};

class Bench {
 public:
  Bench(Context& context, const Options& options)
      : gpu_(context),
        random_(gpu_.backend(), gpu_.stream(),
                [this](void* to, const void* from, std::size_t bytes) { gpu_.copy(to, from, bytes); }),
        device_{.target = context.cache().target(), .multiprocessors = context.tuning_machine().multiprocessors},
        options_(options) {}

  std::vector<Contender> run(const Case& c) {
    const GemmBuffers grad_input(random_, c.grad_input);
    const GemmBuffers grad_weight(random_, c.grad_weight);
    std::vector<Contender> all = contenders(c);
    measure_all(grad_input, grad_weight, all);
    return all;
  }

 private:
  std::vector<Contender> contenders(const Case& c) {
    const GemmSpec first = c.grad_input.spec;
    const GemmSpec second = c.grad_weight.spec;
    const auto pair = choose_gemm_pair({.spec = first, .size = c.grad_input.size},
                                       {.spec = second, .size = c.grad_weight.size}, device_);
    std::vector<Contender> all{
        {.label = "apart",
         .chosen = !pair,
         .enqueue = [this, first, second](const GemmTensors& grad_input, const GemmTensors& grad_weight) {
           gpu_.backend().gemm(first, grad_input, gpu_.stream());
           gpu_.backend().gemm(second, grad_weight, gpu_.stream());
         }}};
    const auto best = [&](const GemmCase& half) {
      return fastest_half({.spec = half.spec, .size = half.size}, device_.multiprocessors);
    };
    const auto grad_input = best(c.grad_input);
    const auto grad_weight = best(c.grad_weight);
    if (grad_input && grad_weight) add(all, *grad_input, *grad_weight, pair.has_value());
    if (!options_.tilings) return all;
    for (const GemmSpec& a : pair_halves(first)) {
      for (const GemmSpec& b : pair_halves(second)) add(all, a, b, false);
    }
    return all;
  }

  void add(std::vector<Contender>& all, const GemmSpec& a, const GemmSpec& b, bool chosen) {
    const std::string label = fmt::format("{} {}", print(*a.tiling), print(*b.tiling));
    if (std::ranges::find(all, label, &Contender::label) != all.end()) return;
    all.push_back({.label = label,
                   .chosen = chosen,
                   .enqueue = [this, a, b](const GemmTensors& grad_input, const GemmTensors& grad_weight) {
                     gpu_.backend().gemm_pair({a, grad_input}, {b, grad_weight}, gpu_.stream());
                   }});
  }

  void measure_all(const GemmBuffers& grad_input, const GemmBuffers& grad_weight, std::vector<Contender>& contenders) {
    const MeasureOptions options =
        options_.quick ? MeasureOptions{.rounds = 3, .graph_us = 1000} : MeasureOptions{.rounds = 9, .graph_us = 2000};
    std::vector<std::unique_ptr<Replay>> replays;
    std::vector<Contender*> timed;
    for (Contender& contender : contenders) {
      const int copies = std::min(grad_input.copies(), grad_weight.copies());
      const RotatedCall call{.copies = copies, .enqueue = [&](int copy) {
                               // Each from the end, because the last copy is the one that is checked.
                               contender.enqueue(grad_input.tensors(grad_input.copies() - copies + copy),
                                                 grad_weight.tensors(grad_weight.copies() - copies + copy));
                             }};
      auto replay = std::make_unique<Replay>(gpu_, call, options);
      grad_input.poison(gpu_);
      grad_weight.poison(gpu_);
      replay->launch();
      contender.fault = grad_input.fault(gpu_);
      if (contender.fault.empty()) contender.fault = grad_weight.fault(gpu_);
      if (!contender.fault.empty()) continue;
      timed.push_back(&contender);
      replays.push_back(std::move(replay));
    }
    time_in_turns(timed, replays, options, 30);
  }

  MeasuredGpu gpu_;
  RandomData random_;
  MatmulDevice device_;
  Options options_;
};

std::string to_text(const Case& c, const std::vector<Contender>& contenders) {
  std::string text;
  for (const Contender& contender : contenders) {
    const std::string label = contender.label + (contender.chosen ? " *" : "");
    text += contender.fault.empty()
                ? fmt::format("{:<34}{:<54}{:>9.2f}{:>9.2f}{:>8.3f}\n", c.name, label, contender.timing.median_us,
                              contender.timing.min_us, contenders.front().timing.median_us / contender.timing.median_us)
                : fmt::format("{:<34}{:<54} WRONG  {}\n", c.name, label, contender.fault);
  }
  return text;
}

Json to_json(const Case& c, const std::vector<Contender>& contenders) {
  Json json{{"case", c.name},
            {"grad_input", print(GemmCall{.spec = c.grad_input.spec, .size = c.grad_input.size})},
            {"grad_weight", print(GemmCall{.spec = c.grad_weight.spec, .size = c.grad_weight.size})},
            {"ways", Json::array()}};
  for (const Contender& contender : contenders) {
    Json way{{"way", contender.label}, {"chosen", contender.chosen}};
    if (contender.fault.empty()) {
      way["us"] = timing_json(contender.timing);
    } else {
      way["wrong"] = contender.fault;
    }
    json["ways"].push_back(way);
  }
  return json;
}

int run(const Options& options) {
  std::vector<Case> cases = all_cases();
  keep_chosen(cases, options.filters, [](const Case& c) { return c.name; });
  if (options.list) {
    fmt::print("{:<34}{:<58}{}\n", "tokens x in x out", "grad_input", "grad_weight");
    for (const Case& c : cases) {
      fmt::print("{:<34}{:<58}{}\n", c.name, print(c.grad_input.spec), print(c.grad_weight.spec));
    }
    return 0;
  }
  const std::optional<ContextOptions> on_cuda = cuda_options();
  if (!on_cuda) return kSkipped;
  Context context(*on_cuda);
  if (context.cache().target() != target_for(9, 0)) {
    fmt::print("skipped: one launch computes two GEMMs on Hopper only, and this is {}\n",
               print(context.cache().target()));
    return kSkipped;
  }
  const Machine machine = machine_of(context, options.commit);
  Bench bench(context, options);
  fmt::print(
      "Ingot {} ({}), {}, driver {}, {}; tokens x in x out; *: the library's choice\n\n{:<34}{:<54}{:>9}{:>9}{:>8}\n",
      machine.ingot, machine.commit, machine.device, machine.driver, machine.date, "case", "launches", "us", "min",
      "ratio");
  Json json = header("gradients", machine);
  json["cases"] = Json::array();
  bool failed = false;
  for (const Case& c : cases) {
    const std::vector<Contender> contenders = bench.run(c);
    fmt::print("{}", to_text(c, contenders));
    std::fflush(stdout);
    failed |= std::ranges::any_of(contenders, [](const Contender& each) { return !each.fault.empty(); });
    json["cases"].push_back(to_json(c, contenders));
    if (!options.json.empty()) write_json(options.json, json);  // so that a killed run leaves its results so far
  }
  return failed ? kFailed : 0;
}

}  // namespace
}  // namespace ingot::bench

int main(int argc, char** argv) {
  CLI::App app{"Times the GEMMs of a layer's two gradients in two launches and in one.", "bench_gradients"};
  ingot::bench::Options options;
  add_options(app, options);
  app.add_flag("--tilings", options.tilings, "Try all tilings that one launch can have");
  return ingot::bench::run_program(app, argc, argv, [&] { return ingot::bench::run(options); });
}
