// Makes the parameter structs of kernels simt and mma, of all epilogues, and of stream-K, from checked tensors.
#pragma once

#include <cstddef>
#include "gemm/gemm_mma.cuh"
#include "gemm/gemm_params.cuh"
#include "gemm/stream_k.cuh"
#include "ingot/codegen/gemm/gemm_spec.h"
#include "ingot/runtime/core/stream.h"
#include "ingot/runtime/gemm/gemm_tensors.h"

namespace ingot::cuda {

EpilogueParams epilogue_params(const GemmTensors& tensors);
GemmParams gemm_params(const GemmSpec& spec, const GemmTensors& tensors, const MatmulSize& size);
// Decides from addresses and strides how rows may be copied.
GemmMmaParams gemm_mma_params(const GemmSpec& spec, const GemmTensors& tensors, const MatmulSize& size);

// Stream-K, which cuts tiles along K (templates/gemm/stream_k.cuh): the split for a GPU that runs `at_once` blocks at
// the same time; launch split.blocks of them.
inline StreamKSplit stream_k_split_at_once(const StreamKWork& work, u32 at_once) {
  return stream_k_split(work, stream_k_blocks(work, at_once));
}

// The scratch memory for all blocks' partial sums, `part_bytes` each; 0 if no tile is cut.
inline std::size_t stream_k_bytes(const StreamKSplit& split, u64 part_bytes) {
  return split.shared == 0 ? 0 : std::size_t{split.blocks} * part_bytes;
}

// parts: stream_k_bytes() of the stream's scratch memory. warps: how many warps of a block hold sums.
inline StreamKParams stream_k_params(const StreamKSplit& split, void* parts, u32 warps, Stream& stream) {
  const std::size_t flags = split.shared == 0 ? 0 : std::size_t{split.blocks} * warps * sizeof(u32);
  return {.split = split,
          .parts = static_cast<float*>(parts),
          .flags = flags == 0 ? nullptr : static_cast<u32*>(stream.zeros(flags))};
}

}  // namespace ingot::cuda
