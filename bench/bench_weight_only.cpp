// bench_weight_only: times GEMMs that decode their weight on the fly, against two yardsticks in the same run:
// cuBLASLt's best algorithm at the same size with the weight in 16 bits, and a kernel that only reads the weight's
// bytes. Operands rotate past the L2, and results are checked before they are timed. With --every, all offered tilings
// run for a few rounds, and the best one then runs against the library's choice.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "contenders.h"
#include "ingot/codegen/dequant/dequant_candidates.h"
#include "ingot/codegen/dequant/dequant_spec.h"
#include "ingot/runtime/cuda/driver.h"
#include "ingot/runtime/gemm/cublaslt.h"
#include "ingot/runtime/measure/dequant_operands.h"
#include "ingot/runtime/measure/gemm_operands.h"
#include "ingot/runtime/measure/replay.h"
#include "ingot/runtime/util/error.h"
#include "machine.h"
#include "program.h"
#include "read_ceiling.h"
#include "weight_only_cases.h"

namespace ingot::bench {
namespace {

using Json = nlohmann::ordered_json;

struct Options : CaseOptions {
  bool every = false;
  std::vector<std::string> specs{"dequant_matmul bf16*e4m3fn->bf16 packed scale=row"};
  std::vector<std::int64_t> tokens{};  // empty: all tokens of the cases
};

struct Contender {
  std::string label;
  std::function<void(int copy)> enqueue;
  Timing timing{};
  std::string fault{};
};

struct Result {
  DequantMatmulSpec spec;
  WeightOnlyCase wanted;
  std::vector<Contender> trials{};
  Contender ours{};                 // the library's choice
  std::optional<Contender> best{};  // with --every: the best tiling, in the same rounds as `ours`
  double bf16_us = 0;               // cuBLASLt's best; 0 if it does not take the case
  double read_us = 0;
};

double weight_bytes(const DequantMatmulSpec& spec, const MatmulSize& size) {
  return static_cast<double>(size.n) * static_cast<double>(size.k) * bits_of(spec.weight) / 8;
}

class Bench {
 public:
  Bench(Context& context, const std::string& cuda_root, const Options& options)
      : gpu_(context),
        random_(gpu_.backend(), gpu_.stream(),
                [this](void* to, const void* from, std::size_t bytes) { gpu_.copy(to, from, bytes); }),
        driver_(Driver::open(problem_)),
        cublaslt_(CublasLt::open(cuda_root, *driver_, problem_)),
        workspace_(gpu_.backend(), CublasLt::kWorkspaceBytes),
        device_{.target = context.cache().target(),
                .multiprocessors = driver_->multiprocessors(context.device().index)},
        options_(options) {
    if (cublaslt_ == nullptr) throw Error(ErrorCode::not_found, "cuBLASLt", problem_);
  }

  Result run(const DequantMatmulSpec& spec, const WeightOnlyCase& wanted) {
    Result result{.spec = spec, .wanted = wanted};
    result.bf16_us = time_of_16_bits(spec.x, wanted);
    DequantOperands operands(
        random_, [this](void* to, unsigned char byte, std::size_t bytes) { gpu_.fill(to, byte, bytes); }, spec,
        wanted.size);
    const std::vector<DequantMatmulSpec> order = dequant_order(spec, wanted.size, device_);
    if (order.empty()) {
      throw Error(ErrorCode::invalid_argument, print(spec),
                  "no kernel has such a spec on this GPU; --spec has another");
    }
    std::vector<Contender> finals{contender(operands, order.front())};
    if (options_.every) {
      for (const DequantMatmulSpec& each : every_tiling(spec, wanted.size))
        result.trials.push_back(contender(operands, each));
      measure_all(operands, result.trials, {.rounds = 2, .graph_us = 1000});
      if (const Contender* const best = fastest(result.trials, [](const Contender&) { return true; }))
        finals.push_back(*best);
    }
    measure_all(operands, finals, options(11));
    result.ours = finals.front();
    if (finals.size() == 2) result.best = finals[1];
    result.read_us = time_of_reading(operands);
    return result;
  }

 private:
  MeasureOptions options(int rounds) const {
    return options_.quick ? MeasureOptions{.rounds = 3, .graph_us = 1000}
                          : MeasureOptions{.rounds = rounds, .graph_us = 3000};
  }

  std::vector<DequantMatmulSpec> every_tiling(const DequantMatmulSpec& spec, const MatmulSize& size) const {
    std::vector<DequantMatmulSpec> all;
    for (DequantMatmulSpec named : dequant_kernels(spec, device_)) {
      for (const DequantTiling& tiling : dequant_tilings(named, size, device_)) {
        named.tiling = tiling;
        all.push_back(named);
      }
    }
    return all;
  }

