// The implementations on each device of norms, forward and backward. Tensors must have passed check_norm.h; on a GPU
// the context must be current.
#pragma once

#include "ingot/codegen/norm/norm_spec.h"
#include "ingot/runtime/norm/norm_tensors.h"

namespace ingot {
class Launcher;
class Stream;
class ThreadPool;
}  // namespace ingot

namespace ingot::cpu {

void norm(const NormSpec& spec, const NormTensors& tensors, ThreadPool& pool);
void norm_backward(const NormBackwardSpec& spec, const NormBackwardTensors& tensors, ThreadPool& pool);

}  // namespace ingot::cpu

namespace ingot::cuda {

void norm(const NormSpec& spec, const NormTensors& tensors, Stream& stream, Launcher& launcher);
void norm_backward(const NormBackwardSpec& spec, const NormBackwardTensors& tensors, Stream& stream,
                   Launcher& launcher);

}  // namespace ingot::cuda
