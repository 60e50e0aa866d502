#include "compile_cost.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <exception>
#include <functional>
#include <latch>
#include <thread>
#include <utility>

#include "ingot/codegen/generate.h"
#include "ingot/runtime/measure/timing.h"
#include "spread.h"

namespace ingot::bench {
namespace {

constexpr Target kTarget{9, 0, true};
constexpr double kGemmLimitMs = 500;
constexpr double kCastLimitMs = 60;
// The two cases that are compiled at once; they take about equally long.
constexpr std::size_t kFirst = 2;
constexpr std::size_t kSecond = 3;

double milliseconds(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
}

class Compiles {
 public:
  explicit Compiles(const Compiler& compiler) : compiler_(&compiler) {
    for (const CompileCase& c : compile_cases()) {
      sources_.push_back(c.spec.empty() ? Source{.name = c.label,
                                                 .text = "__global__ void nothing() {}\n"
                                                         "constexpr auto kKernel = &nothing;\n"}
                                        : generate(parse(c.spec)));
    }
  }

  // Returns a source that was never compiled before.
  Source fresh(std::size_t i) {
    Source source = sources_[i];
    source.text += fmt::format("// {}\n", made_++);
    return source;
  }

  void one(CompileCost& cost, std::size_t i) {
    const Source source = fresh(i);
    const std::clock_t begin = std::clock();
    cost.wall_ms.push_back(milliseconds([&] { compile(source); }));
    cost.processor_ms.push_back(static_cast<double>(std::clock() - begin) * 1e3 / CLOCKS_PER_SEC);
  }

  void serially(CompilePair& pair) {
    const Source first = fresh(kFirst);
    const Source second = fresh(kSecond);
    pair.serial_ms.push_back(milliseconds([&] {
      compile(first);
      compile(second);
    }));
  }

  void at_once(CompilePair& pair) {
    const Source first = fresh(kFirst);
    const Source second = fresh(kSecond);
    std::latch started(2);
    std::exception_ptr failure;
    std::jthread other([&] {
      started.arrive_and_wait();
      try {
        compile(second);
      } catch (...) {
        failure = std::current_exception();
      }
    });
    started.arrive_and_wait();
    pair.parallel_ms.push_back(milliseconds([&] {
      compile(first);
      other.join();
    }));
    if (failure) std::rethrow_exception(failure);
  }

 private:
  void compile(const Source& source) const { static_cast<void>(compiler_->compile(source, kTarget)); }

  const Compiler* compiler_;
  std::vector<Source> sources_;
  int made_ = 0;
};

double best(const std::vector<double>& all) { return std::ranges::min(all); }

nlohmann::ordered_json summary(const std::vector<double>& ms) { return {{"best", best(ms)}, {"median", median(ms)}}; }

}  // namespace

std::vector<CompileCase> compile_cases() {
  return {{.label = "an empty kernel"},
          {.label = "rowwise cast", .spec = "cast bf16->e4m3fn scale=row out=codes", .limit_ms = kCastLimitMs},
          {.label = "wgmma, fast sums",
           .spec = "gemm e4m3fn*e4m3fn->bf16 scale=row,row fast kernel=sm90:128x128:1x1:6:pingpong",
           .limit_ms = kGemmLimitMs},
          {.label = "wgmma, accurate sums, the largest tile",
           .spec = "gemm e4m3fn*e4m3fn->bf16 scale=row,row kernel=sm90:256x128:1x1:4:cooperative",
           .limit_ms = kGemmLimitMs},
          {.label = "wgmma, factors of blocks",
           .spec = "gemm e4m3fn*e4m3fn->bf16 scale=1x128,128x128 kernel=sm90:256x128:1x2:4:cooperative",
           .limit_ms = kGemmLimitMs},
          {.label = "wgmma, an epilogue with a second output",
           .spec = "gemm e4m3fn*e4m3fn->bf16 scale=row,row bias epilogue=silu(x)*gate also=preactivation fast "
                   "kernel=sm90:128x128:1x1:6:pingpong",
           .limit_ms = kGemmLimitMs},
          {.label = "mma", .spec = "gemm e4m3fn*e4m3fn->bf16 scale=row,row kernel=mma:128x128"}};
}

double CompilePair::ratio() const { return median(parallel_ms) / median(serial_ms); }
double CompilePair::best_ratio() const { return best(parallel_ms) / best(serial_ms); }

CompileReport measure_compiles(const Compiler& compiler, int rounds) {
  const std::vector<CompileCase> cases = compile_cases();
  CompileReport report{.pair = {.first = cases[kFirst].label, .second = cases[kSecond].label}};
  for (const CompileCase& c : cases) report.kernels.push_back({.kernel = c});
  Compiles compiles(compiler);
  {
    CompileCost first;  // a compiler's first run takes longer: it probes its own abilities
    compiles.one(first, 0);
  }
  for (int round = 0; round < rounds; ++round) {
    for (std::size_t i = 0; i < cases.size(); ++i) compiles.one(report.kernels[i], i);
    compiles.serially(report.pair);
    compiles.at_once(report.pair);
  }
  return report;
}

std::string to_text(const CompileReport& report) {
  std::string text = fmt::format("{:<44}{:>10}{:>10}{:>12}{:>10}{:>8}\n", "cold compile, ms", "best", "median",
                                 "processor", "median", "limit");
  for (const CompileCost& cost : report.kernels) {
    text += fmt::format("{:<44}{:>10.1f}{:>10.1f}{:>12.1f}{:>10.1f}{}\n", cost.kernel.label, best(cost.wall_ms),
                        median(cost.wall_ms), best(cost.processor_ms), median(cost.processor_ms),
                        limit_columns(best(cost.wall_ms), cost.kernel.limit_ms));
  }
  const CompilePair& pair = report.pair;
  text += fmt::format(
      "two threads, \"{}\" and \"{}\": {:.1f} ms at best, one after the other {:.1f}: {:.2f} of it (medians {:.2f}); "
      "{:.2f} "
      "is asked for: {}\n",
      pair.first, pair.second, best(pair.parallel_ms), best(pair.serial_ms), pair.best_ratio(), pair.ratio(),
      kPairLimit, verdict(pair.best_ratio(), kPairLimit));
  return text;
}

nlohmann::ordered_json to_json(const CompileReport& report) {
  nlohmann::ordered_json json{{"kernels", nlohmann::ordered_json::array()}};
  for (const CompileCost& cost : report.kernels) {
    json["kernels"].push_back({{"kernel", cost.kernel.label},
                               {"spec", cost.kernel.spec},
                               {"rounds", cost.wall_ms.size()},
                               {"wall_ms", summary(cost.wall_ms)},
                               {"processor_ms", summary(cost.processor_ms)},
                               {"limit_ms", limit_json(cost.kernel.limit_ms)}});
  }
  const CompilePair& pair = report.pair;
  json["two_threads"] = {{"first", pair.first},
                         {"second", pair.second},
                         {"serial_ms", summary(pair.serial_ms)},
                         {"parallel_ms", summary(pair.parallel_ms)},
                         {"ratio", {{"best", pair.best_ratio()}, {"median", pair.ratio()}}},
                         {"limit", kPairLimit}};
  return json;
}

}  // namespace ingot::bench
