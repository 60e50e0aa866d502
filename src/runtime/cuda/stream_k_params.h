// What a kernel is given where tiles are cut along K (templates/stream_k.cuh).
#pragma once

#include <cstddef>

#include "ingot/runtime/stream.h"

#include "stream_k.cuh"

namespace ingot::cuda {

// parts: the stream's scratch memory, of every block; warps: of a block that have sums.
inline StreamKParams stream_k_params(const StreamKSplit& split, void* parts, u32 warps, Stream& stream) {
  const std::size_t flags = split.shared == 0 ? 0 : std::size_t{split.blocks} * warps * sizeof(u32);
  return {.split = split,
          .parts = static_cast<float*>(parts),
          .flags = flags == 0 ? nullptr : static_cast<u32*>(stream.zeros(flags))};
}

}  // namespace ingot::cuda
