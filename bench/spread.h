// What many samples of a short time come to: on a machine with other work the worst are the scheduler's, so that the
// 99th of 100 is told beside the median rather than the largest.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <vector>

namespace ingot::bench {

struct Spread {
  double median = 0;
  double p99 = 0;  // 99 of 100 samples are no larger
  std::size_t samples = 0;
};

// Of at least one sample.
Spread spread_of(std::vector<double> samples);

nlohmann::ordered_json to_json(const Spread& spread);

}  // namespace ingot::bench
