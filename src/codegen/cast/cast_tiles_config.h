// How a cast runs in tiles: the template arguments of its kernels, and the rows of a tile.
#pragma once

#include <cstdint>

#include "ingot/codegen/cast/cast_spec.h"
#include "ingot/codegen/types/pass.h"
#include "ingot/codegen/types/template_granularity.h"

#include "cast/cast_output.cuh"

namespace ingot {

// An output with its scales, or none.
constexpr CastOutputConfig cast_output_config(bool written, ScaleGranularity scale) {
  if (!written) return {};
  return {.written = true, .scale = template_granularity(scale)};
}

// The CastConfig of the kernel that casts the tiles of `spec` in `pass`: main, unaligned, whole or kept. `listed` is
// false, because cast_list.cuh sets it.
CastConfig cast_tiles_config(const CastSpec& spec, Pass pass);

struct CastTilesDevice {
  std::int64_t multiprocessors;
  bool clusters;  // does it have thread block clusters?
};

// log2 of the rows of a tile in that kernel, 6 or 7, for a matrix of rows x cols (CastTilesParams::rows_log2).
std::uint32_t cast_tile_rows_log2(const CastSpec& spec, Pass pass, std::int64_t rows, std::int64_t cols,
                                  CastTilesDevice device);

}  // namespace ingot
