#include "ingot/runtime/measure/timing.h"

#include <algorithm>
#include <cmath>

namespace ingot {

double median(std::vector<double> values) {
  std::ranges::sort(values);
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

Timing summarise(const std::vector<double>& samples_us) {
  const auto [smallest, largest] = std::ranges::minmax(samples_us);
  return {.median_us = median(samples_us),
          .min_us = smallest,
          .max_us = largest,
          .rounds = static_cast<int>(samples_us.size())};
}

int copies_for(std::size_t working_set) {
  constexpr std::size_t kEnough = std::size_t{512} << 20U;
  constexpr std::size_t kFewest = 2;
  constexpr std::size_t kMost = 256;  // for tiny calls, whose buffers stay in a cache anyway
  const std::size_t needed = working_set == 0 ? kFewest : (kEnough + working_set - 1) / working_set;
  return static_cast<int>(std::clamp(needed, kFewest, kMost));
}

int calls_for(double call_us, int copies, double graph_us) {
  constexpr int kMostCalls = 2000;
  const double turns = std::ceil(graph_us / std::max(call_us * copies, 0.01));
  const int most = std::max(1, kMostCalls / copies);
  return copies * static_cast<int>(std::clamp(turns, 1.0, static_cast<double>(most)));
}

}  // namespace ingot
