// What benchmarks that time several candidates in turns have in common. A contender has a `timing`, and a `fault` that
// is empty where its result was right.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <vector>

#include "ingot/runtime/measure/replay.h"
#include "ingot/runtime/measure/timing.h"

namespace ingot::bench {

// The GPU is at the power, and so at the clock, that it keeps before anything is timed.
void warm_up(std::span<const std::unique_ptr<Replay>> replays, int launches);

// {"median": ..., "min": ..., "max": ...}, in microseconds.
nlohmann::ordered_json timing_json(const Timing& timing);

// Of those that are right and admitted; null where there is none.
template <class Contender, class Admits>
const Contender* fastest(const std::vector<Contender>& all, const Admits& admits) {
  const Contender* found = nullptr;
  for (const Contender& each : all) {
    if (!each.fault.empty() || !admits(each)) continue;
    if (found == nullptr || each.timing.median_us < found->timing.median_us) found = &each;
  }
  return found;
}

// The i-th contender's timing is that of the i-th replay.
template <class Contender>
void time_in_turns(const std::vector<Contender*>& contenders, std::span<const std::unique_ptr<Replay>> replays,
                   const MeasureOptions& options, int warm_up_launches) {
  warm_up(replays, warm_up_launches);
  const std::vector<Timing> timings = measure(replays, options);
  for (std::size_t i = 0; i < contenders.size(); ++i) contenders[i]->timing = timings[i];
}

}  // namespace ingot::bench
