// Norms, forward and backward, as operations that the benchmarks can run.
#pragma once

#include <cstdint>

#include "ingot/codegen/kernel_spec.h"
#include "operation.h"

namespace ingot::bench {

Operation norm_operation(const NormSpec& spec, std::int64_t rows, std::int64_t cols);
Operation norm_operation(const NormBackwardSpec& spec, std::int64_t rows, std::int64_t cols);

}  // namespace ingot::bench
