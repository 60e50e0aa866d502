// What single casts (cuda_cast.cpp) and lists of casts (cuda_cast_list.cpp) share on a GPU: their kernels' parameters.
#pragma once

#include <span>

#include "ingot/codegen/cast/cast_spec.h"
#include "ingot/runtime/cast/cast_tensors.h"
#include "ingot/runtime/jit/launcher.h"
#include "ingot/runtime/stream.h"

#include "cast/cast_tile_shared.cuh"

namespace ingot::cuda {

SourceParams source_of(const Tensor& input, std::span<const Tensor> inputs);
SourceParams source_of(const CastTensors& tensors);

// All parameters except the first pass's maxima and the sums, which are not there yet.
CastTilesParams tiles_params(const CastSpec& spec, const CastTensors& tensors);

// Writes the factors of empty extents, whose scales are those of an amax of 0.
void fill_factors(const CastSpec& spec, const CastTensors& tensors, Stream& stream, Launcher& launcher);

}  // namespace ingot::cuda
