// The cast operations: the checks of their tensors (see check.h), and the functions that run them on each
// device. Tensors must have passed the check; on a GPU the context must be current.
#pragma once

#include <memory>
#include <span>

#include "ingot/codegen/cast/amax_spec.h"
#include "ingot/codegen/cast/cast_spec.h"
#include "ingot/codegen/cast/cast_stats_spec.h"
#include "ingot/codegen/cast/column_sum_spec.h"
#include "ingot/codegen/cast/combine_spec.h"
#include "ingot/codegen/cast/elementwise_spec.h"
#include "ingot/runtime/cast/cast_tensors.h"
#include "ingot/runtime/core/check_scales.h"

namespace ingot {

class Launcher;
class Stream;
class ThreadPool;
struct FactorSteps;

void check(const CastSpec& spec, const CastTensors& tensors, Device device);
// Where ends, which the host has to be able to read, are out of bounds: names the expert.
void check_expert_values(const CastSpec& spec, const CastTensors& tensors);
// Of one of a list, whose spec has passed validate_spec().
void check_tensors(const CastSpec& spec, const CastTensors& tensors, Device device);
void check_tensors(const AmaxSpec& spec, const AmaxTensors& tensors, Device device);
// Checks each of a list, and that no output overlaps a tensor of another.
void check_list(const CastSpec& spec, std::span<const CastTensors> tensors, Device device);
void check_list(const AmaxSpec& spec, std::span<const AmaxTensors> tensors, Device device);
void check(const AmaxSpec& spec, const AmaxTensors& tensors, Device device);
void check(const AmaxScalesSpec& spec, const AmaxScalesTensors& tensors, Device device);
void check(const AmaxHistorySpec& spec, const AmaxHistoryTensors& tensors, Device device);
void check(const CastStatsSpec& spec, const CastStatsTensors& tensors, Device device);
void check(const ColumnSumSpec& spec, const ColumnSumTensors& tensors, Device device);
// The same of a spec with experts.
void check_expert_values(const ColumnSumTensors& tensors);
void check(const CombineSpec& spec, const CombineTensors& tensors, Device device);
void check(const ElementwiseSpec& spec, const ElementwiseTensors& tensors, Device device);

// How messages name the parts of an input that share a scale.
inline constexpr ScaledMatrix kScaledInput{.whole = "one for the whole tensor",
                                           .row = "one for each row of the input",
                                           .in_row = "in a row of the input",
                                           .of = " of the input"};

// Where cast_stats finds the scale_inv of a cast, in either order of those of groups.
FactorSteps factor_steps(const CastStatsSpec& spec, const CastStatsTensors& tensors);

namespace cpu {
void cast(const CastSpec& spec, const CastTensors& tensors, ThreadPool& pool);
// With spec.experts: a cast for each expert.
void cast_experts(const CastSpec& spec, const CastTensors& tensors, ThreadPool& pool);
void amax(const AmaxSpec& spec, const AmaxTensors& tensors, ThreadPool& pool);
void amax_scales(const AmaxScalesSpec& spec, const AmaxScalesTensors& tensors, ThreadPool& pool);
void amax_history(const AmaxHistorySpec& spec, const AmaxHistoryTensors& tensors, ThreadPool& pool);
void cast_stats(const CastStatsSpec& spec, const CastStatsTensors& tensors, ThreadPool& pool);
void column_sum(const ColumnSumSpec& spec, const ColumnSumTensors& tensors, ThreadPool& pool);
void combine(const CombineSpec& spec, const CombineTensors& tensors, ThreadPool& pool);
void elementwise(const ElementwiseSpec& spec, const ElementwiseTensors& tensors, ThreadPool& pool);
}  // namespace cpu

namespace cuda {
void cast(const CastSpec& spec, const CastTensors& tensors, Stream& stream, Launcher& launcher);
// The launcher and the stream's backend must outlive the lists.
std::unique_ptr<CastList> make_cast_list(const CastSpec& spec, std::span<const CastTensors> tensors, Stream& stream,
                                         Launcher& launcher);
void amax(const AmaxSpec& spec, const AmaxTensors& tensors, Stream& stream, Launcher& launcher);
std::unique_ptr<AmaxList> make_amax_list(const AmaxSpec& spec, std::span<const AmaxTensors> tensors, Stream& stream,
                                         Launcher& launcher);
void amax_scales(const AmaxScalesSpec& spec, const AmaxScalesTensors& tensors, const Stream& stream,
                 Launcher& launcher);
void amax_history(const AmaxHistorySpec& spec, const AmaxHistoryTensors& tensors, const Stream& stream,
                  Launcher& launcher);
void cast_stats(const CastStatsSpec& spec, const CastStatsTensors& tensors, Stream& stream, Launcher& launcher);
void column_sum(const ColumnSumSpec& spec, const ColumnSumTensors& tensors, Stream& stream, Launcher& launcher);
void combine(const CombineSpec& spec, const CombineTensors& tensors, const Stream& stream, Launcher& launcher);
void elementwise(const ElementwiseSpec& spec, const ElementwiseTensors& tensors, const Stream& stream,
                 Launcher& launcher);
}  // namespace cuda

}  // namespace ingot
