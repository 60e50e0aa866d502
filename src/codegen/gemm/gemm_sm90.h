// Converts a GemmTiling and a spec to the types of templates/gemm/gemm_sm90_tiling.cuh.
#pragma once

#include <string>

#include "ingot/codegen/gemm/gemm_spec.h"
#include "ingot/codegen/types/template_types.h"

#include "gemm/gemm_sm90_tiling.cuh"

namespace ingot {

// The numbers of the tiling must not be negative.
inline Sm90Tiling sm90_tiling(const GemmTiling& t) {
  const auto unsigned_of = [](int value) { return static_cast<u32>(value); };
  return {.m = unsigned_of(t.m),
          .n = unsigned_of(t.n),
          .cluster_m = unsigned_of(t.cluster_m),
          .cluster_n = unsigned_of(t.cluster_n),
          .stages = unsigned_of(t.stages),
          .pingpong = t.pingpong,
          .stream_k = t.stream_k};
}

// The part of the kernel's template argument that decides how much shared memory it has. Requires spec.tiling.
inline GemmSm90Config sm90_scale_inv_config(const GemmSpec& spec) {
  return {.tiling = sm90_tiling(*spec.tiling), .scale_b = template_granularity(spec.scale_b)};
}

// validate_spec() but for the number of sums.
void validate_but_sums(const GemmSpec& spec);
// Why a thread's registers cannot hold the sums of the spec's tiling, for messages; empty if they can, or if the spec
// has no such tiling. To be asked last: the message advises `fast`, which helps only where nothing else is refused.
std::string sums_fault(const GemmSpec& spec);

}  // namespace ingot
