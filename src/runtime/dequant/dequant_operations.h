// Products with weights that are decoded within them, and the packing of those weights, on each device, of tensors that
// check_dequant.h has accepted; on a GPU with the context current.
#pragma once

#include "ingot/codegen/kernel_spec.h"
#include "ingot/runtime/dequant/dequant_tensors.h"

namespace ingot {
class DequantPlans;
class Launcher;
class Stream;
class ThreadPool;
}  // namespace ingot

namespace ingot::cpu {

void pack_weight(const PackWeightSpec& spec, const PackWeightTensors& tensors, ThreadPool& pool);
void dequant_matmul(const DequantMatmulSpec& spec, const DequantMatmulTensors& tensors, ThreadPool& pool);

}  // namespace ingot::cpu

namespace ingot::cuda {

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
