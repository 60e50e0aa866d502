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

// The spec of the kernel that a pair of blocks runs for rows of so many columns, where a GPU has such and the rows can
// be read in vectors: with NormSpec::cols. `spec` itself if there is none, or if it names one.
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
