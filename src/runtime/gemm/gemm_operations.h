// The implementations on each device of GEMMs and of the relayout of their operands. Tensors must have passed
// check(); on a GPU the context must be current.
#pragma once

#include <cstddef>
#include "ingot/codegen/gemm/gemm_spec.h"
#include "ingot/codegen/gemm/grouped_gemm_spec.h"
#include "ingot/codegen/types/matmul_size.h"
#include "ingot/runtime/gemm/gemm_tensors.h"

namespace ingot {

// The checks of the tensors (see check.h).
void check(const GemmSpec& spec, const GemmTensors& tensors, Device device);
// Checks a pair, neither of which may write what the other reads or writes.
void check(const GemmWork& first, const GemmWork& second, Device device);
void check(const GroupedGemmSpec& spec, const GroupedGemmTensors& tensors, Device device);
void check(const RelayoutSpec& spec, const RelayoutTensors& tensors, Device device);
// Where a grouped GEMM's ends or counts, which the host has to be able to read, are out of bounds: names the expert.
void check_expert_values(const GroupedGemmSpec& spec, const GroupedGemmTensors& tensors);
// Are b's scale_inv of groups or blocks a matrix with the groups of K of each expert, one expert's after another's?
bool is_by_group_of_each(const GemmSpec& gemm, const GroupedGemmTensors& tensors);

class CublasLt;
class GemmPairPlans;
class GemmPlans;
class Launcher;
class Stream;
class ThreadPool;
}  // namespace ingot

namespace ingot::cpu {

void gemm(const GemmSpec& spec, const GemmTensors& tensors, ThreadPool& pool);
void grouped_gemm(const GroupedGemmSpec& spec, const GroupedGemmTensors& tensors, ThreadPool& pool);
void relayout(const RelayoutSpec& spec, const RelayoutTensors& tensors, ThreadPool& pool);

}  // namespace ingot::cpu

namespace ingot::cuda {

// Throws Error{invalid_argument} if the spec names a kernel that does not support the call. `cublaslt` may be null.
void gemm(const GemmSpec& spec, const GemmTensors& tensors, Stream& stream, Launcher& launcher, GemmPlans& plans,
          CublasLt* cublaslt);
// Computes both in one launch where the plan says so and both fit it, else each as gemm() does.
void gemm_pair(const GemmWork& first, const GemmWork& second, Stream& stream, Launcher& launcher, GemmPairPlans& pairs,
               GemmPlans& plans, CublasLt* cublaslt);
// Requires a spec with a tiling, and a call that sm90_refusal() accepts.
void gemm_sm90(const GemmSpec& spec, const GemmTensors& tensors, const MatmulSize& size, Stream& stream,
               Launcher& launcher);
// The same for both of a pair.
void gemm_sm90_pair(const GemmPairSpec& spec, const GemmTensors& first, const GemmTensors& second, const Stream& stream,
                    Launcher& launcher);
// Throws Error{invalid_argument} if kernel sm90 does not support the call: there is no other one.
void grouped_gemm(const GroupedGemmSpec& spec, const GroupedGemmTensors& tensors, Stream& stream, Launcher& launcher);
// Requires a spec with a tiling, and a call that mma_refusal() accepts.
void gemm_mma(const GemmSpec& spec, const GemmTensors& tensors, const MatmulSize& size, const Stream& stream,
              Launcher& launcher);
// Staging: gemm_sm90 reads codes in rows along k that start at multiples of 16 bytes, so operands with another layout
// are first copied to such rows. staged_bytes() is the size of the copies; stage() makes them in `memory`, which is
// aligned to 16 bytes, and returns the call's tensors with those operands.
std::size_t staged_bytes(const GemmSpec& spec, const MatmulSize& size);
GemmTensors stage(const GemmSpec& spec, const GemmTensors& tensors, const MatmulSize& size, void* memory,
                  const Stream& stream, Launcher& launcher);
void relayout(const RelayoutSpec& spec, const RelayoutTensors& tensors, const Stream& stream, Launcher& launcher);

}  // namespace ingot::cuda
