#include "ingot/codegen/cast/cast_tiles_config.h"

#include "ingot/codegen/cast/cast_schedule.h"

#include "cast/cast_tile_shared.cuh"
#include "cast/cast_whole.cuh"

namespace ingot {

CastConfig cast_tiles_config(const CastSpec& spec, Pass pass) {
  // Then the pass for rows has written everything but the transposed codes.
  const bool rest = cast_schedule(spec) == CastSchedule::rows_then_tiles && pass != Pass::whole;
  return {.codes = cast_output_config(spec.codes && !rest, spec.scale),
          .transposed = cast_output_config(spec.transposed, spec.transposed_scale.value_or(spec.scale)),
          .given_scales = spec.source == ScaleSource::given,
          .result = spec.result && !rest,
          .sum = spec.sum.has_value(),
          .unaligned = pass != Pass::main,
          .kept = pass == Pass::kept};
}

// Tiles of 64 rows gained nothing for clusters, nor for few tiles of a matrix without an expression
// (docs/notes/casts.md).
std::uint32_t cast_tile_rows_log2(const CastSpec& spec, Pass pass, std::int64_t rows, std::int64_t cols,
                                  CastTilesDevice device) {
  const bool whole = pass == Pass::whole;
  if (!may_take_fewer_rows(cast_tiles_config(spec, pass), whole)) return CastTilesLaunch::kTileLog2;
  std::int64_t least = 0;
  if (pass == Pass::main && spec.pointwise.empty()) least = ceil_div(i64{device.multiprocessors}, i64{4});
  if (whole && device.clusters) least = CastWholeLaunch::kMostInCluster + 1;
  return CastTilesLaunch::rows_log2(rows, cols, device.multiprocessors, least);
}

}  // namespace ingot
