// The operations on a GPU, of checked tensors with the context current: each fills its kernels' parameters and enqueues
// them. Grids and strides are the templates' own (templates/*.cuh, "...Launch").
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "ingot/runtime/backend.h"
#include "ingot/runtime/jit/launcher.h"
#include "ingot/runtime/stream.h"

namespace ingot {
class CublasLt;
class DequantPlans;
class GemmPlans;
struct MatmulSize;
}  // namespace ingot

namespace ingot::cuda {

void amax(const AmaxSpec& spec, const AmaxTensors& tensors, Stream& stream, Launcher& launcher);
void cast(const CastSpec& spec, const CastTensors& tensors, Stream& stream, Launcher& launcher);
// May outlive neither the launcher nor the stream's backend.
std::unique_ptr<CastList> make_cast_list(const CastSpec& spec, std::span<const CastTensors> tensors, Stream& stream,
                                         Launcher& launcher);
// Throws Error{invalid_argument} where the spec asks for a kernel that does not take the call. `cublaslt` may be null.
void gemm(const GemmSpec& spec, const GemmTensors& tensors, Stream& stream, Launcher& launcher, GemmPlans& plans,
          CublasLt* cublaslt);
// Of a spec with a tiling, and a call that sm90_refusal() has nothing against.
void gemm_sm90(const GemmSpec& spec, const GemmTensors& tensors, const MatmulSize& size, Stream& stream,
               Launcher& launcher);
void relayout(const RelayoutSpec& spec, const RelayoutTensors& tensors, const Stream& stream, Launcher& launcher);
void elementwise(const ElementwiseSpec& spec, const ElementwiseTensors& tensors, const Stream& stream,
                 Launcher& launcher);
// What gemm_sm90 needs of operands that lie otherwise than it reads them: their codes once more, in rows along k that
// start at multiples of 16 bytes. The bytes that they take, and the call's tensors with those operands in `memory`,
// which is at a multiple of 16 bytes.
std::size_t staged_bytes(const GemmSpec& spec, const MatmulSize& size);
GemmTensors stage(const GemmSpec& spec, const GemmTensors& tensors, const MatmulSize& size, void* memory,
                  const Stream& stream, Launcher& launcher);
// Of a spec with a tiling, and a call that mma_refusal() has nothing against.
void gemm_mma(const GemmSpec& spec, const GemmTensors& tensors, const MatmulSize& size, const Stream& stream,
              Launcher& launcher);
void column_sum(const ColumnSumSpec& spec, const ColumnSumTensors& tensors, Stream& stream, Launcher& launcher);
void cast_stats(const CastStatsSpec& spec, const CastStatsTensors& tensors, Stream& stream, Launcher& launcher);
void norm(const NormSpec& spec, const NormTensors& tensors, Stream& stream, Launcher& launcher);
void norm_backward(const NormBackwardSpec& spec, const NormBackwardTensors& tensors, Stream& stream,
                   Launcher& launcher);
void amax_history(const AmaxHistorySpec& spec, const AmaxHistoryTensors& tensors, const Stream& stream,
                  Launcher& launcher);
void quantize_mx(const MxQuantizeSpec& spec, const MxQuantizeTensors& tensors, Stream& stream, Launcher& launcher);
void float_quantize(const FloatQuantizeSpec& spec, const FloatQuantizeTensors& tensors, Stream& stream,
                    Launcher& launcher);
void pack_weight(const PackWeightSpec& spec, const PackWeightTensors& tensors, Stream& stream, Launcher& launcher);
// Throws Error{invalid_argument} where the spec asks for a kernel that does not take the call.
void dequant_matmul(const DequantMatmulSpec& spec, const DequantMatmulTensors& tensors, Stream& stream,
                    Launcher& launcher, DequantPlans& plans);
// Of a spec with a tiling, and a call that dequant_sm90_refusal() has nothing against.
void dequant_sm90(const DequantMatmulSpec& spec, const DequantMatmulTensors& tensors, Stream& stream,
                  Launcher& launcher);
// Of a spec with a tiling, and a call that dequant_mma_refusal() has nothing against.
void dequant_mma(const DequantMatmulSpec& spec, const DequantMatmulTensors& tensors, Stream& stream,
                 Launcher& launcher);

}  // namespace ingot::cuda
