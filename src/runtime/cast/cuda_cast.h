// What a cast alone and one of a list (cuda_cast_list.cpp) have in common.
#pragma once

#include <span>

#include "ingot/codegen/kernel_spec.h"
#include "ingot/runtime/cast/cast_tensors.h"
#include "ingot/runtime/jit/launcher.h"
#include "ingot/runtime/stream.h"

#include "cast/cast_tiles.cuh"

namespace ingot::cuda {

SourceParams source_of(const Tensor& input, std::span<const Tensor> inputs);
SourceParams source_of(const CastTensors& tensors);

// All but the maxima of a first pass and the sums, of which there are none yet.
CastTilesParams tiles_params(const CastSpec& spec, const CastTensors& tensors);

// Extents without elements have scales too: those of an amax of 0.
void fill_factors(const CastSpec& spec, const CastTensors& tensors, Stream& stream, Launcher& launcher);

}  // namespace ingot::cuda
