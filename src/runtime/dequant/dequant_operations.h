// The implementations on each device of matmuls with decoded weights and of packing those weights. Tensors must have
// passed check(); on a GPU the context must be current.
#pragma once

#include "ingot/codegen/dequant/dequant_candidates.h"
#include "ingot/codegen/dequant/dequant_spec.h"
#include "ingot/codegen/types/matmul_size.h"
#include "ingot/runtime/dequant/dequant_tensors.h"

namespace ingot {

// From checked tensors; with experts, M of all of them and N of one.
inline MatmulSize dequant_size(const DequantMatmulTensors& tensors) {
  return {.m = tensors.x.rows, .n = tensors.out.cols, .k = tensors.x.cols};
}
// The size by which the kernel is chosen.
inline MatmulSize planned_size(const DequantMatmulSpec& spec, const DequantMatmulTensors& tensors) {
  const MatmulSize size = dequant_size(tensors);
  return spec.experts ? size_of_experts(size, tensors.ends.experts, tensors.ends.capacity) : size;
}

// The checks of the tensors (see check.h). A packed weight does not record its sizes,
// so its number of bytes must match the sizes of the other tensors.
void check(const PackWeightSpec& spec, const PackWeightTensors& tensors, Device device);
void check(const DequantMatmulSpec& spec, const DequantMatmulTensors& tensors, Device device);
// With experts: the values of their ends, which the host must be able to read. On the CPU check() does so.
void check_expert_values(const DequantMatmulSpec& spec, const DequantMatmulTensors& tensors);

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
// Throws Error{invalid_argument} if the spec names a kernel that does not support the call.
void dequant_matmul(const DequantMatmulSpec& spec, const DequantMatmulTensors& tensors, Stream& stream,
                    Launcher& launcher, DequantPlans& plans);
// Requires a spec with a tiling, and a call that dequant_sm90_refusal() accepts.
void dequant_sm90(const DequantMatmulSpec& spec, const DequantMatmulTensors& tensors, Stream& stream,
                  Launcher& launcher);
// Requires a spec with a tiling, and a call that dequant_mma_refusal() accepts.
void dequant_mma(const DequantMatmulSpec& spec, const DequantMatmulTensors& tensors, Stream& stream,
                 Launcher& launcher);

}  // namespace ingot::cuda
