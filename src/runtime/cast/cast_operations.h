// The implementations on each device of casts and the operations around them. Tensors must have passed check_cast.h; on
// a GPU the context must be current.
#pragma once

#include <memory>
#include <span>

#include "ingot/codegen/cast/amax_history_spec.h"
#include "ingot/codegen/cast/amax_spec.h"
#include "ingot/codegen/cast/cast_spec.h"
#include "ingot/codegen/cast/cast_stats_spec.h"
#include "ingot/codegen/cast/column_sum_spec.h"
#include "ingot/codegen/cast/elementwise_spec.h"
#include "ingot/runtime/cast/cast_tensors.h"

namespace ingot {
class Launcher;
class Stream;
class ThreadPool;
}  // namespace ingot

namespace ingot::cpu {

void amax(const AmaxSpec& spec, const AmaxTensors& tensors, ThreadPool& pool);
void cast(const CastSpec& spec, const CastTensors& tensors, ThreadPool& pool);
void elementwise(const ElementwiseSpec& spec, const ElementwiseTensors& tensors, ThreadPool& pool);
void column_sum(const ColumnSumSpec& spec, const ColumnSumTensors& tensors, ThreadPool& pool);
void cast_stats(const CastStatsSpec& spec, const CastStatsTensors& tensors, ThreadPool& pool);
void amax_history(const AmaxHistorySpec& spec, const AmaxHistoryTensors& tensors, ThreadPool& pool);

}  // namespace ingot::cpu

namespace ingot::cuda {

void amax(const AmaxSpec& spec, const AmaxTensors& tensors, Stream& stream, Launcher& launcher);
void cast(const CastSpec& spec, const CastTensors& tensors, Stream& stream, Launcher& launcher);
// The launcher and the stream's backend must outlive the list.
std::unique_ptr<CastList> make_cast_list(const CastSpec& spec, std::span<const CastTensors> tensors, Stream& stream,
                                         Launcher& launcher);
void elementwise(const ElementwiseSpec& spec, const ElementwiseTensors& tensors, const Stream& stream,
                 Launcher& launcher);
void column_sum(const ColumnSumSpec& spec, const ColumnSumTensors& tensors, Stream& stream, Launcher& launcher);
void cast_stats(const CastStatsSpec& spec, const CastStatsTensors& tensors, Stream& stream, Launcher& launcher);
void amax_history(const AmaxHistorySpec& spec, const AmaxHistoryTensors& tensors, const Stream& stream,
                  Launcher& launcher);

}  // namespace ingot::cuda
