// Helpers for benchmarks that time several candidates ("contenders") round by round. A contender has a `timing`, and a
// `fault` that is empty if its result was right.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <vector>

#include "ingot/runtime/measure/replay.h"
#include "ingot/runtime/measure/timing.h"

namespace ingot::bench {

// Launches the replays one after the other, `launches` times in all, to bring the GPU to the power and clock that it
// sustains. Call it before anything is timed.
void warm_up(std::span<const std::unique_ptr<Replay>> replays, int launches);

// Returns {"median": ..., "min": ..., "max": ...}, in microseconds.
nlohmann::ordered_json timing_json(const Timing& timing);

// The fastest contender with a right result that `admits` accepts; null if there is none.
template <class Contender, class Admits>
const Contender* fastest(const std::vector<Contender>& all, const Admits& admits) {
  const Contender* found = nullptr;
  for (const Contender& each : all) {
    if (!each.fault.empty() || !admits(each)) continue;
    if (found == nullptr || each.timing.median_us < found->timing.median_us) found = &each;
  }
  return found;
}

// Times all replays round by round and gives the i-th contender the i-th replay's timing.
template <class Contender>
void time_in_turns(const std::vector<Contender*>& contenders, std::span<const std::unique_ptr<Replay>> replays,
                   const MeasureOptions& options, int warm_up_launches) {
  warm_up(replays, warm_up_launches);
  const std::vector<Timing> timings = measure(replays, options);
  for (std::size_t i = 0; i < contenders.size(); ++i) contenders[i]->timing = timings[i];
}

}  // namespace ingot::bench
