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

// Why no kernel can be built with this tiling, for messages; empty if one can. fast: it keeps one set of sums, not two.
// groups: with scale_inv of groups.
std::string tiling_fault(const GemmTiling& tiling, bool fast, bool groups);

}  // namespace ingot
