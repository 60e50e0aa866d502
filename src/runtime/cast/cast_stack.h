// The matrices of a cast of stacked ones (CastTensors::matrices), one by one.
#pragma once

#include <cstdint>

#include "ingot/codegen/cast/cast_spec.h"
#include "ingot/runtime/cast/cast_tensors.h"

namespace ingot {

// How many rows each has; the tensors must have been checked.
std::int64_t stacked_rows(const CastTensors& stack);

// The tensors of a cast of one of them by itself. `index` may be that of a matrix that is not there: then nothing may
// be read or written.
CastTensors stacked_matrix(const CastSpec& spec, const CastTensors& stack, std::int64_t index);

}  // namespace ingot
