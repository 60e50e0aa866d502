// Debug check (ContextOptions::check_experts): which rows experts have, and which rows are gathered, is in device
// memory, where a call does not see it. With the check a backend copies it to the host before each call, and refuses
// what is out of bounds, as the CPU's grouped GEMM and matmuls of experts always do.
#pragma once

#include "ingot/codegen/cast/cast_spec.h"
#include "ingot/codegen/cast/column_sum_spec.h"
#include "ingot/codegen/cast/combine_spec.h"
#include "ingot/codegen/dequant/dequant_spec.h"
#include "ingot/codegen/gemm/grouped_gemm_spec.h"
#include "ingot/runtime/cast/cast_tensors.h"
#include "ingot/runtime/core/device_api.h"
#include "ingot/runtime/dequant/dequant_tensors.h"
#include "ingot/runtime/gemm/gemm_tensors.h"

namespace ingot {

// They do nothing unless device_api.checks_experts(). Check the tensors first, as the call does after them. Throw
// Error{invalid_argument} that names the expert, or the row; and on a stream that is capturing a graph.
void check_experts(const GroupedGemmSpec& spec, const GroupedGemmTensors& tensors, DeviceApi& device_api,
                   Stream& stream);
void check_experts(const DequantMatmulSpec& spec, const DequantMatmulTensors& tensors, DeviceApi& device_api,
                   Stream& stream);
void check_experts(const CastSpec& spec, const CastTensors& tensors, DeviceApi& device_api, Stream& stream);
void check_experts(const ColumnSumSpec& spec, const ColumnSumTensors& tensors, DeviceApi& device_api, Stream& stream);
// An index below 0 names no row, as of a token whose expert another rank has; one above the input's rows is refused.
void check_experts(const CombineSpec& spec, const CombineTensors& tensors, DeviceApi& device_api, Stream& stream);

}  // namespace ingot
