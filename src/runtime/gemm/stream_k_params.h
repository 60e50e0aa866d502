// What a kernel is given where tiles are cut along K (templates/gemm/stream_k.cuh).
#pragma once

#include <cstddef>

#include "ingot/runtime/stream.h"

#include "gemm/stream_k.cuh"

namespace ingot::cuda {

// For a GPU on which so many blocks run at once; split.blocks are to be launched.
inline StreamKSplit stream_k_split_at_once(const StreamKWork& work, u32 at_once) {
  return stream_k_split(work, stream_k_blocks(work, at_once));
}

// Of the parts of all blocks, of so many bytes each; none where no tile is cut.
inline std::size_t stream_k_bytes(const StreamKSplit& split, u64 part_bytes) {
  return split.shared == 0 ? 0 : std::size_t{split.blocks} * part_bytes;
}

// parts: the stream's scratch memory, stream_k_bytes() of it; warps: of a block that have sums.
inline StreamKParams stream_k_params(const StreamKSplit& split, void* parts, u32 warps, Stream& stream) {
  const std::size_t flags = split.shared == 0 ? 0 : std::size_t{split.blocks} * warps * sizeof(u32);
  return {.split = split,
          .parts = static_cast<float*>(parts),
          .flags = flags == 0 ? nullptr : static_cast<u32*>(stream.zeros(flags))};
}

}  // namespace ingot::cuda
