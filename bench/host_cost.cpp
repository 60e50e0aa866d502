#include "host_cost.h"

#include <fmt/format.h>

#include <array>
#include <chrono>
#include <variant>

#include "bare_calls.h"
#include "cast_cases.h"
#include "ingot/codegen/kernel_spec.h"

namespace ingot::bench {
namespace {

constexpr int kBatch = 100;  // calls per batch: far fewer launches than the driver queues before it blocks the host
constexpr std::size_t kParameterBytes = 96;  // at least the size of the casts' parameter structs
constexpr std::int64_t kRows = 16;
constexpr std::int64_t kCols = 256;

double time_batch(MeasuredGpu& gpu, const std::function<void()>& call) {
  using Clock = std::chrono::steady_clock;
  gpu.synchronize();
  const auto begin = Clock::now();
  for (int i = 0; i < kBatch; ++i) call();
  const std::chrono::duration<double, std::nano> taken = Clock::now() - begin;
  return taken.count() / kBatch;
}

}  // namespace

std::vector<double> host_ns(MeasuredGpu& gpu, std::span<const std::function<void()>> calls, int rounds) {
  std::vector<std::vector<double>> samples(calls.size());
  for (int round = 0; round < rounds; ++round) {
    for (std::size_t i = 0; i < calls.size(); ++i) samples[i].push_back(time_batch(gpu, calls[i]));
  }
  gpu.synchronize();
  std::vector<double> medians;
  for (const std::vector<double>& of_call : samples) medians.push_back(median(of_call));
  return medians;
}

std::vector<HostCost> measure_host_cost(MeasuredGpu& gpu, RandomData& random, const MeasureOptions& options) {
  // One call with one launch and one call with two.
  const std::array lines{"cast bf16->e4m3fn scale=row out=codes", "cast bf16->e4m3fn scale=tensor out=codes"};
  BareKernel bare(gpu, kParameterBytes);
  Backend& backend = gpu.backend();
  Stream& stream = gpu.stream();
  std::vector<HostCost> costs;
  for (const char* const line : lines) {
    const auto spec = std::get<CastSpec>(parse(line));
    const Placed placed(cast_operation(spec, kRows, kCols), backend);
    fill(random, placed, 1);
    const CastTensors tensors = cast_tensors(placed.tensors());

    HostCost cost{.spec = print(spec)};
    backend.cast(spec, tensors, stream);  // loads the kernel
    const std::int64_t before = backend.device_api().launches();
    backend.cast(spec, tensors, stream);
    cost.launches = backend.device_api().launches() - before;
    const std::array<std::function<void()>, 3> calls{[&] { backend.cast(spec, tensors, stream); },
                                                     [&] { bare.launch(false); }, [&] { bare.launch(true); }};
    const std::vector<double> ns = host_ns(gpu, calls, options.rounds);
    cost.call_ns = ns[0];
    cost.bare_ns = ns[1];
    cost.bare_pdl_ns = ns[2];
    costs.push_back(cost);
  }
  return costs;
}

std::string to_text(std::span<const HostCost> costs) {
  std::string text = fmt::format("{:<74}{:>9}{:>10}{:>9}{:>9}{:>9}{:>8}\n", "host cost, ns", "call", "launches", "bare",
                                 "w/ PDL", "added", "limit");
  for (const HostCost& cost : costs) {
    text +=
        fmt::format("{:<74}{:>9.0f}{:>10}{:>9.0f}{:>9}{:>9.0f}{:>8.0f} {}\n", cost.spec, cost.call_ns, cost.launches,
                    cost.bare_ns, cost.bare_pdl_ns > 0 ? fmt::format("{:.0f}", cost.bare_pdl_ns) : "-", cost.added_ns(),
                    cost.limit_ns, cost.added_ns() <= cost.limit_ns ? "pass" : "over");
  }
  text += "added: per launch, beyond the bare cuLaunchKernelEx of an empty kernel in the same run";
  for (const HostCost& cost : costs) {
    if (cost.bare_pdl_ns > 0) continue;
    text += ", or beyond " + cost.bare;
    break;
  }
  return text + "\n";
}

nlohmann::ordered_json to_json(const HostCost& cost) {
  nlohmann::ordered_json json{{"spec", cost.spec},
                              {"launches", cost.launches},
                              {"call_ns", cost.call_ns},
                              {"bare", cost.bare},
                              {"bare_launch_ns", cost.bare_ns}};
  if (cost.bare_pdl_ns > 0) json["bare_launch_programmatic_ns"] = cost.bare_pdl_ns;
  json["added_ns_per_launch"] = cost.added_ns();
  json["limit_ns"] = cost.limit_ns;
  return json;
}

}  // namespace ingot::bench
