// bench_gemm: times FP8 and bf16 GEMMs with bf16 output, Ingot's kernel and cuBLASLt's best algorithm in one run. Each
// shape begins with bf16 operands, where cuBLASLt's best is the time to beat. Every result is checked before it is
// timed.
//
// A case is measured in two stages. First all of cuBLASLt's algorithms and gemm_sm90 with the tiling that Ingot chooses
// (--tilings: with every tiling) are timed briefly; then cuBLASLt's best, Ingot's choice and Ingot's best take turns in
// a longer measurement. A GEMM with an epilogue is compared with the same kernel without it, not with cuBLASLt. --mma
// adds gemm_mma, Ingot's kernel for what the others do not take. --host measures what a call costs the host, and
// nothing else. With scale_inv of groups and blocks, "untuned" is what the library launches without a tuning record.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "contenders.h"
#include "gemm_buffers.h"
#include "gemm_cases.h"
#include "gemm_host_cost.h"
#include "harness.h"
#include "ingot/codegen/gemm/gemm_candidates.h"
#include "ingot/runtime/cuda/driver.h"
#include "ingot/runtime/gemm/cublaslt.h"
#include "ingot/runtime/util/error.h"
#include "machine.h"
#include "program.h"

namespace ingot::bench {
namespace {

using Json = nlohmann::ordered_json;

struct Options : CaseOptions {
  bool tilings = false;
  bool mma = false;
  bool host = false;
};

struct Contender {
  std::string label;  // "cublaslt 3", "sm90:128x256:2x1:4:cooperative", "without epilogue"
  bool ours = false;
  bool plain = false;  // the case without its epilogue; other cases check its result
  std::function<void(const GemmTensors&)> enqueue;
  Timing timing{};
  std::string fault{};
};

struct Result {
  GemmCase gemm_case;
  std::vector<Contender> trials{};  // all contenders, timed briefly
  std::vector<Contender> finals{};  // cuBLASLt's best, Ingot's choice, Ingot's best tiling
  bool cublaslt_refuses = false;
  double bf16_us = 0;  // cuBLASLt's best with bf16 operands of the same shape; 0 if not measured
};

double tflops(const Result& result, const Contender& c) {
  return operations(result.gemm_case) / c.timing.median_us * 1e-6;
}

class Bench {
 public:
  Bench(Context& context, const std::string& cuda_root, const Options& options)
      : gpu_(context),
        random_(gpu_.backend(), gpu_.stream(),
                [this](void* to, const void* from, std::size_t bytes) { gpu_.copy(to, from, bytes); }),
        driver_(Driver::open(problem_)),
        cublaslt_(CublasLt::open(cuda_root, *driver_, problem_)),
        multiprocessors_(driver_->multiprocessors(context.device().index)),
        options_(options) {
    if (cublaslt_ == nullptr) throw Error(ErrorCode::not_found, "cuBLASLt", problem_);
  }

  Result run(const GemmCase& c) {
    Result result{.gemm_case = c};
    const GemmBuffers buffers(random_, c);
    result.trials = contenders(c, buffers, result.cublaslt_refuses);
    measure_all(buffers, result.trials, {.rounds = options_.quick ? 1 : 3, .graph_us = 1500});
    if (result.trials.back().plain) {
      result.finals = {result.trials.back(), result.trials.front()};
      measure_all(buffers, result.finals, finals());
      return result;
    }
    const Contender* theirs = best(result.trials, "cublaslt");
    const Contender* ours = best(result.trials, "sm90");
    const Contender* mma = best(result.trials, "mma");
    if (theirs != nullptr) result.finals.push_back(*theirs);
    result.finals.push_back(result.trials.front());
    if (ours != nullptr && ours != &result.trials.front()) result.finals.push_back(*ours);
    if (mma != nullptr) result.finals.push_back(*mma);
    const Contender* untuned = best(result.trials, "untuned");
    if (untuned != nullptr) result.finals.push_back(*untuned);
    measure_all(buffers, result.finals, finals());
    return result;
  }

 private:
  MeasureOptions finals() const {
    return options_.quick ? MeasureOptions{.rounds = 3, .graph_us = 1500}
                          : MeasureOptions{.rounds = 11, .graph_us = 3000};
  }

