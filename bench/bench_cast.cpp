// bench_cast: times the casts and norms and compares them with the speed of a copy. Checks every case before it times
// it. Also measures what a cast costs the host.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "agreement.h"
#include "cast_cases.h"
#include "ceiling.h"
#include "copy_operation.h"
#include "harness.h"
#include "host_cost.h"
#include "ingot/runtime/context/cpu_backend.h"
#include "ingot/runtime/util/count_of.h"
#include "ingot/runtime/util/error.h"
#include "program.h"
#include "report.h"

namespace ingot::bench {
namespace {

// A size that no tile divides.
constexpr std::int64_t kCheckedRows = 1048;
constexpr std::int64_t kCheckedCols = 1336;

void list(const std::vector<CastCase>& cases) {
  for (const CastCase& c : cases) {
    fmt::print("{:<74}{:<30}{}\n", name(c), c.traffic.text(), c.spec);
  }
}

class Bench {
 public:
  Bench(Context& context, const MeasureOptions& options)
      : gpu_(context),
        random_(gpu_.backend(), gpu_.stream(),
                [this](void* to, const void* from, std::size_t bytes) { gpu_.copy(to, from, bytes); }),
        reference_(make_cpu_backend()),
        options_(options) {}

  CopyCeiling ceiling() { return measure_copy_ceiling(gpu_, random_, options_); }
  std::vector<HostCost> host_cost() { return measure_host_cost(gpu_, random_, options_); }

  // Times cases of one size round by round, and copies of as many bytes. All of them are in memory at the same time.
  std::vector<CaseResult> run(const std::vector<CastCase>& cases) {
    std::vector<CaseResult> results;
    std::vector<std::unique_ptr<Rotation>> rotations;
    std::vector<std::unique_ptr<Replay>> replays;
    std::vector<std::size_t> timed;          // the index in `results` of the first replays
    std::map<int, std::size_t> copy_replay;  // by bytes for an element
    for (const CastCase& c : cases) {
      fmt::print(stderr, "checking {}\n", name(c));
      results.push_back({.cast_case = c});
      results.back().fault = small_fault(c);
      if (!results.back().fault.empty()) continue;
      results.back().fault = prepare(c.operation(c.rows, c.cols), rotations, replays);
      if (!results.back().fault.empty()) continue;
      timed.push_back(results.size() - 1);
    }
    for (const std::size_t i : timed) {
      const CastCase& c = results[i].cast_case;
      const int bytes = c.traffic.bytes_per_element();
      if (copy_replay.contains(bytes)) continue;
      const std::string fault = prepare(copy_operation(bytes, c.rows, c.cols), rotations, replays);
      if (fault.empty()) {
        copy_replay.emplace(bytes, replays.size() - 1);
      } else {
        results[i].fault = "the copy of the same size: " + fault;
      }
    }
    fmt::print(stderr, "timing {}\n", count_of(timed.size(), "case"));
    const std::vector<Timing> timings = measure(replays, options_);
    for (std::size_t i = 0; i < timed.size(); ++i) {
      CaseResult& result = results[timed[i]];
      result.timing = timings[i];
      if (!result.fault.empty()) continue;
      result.copy_us = timings[copy_replay.at(result.cast_case.traffic.bytes_per_element())].median_us;
    }
    return results;
  }

 private:
  // Adds a replay of the operation; or says why its result is wrong.
  std::string prepare(const Operation& operation, std::vector<std::unique_ptr<Rotation>>& rotations,
                      std::vector<std::unique_ptr<Replay>>& replays) {
    auto rotation = std::make_unique<Rotation>(gpu_, random_, operation);
    auto replay = std::make_unique<Replay>(gpu_, rotation->call(gpu_), options_);
    std::string fault = replay_fault(*rotation, *replay);
    if (!fault.empty()) return fault;
    rotations.push_back(std::move(rotation));
    replays.push_back(std::move(replay));
    return fault;
  }

  std::string small_fault(const CastCase& c) {
    const Placed placed(c.operation(kCheckedRows, kCheckedCols), gpu_.backend());
    fill(random_, placed, 1);
    poison(gpu_, placed);
    placed.enqueue(gpu_.stream());
    const std::string fault = disagreement(placed, gpu_.stream(), *reference_);
    return fault.empty() ? fault : fmt::format("at {}x{}, {}", kCheckedRows, kCheckedCols, fault);
  }

  // Checks the output of the graph that is timed: poisons the outputs of its last copy, because other calls wrote them
  // before.
  std::string replay_fault(const Rotation& rotation, Replay& replay) {
    for (const Placed& placed : rotation.copies()) poison(gpu_, placed);
    replay.launch();
    return disagreement(rotation.copies().back(), gpu_.stream(), *reference_);
  }

  MeasuredGpu gpu_;
  RandomData random_;
  std::unique_ptr<Backend> reference_;
  MeasureOptions options_;
};

// Groups cases by size. The cases of a group are timed round by round, so that they are compared under the same
// conditions.
std::vector<std::vector<CastCase>> groups_of(const std::vector<CastCase>& cases) {
  std::vector<std::vector<CastCase>> groups;
  for (const CastCase& c : cases) {
    if (groups.empty() || groups.back().front().rows != c.rows || groups.back().front().cols != c.cols) {
      groups.emplace_back();
    }
    groups.back().push_back(c);
  }
  return groups;
}

int run(const CaseOptions& options) {
  std::vector<CastCase> cases = cast_cases();
  keep_chosen(cases, options.filters, name);
  if (options.list) {
    list(cases);
    return 0;
  }
  std::optional<ContextOptions> on_cuda = cuda_options();
  if (!on_cuda) return kSkipped;
  Context context(*on_cuda);
  const MeasureOptions measure_options =
      options.quick ? MeasureOptions{.rounds = 5, .graph_us = 1000} : MeasureOptions{};
  Bench bench(context, measure_options);

  CastReport report{.machine = machine_of(context, options.commit)};
  report.before = bench.ceiling();
  for (const std::vector<CastCase>& group : groups_of(cases)) {
    for (CaseResult& result : bench.run(group)) report.cases.push_back(std::move(result));
    // So that a killed run leaves its results so far.
    if (!options.json.empty()) write_json(options.json, to_json(report));
  }
  report.after = bench.ceiling();
  report.host = bench.host_cost();
  fmt::print("{}", to_text(report));
  if (!options.json.empty()) write_json(options.json, to_json(report));
  for (const CaseResult& result : report.cases) {
    if (!result.fault.empty()) return kFailed;
  }
  return 0;
}

}  // namespace
}  // namespace ingot::bench

int main(int argc, char** argv) {
  CLI::App app{"Times Ingot's casts against a device-to-device copy in the same run.", "bench_cast"};
  ingot::bench::CaseOptions options;
  add_options(app, options);
  return ingot::bench::run_program(app, argc, argv, [&] { return ingot::bench::run(options); });
}
