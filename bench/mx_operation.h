// Casts to MX as operations of the benchmarks.
#pragma once

#include <cstdint>

#include "ingot/codegen/kernel_spec.h"
#include "operation.h"

namespace ingot::bench {

// Of an `out` of one byte.
Operation mx_operation(const MxQuantizeSpec& spec, std::int64_t rows, std::int64_t cols);

}  // namespace ingot::bench
