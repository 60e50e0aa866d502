// amax_history: the check of its tensors (see check.h), and the functions that run it on each device. Tensors must have
// passed the check; on a GPU the context must be current.
#pragma once

#include "ingot/codegen/cast/amax_history_spec.h"
#include "ingot/runtime/cast/amax_history_tensors.h"

namespace ingot {

class Launcher;
class Stream;
class ThreadPool;

void check(const AmaxHistorySpec& spec, const AmaxHistoryTensors& tensors, Device device);

namespace cpu {
void amax_history(const AmaxHistorySpec& spec, const AmaxHistoryTensors& tensors, ThreadPool& pool);
}

namespace cuda {
void amax_history(const AmaxHistorySpec& spec, const AmaxHistoryTensors& tensors, const Stream& stream,
                  Launcher& launcher);
}

}  // namespace ingot
