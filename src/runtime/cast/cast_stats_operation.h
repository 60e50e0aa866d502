// cast_stats: the check of its tensors (see check.h), and the functions that run it on each device. Tensors must have
// passed the check; on a GPU the context must be current.
#pragma once

#include "ingot/codegen/cast/cast_stats_spec.h"
#include "ingot/runtime/cast/cast_stats_tensors.h"

namespace ingot {

class Launcher;
class Stream;
class ThreadPool;

void check(const CastStatsSpec& spec, const CastStatsTensors& tensors, Device device);

namespace cpu {
void cast_stats(const CastStatsSpec& spec, const CastStatsTensors& tensors, ThreadPool& pool);
}

namespace cuda {
void cast_stats(const CastStatsSpec& spec, const CastStatsTensors& tensors, Stream& stream, Launcher& launcher);
}

}  // namespace ingot
