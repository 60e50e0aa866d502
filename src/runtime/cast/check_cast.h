// The checks of the tensors of casts and of the operations around them (see check.h).
#pragma once

#include <span>

#include "ingot/codegen/cast/amax_history_spec.h"
#include "ingot/codegen/cast/amax_spec.h"
#include "ingot/codegen/cast/cast_spec.h"
#include "ingot/codegen/cast/cast_stats_spec.h"
#include "ingot/codegen/cast/column_sum_spec.h"
#include "ingot/codegen/cast/elementwise_spec.h"
#include "ingot/runtime/cast/cast_tensors.h"

namespace ingot {

void check(const AmaxSpec& spec, const AmaxTensors& tensors, Device device);
void check(const CastSpec& spec, const CastTensors& tensors, Device device);
// Checks each cast, and that no output overlaps a tensor of another cast.
void check_list(const CastSpec& spec, std::span<const CastTensors> tensors, Device device);
void check(const ElementwiseSpec& spec, const ElementwiseTensors& tensors, Device device);
void check(const ColumnSumSpec& spec, const ColumnSumTensors& tensors, Device device);
void check(const CastStatsSpec& spec, const CastStatsTensors& tensors, Device device);
void check(const AmaxHistorySpec& spec, const AmaxHistoryTensors& tensors, Device device);

}  // namespace ingot
