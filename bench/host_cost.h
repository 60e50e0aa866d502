// What a call costs the host beyond what the driver, or cuBLASLt, takes for its launches.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "harness.h"

namespace ingot::bench {

struct HostCost {
  std::string spec;
  std::int64_t launches = 0;  // of one call
  double limit_ns = 300;      // per launch
  double call_ns = 0;         // the backend's call on an idle stream, small tensors
  std::string bare = "empty kernel";
  double bare_ns = 0;  // of `bare`: cuLaunchKernelEx of an empty kernel with as large a parameter, or cublasLtMatmul
  double bare_pdl_ns = 0;  // the launch with programmatic stream serialisation, should the library's launches use it

  double added_ns() const { return call_ns / static_cast<double>(launches) - bare_ns; }  // per launch
};

// Nanoseconds of the host per call: medians of batches that take turns, each on a stream that has nothing to do.
std::vector<double> host_ns(Gpu& gpu, std::span<const std::function<void()>> calls, int rounds);

// Of casts.
std::vector<HostCost> measure_host_cost(Gpu& gpu, RandomData& random, const MeasureOptions& options);

std::string to_text(std::span<const HostCost> costs);
nlohmann::ordered_json to_json(const HostCost& cost);

}  // namespace ingot::bench
