// Measures how long a launch takes to find its kernel once that is loaded: KernelCache as launches use it, against a
// std::unordered_map with a mutex, with the same keys and hashes. The keys are the kernels that the layers of a model
// ask for. Nothing is launched and nothing compiled (runtime/cuda/driver.h), so no GPU is needed.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ingot/codegen/recording.h"
#include "spread.h"

namespace ingot::bench {

struct LookupCost {
  std::string lookup;  // "KernelCache::get"
  int threads = 1;
  Spread ns{};                       // of one lookup, as a thread's clock shows it; each sample is the mean of a batch
  std::optional<double> limit_ns{};  // of the median
  std::string fault{};               // why the result is wrong; there is then no time
};

inline constexpr double kLookupLimitNs = 50;

struct LookupReport {
  std::vector<LookupCost> costs{};
  std::size_t kernels = 0;  // that are looked up one after the other
  std::size_t gemms = 0;
};

// The kernels that training Llama-3-8B with every recipe asks an H200 for.
Recording trained_model();
// All passes of its kernels.
std::vector<KernelPass> kernels_to_find(const Recording& recording);

// Each way to look up, with 1, 4 and 8 threads at once; the ways alternate for `rounds` rounds.
LookupReport measure_lookups(int rounds);

std::string to_text(const LookupReport& report);
nlohmann::ordered_json to_json(const LookupReport& report);

}  // namespace ingot::bench