  Contender contender(const DequantOperands& operands, const DequantMatmulSpec& spec) {
    return {.label = fmt::format("{}:{}", name(spec.kernel), print(spec.kernel, *spec.tiling)),
            .enqueue = [this, &operands, spec](int copy) {
              gpu_.backend().dequant_matmul(spec, operands.tensors(copy), gpu_.stream());
            }};
  }

  // The time to read the weight's bytes and nothing else: the best of several kernel shapes. Measured once per size.
  double time_of_reading(const DequantOperands& operands) {
    const std::size_t bytes = byte_span(operands.tensors(0).weight, "weight");
    double& best = reading_[bytes];
    if (best != 0) return best;
    std::vector<std::unique_ptr<Replay>> replays;
    for (const ReadCeiling::Shape& shape : ReadCeiling::kShapes) {
      const auto read = [this, &operands, shape, bytes](int copy) {
        ceiling_.enqueue(shape, operands.tensors(copy).weight.data, bytes);
      };
      replays.push_back(
          std::make_unique<Replay>(gpu_, RotatedCall{.copies = operands.copies(), .enqueue = read}, options(5)));
    }
    best = best_of(replays);
    return best;
  }

  // The smallest median.
  double best_of(const std::vector<std::unique_ptr<Replay>>& replays) {
    double best = 0;
    warm_up(replays, kWarmUp);
    for (const Timing& timing : measure(replays, options(5))) {
      best = best == 0 ? timing.median_us : std::min(best, timing.median_us);
    }
    return best;
  }

  void measure_all(DequantOperands& operands, std::vector<Contender>& contenders, const MeasureOptions& measuring) {
    std::vector<std::unique_ptr<Replay>> replays;
    std::vector<Contender*> timed;
    for (Contender& each : contenders) {
      operands.poison();
      each.enqueue(operands.copies() - 1);
      each.fault = operands.fault();
      if (!each.fault.empty()) continue;
      timed.push_back(&each);
      replays.push_back(
          std::make_unique<Replay>(gpu_, RotatedCall{.copies = operands.copies(), .enqueue = each.enqueue}, measuring));
    }
    time_in_turns(timed, replays, measuring, kWarmUp);
  }

  // The time of cuBLASLt's best algorithm. Measured once per size.
  double time_of_16_bits(Dtype dtype, const WeightOnlyCase& wanted) {
    const GemmSpec spec{.a = dtype, .b = dtype, .out = dtype};
    const std::tuple key{dtype, wanted.size.m, wanted.size.n, wanted.size.k};
    if (const auto known = times_.find(key); known != times_.end()) return known->second;
    GemmOperands operands(random_,
                          [this](void* to, unsigned char byte, std::size_t bytes) { gpu_.fill(to, byte, bytes); },
                          {.spec = spec, .size = wanted.size});
    double& best = times_[key];
    if (cublaslt_->refusal(spec, operands.tensors(0), wanted.size) != nullptr) return best;
    const auto matmul = [&](int copy, int algorithm) {
      return cublaslt_->matmul(spec, operands.tensors(copy), wanted.size, workspace_.data(), gpu_.stream().handle(),
                               algorithm);
    };
    std::vector<std::unique_ptr<Replay>> replays;
    for (int i = 0; i < CublasLt::kAlgorithms && matmul(operands.copies() - 1, i); ++i) {
      replays.push_back(std::make_unique<Replay>(
          gpu_,
          RotatedCall{.copies = operands.copies(), .enqueue = [&, i](int copy) { static_cast<void>(matmul(copy, i)); }},
          options(5)));
    }
    best = best_of(replays);
    return best;
  }

  static constexpr int kWarmUp = 20;  // launches

