// GEMMs and the relayout of their operands on each device, of tensors that check_gemm.h has accepted; on a GPU with the
// context current.
#pragma once

#include <cstddef>

#include "ingot/codegen/kernel_spec.h"
#include "ingot/codegen/types/matmul_size.h"
#include "ingot/runtime/gemm/gemm_tensors.h"

namespace ingot {
class CublasLt;
class GemmPlans;
class Launcher;
class Stream;
class ThreadPool;
}  // namespace ingot

namespace ingot::cpu {

void gemm(const GemmSpec& spec, const GemmTensors& tensors, ThreadPool& pool);
void relayout(const RelayoutSpec& spec, const RelayoutTensors& tensors, ThreadPool& pool);

}  // namespace ingot::cpu

namespace ingot::cuda {

// Throws Error{invalid_argument} where the spec asks for a kernel that does not take the call. `cublaslt` may be null.
void gemm(const GemmSpec& spec, const GemmTensors& tensors, Stream& stream, Launcher& launcher, GemmPlans& plans,
          CublasLt* cublaslt);
// Of a spec with a tiling, and a call that sm90_refusal() has nothing against.
void gemm_sm90(const GemmSpec& spec, const GemmTensors& tensors, const MatmulSize& size, Stream& stream,
               Launcher& launcher);
// Of a spec with a tiling, and a call that mma_refusal() has nothing against.
void gemm_mma(const GemmSpec& spec, const GemmTensors& tensors, const MatmulSize& size, const Stream& stream,
              Launcher& launcher);
// What gemm_sm90 needs of operands that lie otherwise than it reads them: their codes once more, in rows along k that
// start at multiples of 16 bytes. The bytes that they take, and the call's tensors with those operands in `memory`,
// which is at a multiple of 16 bytes.
std::size_t staged_bytes(const GemmSpec& spec, const MatmulSize& size);
GemmTensors stage(const GemmSpec& spec, const GemmTensors& tensors, const MatmulSize& size, void* memory,
                  const Stream& stream, Launcher& launcher);
void relayout(const RelayoutSpec& spec, const RelayoutTensors& tensors, const Stream& stream, Launcher& launcher);

}  // namespace ingot::cuda
