#include "ingot/runtime/tuning/tuned_matmuls.h"

#include <string>

namespace ingot {

std::vector<TunedMatmul> tuned_matmuls(std::span<const TuningRecord> records, const MatmulDevice& device) {
  const std::string target = print(device.target);
  std::vector<TunedMatmul> all;
  for (const TuningRecord& record : records) {
    if (record.machine.target != target || record.machine.multiprocessors != device.multiprocessors) continue;
    all.push_back({.call = {.spec = record.spec, .size = record.size}, .chosen = record.chosen});
  }
  return all;
}

}  // namespace ingot