  MeasuredGpu gpu_;
  RandomData random_;
  std::string problem_;
  std::unique_ptr<Driver> driver_;
  std::unique_ptr<CublasLt> cublaslt_;
  Buffer workspace_;
  ReadCeiling ceiling_{gpu_};
  MatmulDevice device_;
  Options options_;
  std::map<std::tuple<Dtype, std::int64_t, std::int64_t, std::int64_t>, double> times_;
  std::map<std::size_t, double> reading_;
};

std::string line(const Result& result, const Contender& c) {
  if (!c.fault.empty()) return fmt::format("{:<40}{:<44} WRONG  {}\n", name(result.wanted), c.label, c.fault);
  const double us = c.timing.median_us;
  return fmt::format("{:<40}{:<44}{:>9.1f}{:>8.2f}{:>8.3f}{:>8}\n", name(result.wanted), c.label, us,
                     weight_bytes(result.spec, result.wanted.size) / us * 1e-6, result.read_us / us,
                     result.bf16_us == 0 ? "-" : fmt::format("{:.2f}", result.bf16_us / us));
}

Json to_json(const Contender& c) {
  if (!c.fault.empty()) return {{"kernel", c.label}, {"wrong", c.fault}};
  return {{"kernel", c.label}, {"us", timing_json(c.timing)}};
}

Json to_json(const Result& result) {
  const MatmulSize& size = result.wanted.size;
  Json json{{"spec", print(result.spec)}, {"case", name(result.wanted)}, {"m", size.m}, {"n", size.n}, {"k", size.k},
            {"bf16_us", result.bf16_us},  {"read_us", result.read_us}};
  json["ours"] = to_json(result.ours);
  if (result.best) json["best"] = to_json(*result.best);
  if (!result.trials.empty()) {
    json["trials"] = Json::array();
    for (const Contender& trial : result.trials) json["trials"].push_back(to_json(trial));
  }
  return json;
}

void write(const Options& options, const Machine& machine, const std::vector<Result>& results) {
  Json json = header("weight_only", machine);
  json["cases"] = Json::array();
  for (const Result& result : results) json["cases"].push_back(to_json(result));
  write_json(options.json, json);
}

int run(const Options& options) {
  std::vector<DequantMatmulSpec> specs;
  for (const std::string& text : options.specs) {
    const KernelSpec parsed = parse(text);
    const auto* const spec = std::get_if<DequantMatmulSpec>(&parsed);
    if (spec == nullptr)
      throw Error(ErrorCode::invalid_argument, "--spec", fmt::format("\"{}\" is no dequant_matmul", text));
    specs.push_back(*spec);
  }
  std::vector<WeightOnlyCase> cases = weight_only_cases();
  std::erase_if(cases, [&](const WeightOnlyCase& c) {
    const bool has_tokens =
        options.tokens.empty() || std::ranges::find(options.tokens, c.size.m) != options.tokens.end();
    return !has_tokens || !is_chosen(name(c), options.filters);
  });
  if (cases.empty()) {
    throw Error(ErrorCode::invalid_argument, options.tokens.empty() ? "--filter" : "--tokens",
                "no case has this text in its name and these numbers of tokens: --list prints them all");
  }
  if (options.list) {
    for (const WeightOnlyCase& c : cases) fmt::print("{}\n", name(c));
    return 0;
  }
  std::optional<ContextOptions> on_cuda = cuda_options();
  if (!on_cuda) return kSkipped;
  on_cuda->tuning = Tuning::off;
  Context context(*on_cuda);
  const Machine machine = machine_of(context, options.commit);
  Bench bench(context, on_cuda->cuda_root.string(), options);
  fmt::print("Ingot {} ({}), {}, driver {}, cuBLASLt {}, {}; N x K\n", machine.ingot, machine.commit, machine.device,
             machine.driver, machine.cublaslt, machine.date);
  std::vector<Result> results;
  bool failed = false;
  for (const DequantMatmulSpec& spec : specs) {
    fmt::print("\n{}\n{:<40}{:<44}{:>9}{:>8}{:>8}{:>8}\n", print(spec), "case", "kernel", "us", "TB/s", "of read",
               "of bf16");
    for (const WeightOnlyCase& c : cases) {
      results.push_back(bench.run(spec, c));
      const Result& last = results.back();
      fmt::print("{}", line(last, last.ours));
      if (last.best) fmt::print("{}", line(last, *last.best));
      for (const Contender& trial : last.trials) {
        if (!trial.fault.empty()) fmt::print("{}", line(last, trial));
      }
      std::fflush(stdout);
      failed |= !last.ours.fault.empty() ||
                std::ranges::any_of(last.trials, [](const Contender& trial) { return !trial.fault.empty(); });
      if (!options.json.empty()) write(options, machine, results);  // so that a killed run leaves its results so far
    }
  }
  return failed ? kFailed : 0;
}

}  // namespace
}  // namespace ingot::bench

int main(int argc, char** argv) {
  CLI::App app{"Times GEMMs with weights in 8, 6 or 4 bits against cuBLASLt's with 16-bit weights.",
               "bench_weight_only"};
  ingot::bench::Options options;
  add_options(app, options);
  app.add_option("--tokens", options.tokens, "Only cases with these numbers of tokens, separated by commas")
      ->delimiter(',');
  app.add_option("--spec", options.specs, "The GEMMs to time: specs of dequant_matmul")->capture_default_str();
  app.add_flag("--every", options.every, "Try every tiling, not only the library's choice");
  return ingot::bench::run_program(app, argc, argv, [&] { return ingot::bench::run(options); });
}
