#include "spread.h"

#include <fmt/format.h>

#include <algorithm>

#include "ingot/runtime/measure/timing.h"

namespace ingot::bench {

Spread spread_of(std::vector<double> samples) {
  std::ranges::sort(samples);
  const std::size_t within = (99 * samples.size() + 99) / 100;  // 99 of 100, rounded up
  return {.median = median(samples), .p99 = samples[within - 1], .samples = samples.size()};
}

nlohmann::ordered_json to_json(const Spread& spread) {
  return {{"median", spread.median}, {"p99", spread.p99}, {"samples", spread.samples}};
}

std::string limit_columns(double measured, std::optional<double> limit) {
  if (!limit) return fmt::format("{:>8}", "-");
  return fmt::format("{:>8.0f} {}", *limit, verdict(measured, *limit));
}

const char* verdict(double measured, double limit) { return measured <= limit ? "pass" : "over"; }

nlohmann::ordered_json limit_json(std::optional<double> limit) {
  return limit ? nlohmann::ordered_json(*limit) : nlohmann::ordered_json();
}

}  // namespace ingot::bench
