#include "spread.h"

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

}  // namespace ingot::bench
