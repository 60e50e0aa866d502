// Casts to MX (OCP microscaling formats) as operations that the benchmarks can run.
#pragma once

#include <cstdint>

#include "ingot/codegen/kernel_spec.h"
#include "operation.h"

namespace ingot::bench {

// For an `out` dtype of one byte.
Operation mx_operation(const MxQuantizeSpec& spec, std::int64_t rows, std::int64_t cols);

}  // namespace ingot::bench
