// Norms, forward and backward: the checks of their tensors (see check.h), and the functions that run them on each
// device. Tensors must have passed the check; on a GPU the context must be current.
#pragma once

#include <cstdint>

#include "ingot/codegen/norm/norm_spec.h"
#include "ingot/runtime/norm/norm_tensors.h"

namespace ingot {

class Launcher;
class Stream;
class ThreadPool;

void check(const NormSpec& spec, const NormTensors& tensors, Device device);
void check(const NormBackwardSpec& spec, const NormBackwardTensors& tensors, Device device);

// Some codes are written by kernels for certain numbers of columns (templates/norm/norm_rows_full.cuh and
// norm_rows_wide.cuh). For rows of `cols` columns, returns `spec` with the NormSpec::cols that names such a kernel, or
// unchanged if there is none or `spec` names one itself. Whether that kernel can run is not checked here: cuda_norm.cpp
// does so (compute capability, alignment, rows).
NormSpec named_norm(const NormSpec& spec, std::int64_t cols);

namespace cpu {
void norm(const NormSpec& spec, const NormTensors& tensors, ThreadPool& pool);
void norm_backward(const NormBackwardSpec& spec, const NormBackwardTensors& tensors, ThreadPool& pool);
}  // namespace cpu

namespace cuda {
void norm(const NormSpec& spec, const NormTensors& tensors, Stream& stream, Launcher& launcher);
void norm_backward(const NormBackwardSpec& spec, const NormBackwardTensors& tensors, Stream& stream,
                   Launcher& launcher);
}  // namespace cuda

}  // namespace ingot
