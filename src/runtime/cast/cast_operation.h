// cast: the check of its tensors (see check.h), and the functions that run it on each device. Tensors must have passed
// the check; on a GPU the context must be current.
#pragma once

#include <memory>
#include <span>

#include "ingot/codegen/cast/cast_spec.h"
#include "ingot/runtime/cast/cast_tensors.h"

namespace ingot {

class Launcher;
class Stream;
class ThreadPool;

void check(const CastSpec& spec, const CastTensors& tensors, Device device);
// Checks each cast, and that no output overlaps a tensor of another cast.
void check_list(const CastSpec& spec, std::span<const CastTensors> tensors, Device device);

namespace cpu {
void cast(const CastSpec& spec, const CastTensors& tensors, ThreadPool& pool);
}

namespace cuda {
void cast(const CastSpec& spec, const CastTensors& tensors, Stream& stream, Launcher& launcher);
// The launcher and the stream's backend must outlive the list.
std::unique_ptr<CastList> make_cast_list(const CastSpec& spec, std::span<const CastTensors> tensors, Stream& stream,
                                         Launcher& launcher);
}  // namespace cuda

}  // namespace ingot
