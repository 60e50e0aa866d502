// Measures how much longer a call of the library keeps the host busy than the same launches do when they are made with
// the driver, or with cuBLASLt, directly. Casts are measured here; gemm_host_cost.h measures GEMMs.
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
  std::int64_t launches = 0;  // kernel launches per call
  double limit_ns = 300;      // per launch
  double call_ns = 0;         // the backend's call on an idle stream, with small tensors
  std::string bare = "empty kernel";
  // The time of `bare`: cuLaunchKernelEx of an empty kernel with a parameter of the same size, or cublasLtMatmul.
  double bare_ns = 0;
  // The same launch with programmatic stream serialisation, in case the library's launches use it.
  double bare_pdl_ns = 0;

  double added_ns() const { return call_ns / static_cast<double>(launches) - bare_ns; }  // per launch
};

// Nanoseconds of the host per call: medians over batches that alternate, each on an idle stream.
std::vector<double> host_ns(MeasuredGpu& gpu, std::span<const std::function<void()>> calls, int rounds);

// Measures casts.
std::vector<HostCost> measure_host_cost(MeasuredGpu& gpu, RandomData& random, const MeasureOptions& options);

std::string to_text(std::span<const HostCost> costs);
nlohmann::ordered_json to_json(const HostCost& cost);

}  // namespace ingot::bench
