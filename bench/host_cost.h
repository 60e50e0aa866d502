// What a call costs the host beyond what the driver takes for its launches.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "harness.h"
#include "ingot/codegen/generate.h"
#include "ingot/codegen/kernel_spec.h"

namespace ingot::bench {

struct HostCost {
  std::string spec;
  std::int64_t launches = 0;  // of one call
  double call_ns = 0;         // backend.cast() on an idle stream, a small tensor
  double bare_ns = 0;         // cuLaunchKernelEx of an empty kernel with as large a parameter
  double bare_pdl_ns = 0;     // the same with programmatic stream serialisation, should the library's launches use it

  double added_ns() const { return call_ns / static_cast<double>(launches) - bare_ns; }  // per launch
};

inline constexpr double kAddedNsLimit = 300;

// A kernel that does nothing.
Source empty_kernel();

// Medians of batches that take turns, each on a stream that has nothing to do.
std::vector<HostCost> measure_host_cost(Gpu& gpu, RandomData& random, const MeasureOptions& options);

}  // namespace ingot::bench
