// cast_stats on the CPU, in the order of templates/cast/cast_stats.cuh, so that the sums have the GPU's bits.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "ingot/runtime/cast/cast_operations.h"
#include "ingot/runtime/cast/cast_tensors.h"
#include "ingot/runtime/core/check_tensor.h"
#include "ingot/runtime/core/visit.h"
#include "ingot/runtime/cpu/thread_pool.h"

#include "cast/cast_stats.cuh"

namespace ingot {

void check(const CastStatsSpec& spec, const CastStatsTensors& tensors, Device device) {
  validate_spec(spec);
  const Tensor& input = tensors.input;
  constexpr const char* kNoCodes = "the spec has no codes";
  const Range inputs[] = {check_matrix("cast_stats input", input, spec.in, device),
                          !spec.out         ? check_absent("cast_stats codes", tensors.codes, kNoCodes)
                          : spec.transposed ? check_matrix("cast_stats codes", tensors.codes, *spec.out, input.cols,
                                                           input.rows, device, "the input's shape, transposed")
                                            : check_matrix("cast_stats codes", tensors.codes, *spec.out, input.rows,
                                                           input.cols, device, "the input's shape"),
                          !spec.out ? check_absent("cast_stats scale_inv", tensors.scale_inv, kNoCodes)
                          : spec.scale == kRowGroups
                              ? check_scale_inv("cast_stats scale_inv", tensors.scale_inv, spec.scale, input.rows,
                                                input.cols, device, kScaledInput, "group of columns")
                              : check_scales("cast_stats scale_inv", tensors.scale_inv, Dtype::f32, spec.scale,
                                             input.rows, input.cols, device, kScaledInput)};
  const Range stats = check_vector("cast_stats stats", tensors.stats, Dtype::f32, kCastStatsWords, device,
                                   "the bytes of one CastStats");
  if (reinterpret_cast<std::uintptr_t>(tensors.stats.data) % alignof(CastStats) != 0) {
    refuse("cast_stats stats", tensors.stats,
           "it must start at a multiple of 8 bytes, as it holds integers of 64 bits");
  }
  check_overlaps(inputs, {&stats, 1});
}

FactorSteps factor_steps(const CastStatsSpec& spec, const CastStatsTensors& tensors) {
  const std::int64_t cols = tensors.input.cols;
  if (tensors.scale_inv.rows <= 1) return factor_steps(spec.scale.rows, spec.scale.cols, cols);
  const ScaleInvStrides strides = scale_inv_strides(tensors.scale_inv, spec.scale, cols);
  return {.per_tile_row = CastStatsLaunch::kTile * strides.row,
          .per_tile_col = strides.group,
          .per_row = strides.row,
          .per_col = 0};
}

}  // namespace ingot

namespace ingot::cpu {
namespace {

using Launch = CastStatsLaunch;
using Parts = std::array<CastStatsPart, Launch::kThreads>;

// The kernels' struct and the public one are the same bytes.
static_assert(sizeof(CastStatsResult) == sizeof(CastStats));
static_assert(offsetof(CastStatsResult, spoiled) == offsetof(CastStats, spoiled));
static_assert(offsetof(CastStatsResult, sum_of_squared_errors) == offsetof(CastStats, sum_of_squared_errors));
static_assert(offsetof(CastStatsResult, amax) == offsetof(CastStats, amax));
static_assert(offsetof(CastStatsResult, largest_factor) == offsetof(CastStats, largest_scale_inv));

// Adds up the threads of a block in the order of templates/cast/cast_stats.cuh.
CastStatsPart merged(Parts& parts) {
  for (std::size_t half = parts.size() / 2; half != 0; half /= 2) {
    for (std::size_t t = 0; t < half; ++t) merge(parts[t], parts[t + half]);
  }
  return parts[0];
}

template <class In, class Out>
CastStatsPart part_of_tile(const CastStatsSpec& spec, const CastStatsTensors& tensors, i64 tile) {
  const Tensor& input = tensors.input;
  const FactorSteps steps = factor_steps(spec, tensors);
  const i64 across = ceil_div<i64>(input.cols, Launch::kTile);
  const i64 first_row = tile / across * Launch::kTile;
  const i64 first_col = tile % across * Launch::kTile;
  Parts parts;
  parts.fill(no_stats());
  for (i64 r = first_row; r < std::min<i64>(input.rows, first_row + Launch::kTile); ++r) {
    for (i64 c = first_col; c < std::min<i64>(input.cols, first_col + Launch::kTile); ++c) {
      u8 code = 0;
      float factor = 0;
      if (spec.out) {
        code = spec.transposed ? row<const u8>(tensors.codes, c)[r] : row<const u8>(tensors.codes, r)[c];
        factor = row<const float>(tensors.scale_inv,
                                  0)[steps.index(tile / across, tile % across, r - first_row, c - first_col)];
      }
      const u32 thread = Launch::thread_of(static_cast<u32>(r - first_row), static_cast<u32>(c - first_col));
      take<Out>(parts[thread], to_float(row<const In>(input, r)[c]), code, factor);
    }
  }
  return merged(parts);
}

template <class In, class Out>
void cast_stats_as(const CastStatsSpec& spec, const CastStatsTensors& tensors, ThreadPool& pool) {
  std::vector<CastStatsPart> tiles(static_cast<std::size_t>(Launch::tiles(tensors.input.rows, tensors.input.cols)));
  pool.parallel_for(static_cast<i64>(tiles.size()), 4, [&](i64 begin, i64 end) {
    for (i64 i = begin; i < end; ++i) tiles[static_cast<std::size_t>(i)] = part_of_tile<In, Out>(spec, tensors, i);
  });
  Parts parts;
  parts.fill(no_stats());
  for (std::size_t i = 0; i < tiles.size(); ++i) merge(parts[i % parts.size()], tiles[i]);
  const CastStatsResult result = result_of(merged(parts));
  std::memcpy(tensors.stats.data, &result, sizeof(result));
}

}  // namespace

void cast_stats(const CastStatsSpec& spec, const CastStatsTensors& tensors, ThreadPool& pool) {
  visit_high_precision(spec.in, [&]<class In>(Type<In>) {
    if (!spec.out) return cast_stats_as<In, Uncast>(spec, tensors, pool);
    visit_fp8(*spec.out, [&]<class Out>(Type<Out>) { cast_stats_as<In, Out>(spec, tensors, pool); });
  });
}

}  // namespace ingot::cpu
