// What single casts (cuda_cast.cpp), lists of casts (cuda_cast_list.cpp) and kernels of tiles of 8 columns to a thread
// (cuda_elementwise.cpp, cuda_quantize.cpp) share on a GPU: their kernels' parameters and launches.
#pragma once

#include <span>

#include "ingot/codegen/cast/cast_spec.h"
#include "ingot/runtime/cast/cast_tensors.h"
#include "ingot/runtime/jit/kernel.h"
#include "ingot/runtime/jit/launcher.h"
#include "ingot/runtime/stream.h"

#include "cast/cast_tile_shared.cuh"
#include "vec8_tiles.cuh"

namespace ingot::cuda {

SourceParams source_of(const Tensor& input, std::span<const Tensor> inputs);
SourceParams source_of(const CastTensors& tensors);

// The launch of a kernel whose blocks are tiles (vec8_tiles.cuh). Throws Error{invalid_argument} if there are too many.
LaunchShape shape_of(const Vec8Tiles::Grid& grid);

// All parameters except the first pass's maxima and the sums, which are not there yet.
CastTilesParams tiles_params(const CastSpec& spec, const CastTensors& tensors);

// Writes the factors of empty extents, whose scales are those of an amax of 0.
void fill_factors(const CastSpec& spec, const CastTensors& tensors, Stream& stream, Launcher& launcher);

}  // namespace ingot::cuda
