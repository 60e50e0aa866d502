// Turns tuning records, perhaps of another machine, into the kernels that a GPU would choose by them, so that these can
// be compiled ahead.
#pragma once

#include <span>
#include <vector>

#include "ingot/codegen/recorded_kernels.h"
#include "ingot/runtime/tuning/tuning_record.h"

namespace ingot {

// The choices of the records of GPUs with that target and as many multiprocessors. (Which of them a run uses also
// depends on its driver and libraries: matmul_choices.h.)
std::vector<TunedMatmul> tuned_matmuls(std::span<const TuningRecord> records, const MatmulDevice& device);

}  // namespace ingot
