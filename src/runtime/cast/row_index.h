// What is asked of an index of rows (cast_tensors.h), in sentences; for casts, and for layers that give them one.
#pragma once

#include <cstdint>
#include <string>

#include "ingot/runtime/cast/cast_tensors.h"

namespace ingot {

// What is wrong with an index of rows of a matrix of `of` rows: "is on cpu; ...". Empty if nothing is.
std::string fault_of(const RowIndex& index, std::int64_t of, Device device);

// Its memory, for checks of what overlaps.
Tensor bytes_of(const RowIndex& index);

}  // namespace ingot
