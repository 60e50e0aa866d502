// The parameters of a cast of stacked matrices on a GPU. They need no GPU, so that tests run the kernels with them.
#pragma once

#include <cstdint>

#include "ingot/codegen/cast/cast_spec.h"
#include "ingot/runtime/cast/cast_tensors.h"

#include "cast/cast_rows_columns.cuh"
#include "cast/cast_stack.cuh"

namespace ingot::cuda {

// How many floats the first pass raises, if the spec has one. They start as zeros.
std::int64_t stacked_maxima(const CastSpec& spec, const CastTensors& tensors);

// `maxima`: those floats; null without a first pass. There must be a matrix.
CastStackParams stack_params(const CastSpec& spec, const CastTensors& tensors, float* maxima);

// Of the kernel that casts rows and finds the maxima of their columns. resident: its blocks that the GPU runs at once.
CastRowsColumnsParams rows_columns_params(const CastSpec& spec, const CastTensors& tensors, std::int64_t resident);

}  // namespace ingot::cuda
