// Where cast_stats finds the factors of a cast, in either order of those of groups.
#pragma once

#include "ingot/runtime/cast/cast_stats_operation.h"
#include "ingot/runtime/cast/factor_strides.h"

#include "cast/cast_stats.cuh"

namespace ingot {

inline FactorSteps factor_steps(const CastStatsSpec& spec, const CastStatsTensors& tensors) {
  const std::int64_t cols = tensors.input.cols;
  if (tensors.factors.rows <= 1) return factor_steps(spec.scale.rows, spec.scale.cols, cols);
  const FactorStrides strides = factor_strides(tensors.factors, spec.scale, cols);
  return {.per_tile_row = CastStatsLaunch::kTile * strides.row,
          .per_tile_col = strides.group,
          .per_row = strides.row,
          .per_col = 0};
}

}  // namespace ingot
