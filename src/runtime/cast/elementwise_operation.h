// elementwise: the check of its tensors (see check.h), and the functions that run it on each device. Tensors must have
// passed the check; on a GPU the context must be current.
#pragma once

#include "ingot/codegen/cast/elementwise_spec.h"
#include "ingot/runtime/cast/elementwise_tensors.h"

namespace ingot {

class Launcher;
class Stream;
class ThreadPool;

void check(const ElementwiseSpec& spec, const ElementwiseTensors& tensors, Device device);

namespace cpu {
void elementwise(const ElementwiseSpec& spec, const ElementwiseTensors& tensors, ThreadPool& pool);
}

namespace cuda {
void elementwise(const ElementwiseSpec& spec, const ElementwiseTensors& tensors, const Stream& stream,
                 Launcher& launcher);
}

}  // namespace ingot
