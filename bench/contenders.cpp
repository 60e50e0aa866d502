#include "contenders.h"

namespace ingot::bench {

void warm_up(std::span<const std::unique_ptr<Replay>> replays, int launches) {
  for (int i = 0; i < launches && !replays.empty(); ++i)
    replays[static_cast<std::size_t>(i) % replays.size()]->launch();
}

nlohmann::ordered_json timing_json(const Timing& timing) {
  return {{"median", timing.median_us}, {"min", timing.min_us}, {"max", timing.max_us}};
}

}  // namespace ingot::bench
