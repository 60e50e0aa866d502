// The operations over checked tensors; cpu_backend.cpp has done the checking.
#pragma once

#include "ingot/runtime/backend.h"
#include "ingot/runtime/check.h"
#include "ingot/runtime/cpu/thread_pool.h"

namespace ingot::cpu {

void amax(const AmaxSpec& spec, const AmaxTensors& tensors, ThreadPool& pool);
void cast(const CastSpec& spec, const CastTensors& tensors, ThreadPool& pool);
void gemm(const GemmSpec& spec, const GemmTensors& tensors, ThreadPool& pool);
void column_sum(const ColumnSumSpec& spec, const ColumnSumTensors& tensors, ThreadPool& pool);
void relayout(const RelayoutSpec& spec, const RelayoutTensors& tensors, ThreadPool& pool);
void elementwise(const ElementwiseSpec& spec, const ElementwiseTensors& tensors, ThreadPool& pool);
void cast_stats(const CastStatsSpec& spec, const CastStatsTensors& tensors, ThreadPool& pool);
void norm(const NormSpec& spec, const NormTensors& tensors, ThreadPool& pool);
void norm_backward(const NormBackwardSpec& spec, const NormBackwardTensors& tensors, ThreadPool& pool);
void amax_history(const AmaxHistorySpec& spec, const AmaxHistoryTensors& tensors, ThreadPool& pool);
void quantize_mx(const MxQuantizeSpec& spec, const MxQuantizeTensors& tensors, ThreadPool& pool);
void float_quantize(const FloatQuantizeSpec& spec, const FloatQuantizeTensors& tensors, ThreadPool& pool);
void pack_weight(const PackWeightSpec& spec, const PackWeightTensors& tensors, ThreadPool& pool);
void dequant_matmul(const DequantMatmulSpec& spec, const DequantMatmulTensors& tensors, ThreadPool& pool);

}  // namespace ingot::cpu