  // Ingot's own choice comes first. For a case with an epilogue there is only that and, last, the same kernel without
  // the epilogue.
  std::vector<Contender> contenders(const GemmCase& c, const GemmBuffers& buffers, bool& refused) {
    std::vector<Contender> all;
    const auto add_ours = [&](const GemmTiling& tiling, GemmKernel kernel = GemmKernel::sm90) {
      GemmSpec spec = c.spec;
      spec.kernel = kernel;
      spec.tiling = tiling;
      const std::string tiles = kernel == GemmKernel::mma ? print_mma_tiling(tiling) : print(tiling);
      all.push_back({.label = fmt::format("{}:{}", name(kernel), tiles),
                     .ours = true,
                     .enqueue = [this, spec](const GemmTensors& t) { gpu_.backend().gemm(spec, t, gpu_.stream()); }});
    };
    const GemmTiling chosen = choose_sm90_tiling(c.spec, c.size, multiprocessors_);
    add_ours(chosen);
    GemmSpec plain = without_epilogue(c.spec);
    if (!(plain == c.spec)) {
      plain.kernel = GemmKernel::sm90;
      plain.tiling = chosen;
      all.push_back(
          {.label = "without epilogue", .plain = true, .enqueue = [this, plain](const GemmTensors& t) {
             const GemmTensors bare{
                 .a = t.a, .b = t.b, .scale_inv_a = t.scale_inv_a, .scale_inv_b = t.scale_inv_b, .out = t.out};
             gpu_.backend().gemm(plain, bare, gpu_.stream());
           }});
      return all;
    }
    for (const GemmTiling& tiling : gemm_tilings(c.spec)) {
      if (options_.tilings && tiling != chosen) add_ours(tiling);
    }
    for (const GemmTiling& tiling : kMmaTilings) {
      if (options_.mma) add_ours(tiling, GemmKernel::mma);
    }
    refused = !add_cublaslt(c, buffers, all);
    if (has_group_scale_inv(c.spec)) add_untuned(c, all);
    return all;
  }

  // What the library launches for such scale_inv, and the kernel that it tries first.
  void add_untuned(const GemmCase& c, std::vector<Contender>& all) {
    const MatmulDevice device{.target = target_for(9, 0), .multiprocessors = multiprocessors_};
    const GemmSpec first = gemm_order({.spec = c.spec, .size = c.size}, device, c.cublaslts_order).front();
    all.push_back(
        {.label = fmt::format("untuned {}", name(first.kernel)),
         .ours = true,
         .enqueue = [this, spec = c.spec](const GemmTensors& t) { gpu_.backend().gemm(spec, t, gpu_.stream()); }});
  }

  // Adds all of cuBLASLt's algorithms; false if cuBLASLt does not take the case.
  bool add_cublaslt(const GemmCase& c, const GemmBuffers& buffers, std::vector<Contender>& all) {
    const auto matmul = [this, spec = c.spec, size = c.size](const GemmTensors& t, int algorithm) {
      return cublaslt_->matmul(spec, t, size, workspace_.data(), gpu_.stream().handle(), algorithm);
    };
    if (cublaslt_->refusal(c.spec, buffers.tensors(0), c.size) != nullptr) return false;
    const std::size_t bytes = CublasLt::workspace_bytes(c.spec, buffers.tensors(0), c.size);
    if (workspace_.bytes() < bytes) workspace_ = Buffer(gpu_.backend(), bytes);
    for (int i = 0; i < CublasLt::kAlgorithms && matmul(buffers.tensors(0), i); ++i) {
      all.push_back({.label = fmt::format("cublaslt {}", i),
                     .enqueue = [matmul, i](const GemmTensors& t) { static_cast<void>(matmul(t, i)); }});
    }
    return true;
  }

  void measure_all(const GemmBuffers& buffers, std::vector<Contender>& contenders, const MeasureOptions& options) {
    std::vector<std::unique_ptr<Replay>> replays;
    std::vector<Contender*> timed;
    for (Contender& contender : contenders) {
      const RotatedCall candidate{.copies = buffers.copies(),
                                  .enqueue = [&](int copy) { contender.enqueue(buffers.tensors(copy)); }};
      auto replay = std::make_unique<Replay>(gpu_, candidate, options);
      buffers.poison(gpu_);
      replay->launch();
      contender.fault = contender.plain ? std::string() : buffers.fault(gpu_);
      if (!contender.fault.empty()) continue;
      timed.push_back(&contender);
      replays.push_back(std::move(replay));
    }
    time_in_turns(timed, replays, options, 60);
  }

  static const Contender* best(const std::vector<Contender>& all, std::string_view kernel) {
    return fastest(all, [&](const Contender& c) { return c.label.starts_with(kernel); });
  }

