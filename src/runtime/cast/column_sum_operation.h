// column_sum: the check of its tensors (see check.h), and the functions that run it on each device. Tensors must have
// passed the check; on a GPU the context must be current.
#pragma once

#include "ingot/codegen/cast/column_sum_spec.h"
#include "ingot/runtime/cast/column_sum_tensors.h"

namespace ingot {

class Launcher;
class Stream;
class ThreadPool;

void check(const ColumnSumSpec& spec, const ColumnSumTensors& tensors, Device device);

namespace cpu {
void column_sum(const ColumnSumSpec& spec, const ColumnSumTensors& tensors, ThreadPool& pool);
}

namespace cuda {
void column_sum(const ColumnSumSpec& spec, const ColumnSumTensors& tensors, Stream& stream, Launcher& launcher);
}

}  // namespace ingot
