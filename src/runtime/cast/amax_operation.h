// amax: the check of its tensors (see check.h), and the functions that run it on each device. Tensors must have passed
// the check; on a GPU the context must be current.
#pragma once

#include "ingot/codegen/cast/amax_spec.h"
#include "ingot/runtime/cast/amax_tensors.h"

namespace ingot {

class Launcher;
class Stream;
class ThreadPool;

void check(const AmaxSpec& spec, const AmaxTensors& tensors, Device device);

namespace cpu {
void amax(const AmaxSpec& spec, const AmaxTensors& tensors, ThreadPool& pool);
}

namespace cuda {
void amax(const AmaxSpec& spec, const AmaxTensors& tensors, Stream& stream, Launcher& launcher);
}

}  // namespace ingot
