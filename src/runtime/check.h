// What the operations ask of their arguments, in one place for both backends. Each throws Error{invalid_argument} that
// names the tensor, says what it is and what it should be.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "ingot/codegen/types/matmul_size.h"
#include "ingot/runtime/backend.h"

namespace ingot {

void check(const AmaxSpec& spec, const AmaxTensors& tensors, Device device);
void check(const CastSpec& spec, const CastTensors& tensors, Device device);
// Each of the casts, and that no output overlaps anything of another one.
void check_list(const CastSpec& spec, std::span<const CastTensors> tensors, Device device);
void check(const GemmSpec& spec, const GemmTensors& tensors, Device device);
void check(const ColumnSumSpec& spec, const ColumnSumTensors& tensors, Device device);
void check(const RelayoutSpec& spec, const RelayoutTensors& tensors, Device device);
void check(const ElementwiseSpec& spec, const ElementwiseTensors& tensors, Device device);
void check(const CastStatsSpec& spec, const CastStatsTensors& tensors, Device device);
void check(const NormSpec& spec, const NormTensors& tensors, Device device);
void check(const NormBackwardSpec& spec, const NormBackwardTensors& tensors, Device device);
void check(const AmaxHistorySpec& spec, const AmaxHistoryTensors& tensors, Device device);
void check(const MxQuantizeSpec& spec, const MxQuantizeTensors& tensors, Device device);
void check(const FloatQuantizeSpec& spec, const FloatQuantizeTensors& tensors, Device device);
void check(const PackWeightSpec& spec, const PackWeightTensors& tensors, Device device);
void check(const DequantMatmulSpec& spec, const DequantMatmulTensors& tensors, Device device);

// One tensor of an operation that is made of several: its device, sizes, row stride and pointer.
void check_memory(const char* what, const Tensor& tensor, Device device);

// Do the bytes of two checked tensors meet?
bool overlap(const Tensor& a, const Tensor& b);

// The stream must have been made with the backend that is called.
void check_stream(const Stream& stream, const Backend& backend);

// Of a copy or a fill (which passes the same pointer twice): no null pointer unless there is nothing to move.
void check_pointers(const char* operation, const void* to, const void* from, std::size_t bytes);

// Of checked tensors.
MatmulSize gemm_size(const GemmSpec& spec, const GemmTensors& tensors);

// Elements from the factor of one row (or 128 of them) to that of the next, and from that of one group of K to the
// next: 0 where there is one for all.
struct FactorStrides {
  std::int64_t row, group;
};
// Of checked factors of an operand with these scales.
FactorStrides factor_strides(const Tensor& factors, ScaleGranularity scale, std::int64_t k);

}  // namespace ingot