  MeasuredGpu gpu_;
  RandomData random_;
  std::string problem_;
  std::unique_ptr<Driver> driver_;
  std::unique_ptr<CublasLt> cublaslt_;
  Buffer workspace_;  // grows
  int multiprocessors_;
  Options options_;
};

std::string to_text(const Result& result) {
  std::string text;
  const bool against = !result.finals.empty() && !result.finals.front().ours;
  for (const Contender& c : result.finals) {
    if (!c.fault.empty()) {
      text += fmt::format("{:<44}{:<38} WRONG  {}\n", name(result.gemm_case), c.label, c.fault);
      continue;
    }
    text +=
        fmt::format("{:<44}{:<38}{:>10.1f}{:>9.1f}{:>9.0f}{:>8}{:>8}\n", name(result.gemm_case), c.label,
                    c.timing.median_us, c.timing.min_us, tflops(result, c),
                    against ? fmt::format("{:.3f}", result.finals.front().timing.median_us / c.timing.median_us) : "-",
                    result.bf16_us != 0 ? fmt::format("{:.2f}", result.bf16_us / c.timing.median_us) : "-");
  }
  return text;
}

Json to_json(const Result& result, const Contender& c) {
  if (!c.fault.empty()) return {{"kernel", c.label}, {"wrong", c.fault}};
  return {{"kernel", c.label}, {"us", timing_json(c.timing)}, {"tflops", tflops(result, c)}};
}

Json to_json(const Result& result) {
  Json json{{"case", name(result.gemm_case)}, {"m", result.gemm_case.size.m},         {"k", result.gemm_case.size.k},
            {"n", result.gemm_case.size.n},   {"spec", print(result.gemm_case.spec)}, {"finals", Json::array()},
            {"trials", Json::array()}};
  if (result.bf16_us != 0) json["bf16_us"] = result.bf16_us;
  for (const Contender& c : result.finals) json["finals"].push_back(to_json(result, c));
  for (const Contender& c : result.trials) json["trials"].push_back(to_json(result, c));
  return json;
}

void write(const std::string& path, const Machine& m, const std::vector<Result>& results) {
  Json json = header("gemm", m);
  json["cases"] = Json::array();
  for (const Result& result : results) json["cases"].push_back(to_json(result));
  write_json(path, json);
}

int run_host(Context& context, const Machine& machine, const std::string& cuda_root, const Options& options) {
  MeasuredGpu gpu(context);
  RandomData random(gpu.backend(), gpu.stream(),
                    [&gpu](void* to, const void* from, std::size_t bytes) { gpu.copy(to, from, bytes); });
  const GemmHostCost cost = measure_gemm_host_cost(gpu, random, cuda_root, {.rounds = options.quick ? 5 : 25});
  fmt::print("{}", to_text(cost));
  if (!options.json.empty()) {
    Json json = header("gemm host cost", machine);
    json["host_cost"] = to_json(cost);
    write_json(options.json, json);
  }
  return 0;
}

int run(const Options& options) {
  std::vector<GemmCase> cases = gemm_cases();
  keep_chosen(cases, options.filters, [](const GemmCase& c) { return name(c); });
  if (options.list) {
    for (const GemmCase& c : cases) fmt::print("{:<44}{}\n", name(c), print(c.spec));
    return 0;
  }
  std::optional<ContextOptions> on_cuda = cuda_options();
  if (!on_cuda) return kSkipped;
  if (options.host) on_cuda->tuning = Tuning::off;
  Context context(*on_cuda);
  if (context.cache().target() != target_for(9, 0)) {
    fmt::print("skipped: the kernel that is measured here is Hopper's, and this is {}\n",
               print(context.cache().target()));
    return kSkipped;
  }
  const Machine machine = machine_of(context, options.commit);
  if (options.host) return run_host(context, machine, on_cuda->cuda_root.string(), options);
  Bench bench(context, on_cuda->cuda_root.string(), options);
  fmt::print("Ingot {} ({}), {}, driver {}, cuBLASLt {}, {}; M x K x N\n\n{:<44}{:<38}{:>10}{:>9}{:>9}{:>8}{:>8}\n",
             machine.ingot, machine.commit, machine.device, machine.driver, machine.cublaslt, machine.date, "case",
             "kernel", "us", "min", "TFLOPS", "ratio", "of bf16");
  std::vector<Result> results;
  std::map<std::string, double> bf16_us;  // by shape
  bool failed = false;
  for (const GemmCase& c : cases) {
    results.push_back(bench.run(c));
    Result& last = results.back();
    if (c.mode == kBf16 && !last.finals.empty()) bf16_us[c.shape] = last.finals.front().timing.median_us;
    if (bf16_us.contains(c.shape)) last.bf16_us = bf16_us.at(c.shape);
    fmt::print("{}", to_text(results.back()));
    std::fflush(stdout);
    failed |= std::ranges::any_of(results.back().finals, [](const Contender& f) { return !f.fault.empty(); });
    if (!options.json.empty()) write(options.json, machine, results);  // so that a killed run leaves its results so far
  }
  return failed ? kFailed : 0;
}

}  // namespace
}  // namespace ingot::bench

int main(int argc, char** argv) {
  CLI::App app{"Times Ingot's FP8 GEMM and cuBLASLt's in the same run.", "bench_gemm"};
  ingot::bench::Options options;
  add_options(app, options);
  app.add_flag("--tilings", options.tilings, "Try all of Ingot's tilings, not only its choice");
  app.add_flag("--mma", options.mma, "Time gemm_mma too, which takes what the others do not");
  app.add_flag("--host", options.host, "Time what a call costs the host, and nothing else");
  return ingot::bench::run_program(app, argc, argv, [&] { return ingot::bench::run(options); });
}
