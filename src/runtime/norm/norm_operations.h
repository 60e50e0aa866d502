// The implementations on each device of norms, forward and backward. Tensors must have passed check_norm.h; on a GPU
// the context must be current.
#pragma once

#include <cstdint>

#include "ingot/codegen/norm/norm_spec.h"
#include "ingot/runtime/norm/norm_tensors.h"

namespace ingot {
class Launcher;
class Stream;
class ThreadPool;
}  // namespace ingot

namespace ingot {

// Some kernels give each row to a pair of blocks. For rows of `cols` columns, returns `spec` with the NormSpec::cols
// that names such a kernel, or unchanged if there is none or `spec` names one itself. Whether that kernel can
// run is not checked here: cuda_norm.cpp does so (clusters, alignment, rows, shared memory).
NormSpec wide_norm(const NormSpec& spec, std::int64_t cols);

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
