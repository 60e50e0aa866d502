// The kernels of dequant_matmul, how they divide a matmul into tiles, and both as text.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "ingot/api.h"

namespace ingot {

// sm90: TMA and wgmma or mma.sync, for packed weights, with the tiles of a DequantTiling. mma: mma.sync of sm_80 and
// later, for any layout and alignment.
enum class DequantKernel : std::uint8_t { automatic, sm90, mma };

// How a kernel divides a matmul into tiles.
struct DequantTiling {
  bool wgmma = false;  // sm90: which instruction of the tensor cores; false: mma.sync
  int tokens = 16;     // rows of x in a tile
  int rows = 128;      // rows of the weight in a tile
  int depth = 128;     // length along K of a stage in shared memory
  int stages = 8;
  int split = 1;          // blocks that share a tile's K; in sm90 they form a cluster
  int k_warps = 1;        // groups of warps that share a stage's depth
  int waves = 1;          // sm90: a warpgroup takes 64 rows this many times
  int multicast = 1;      // sm90: tiles side by side in a cluster, which load x for each other
  int blocks = 1;         // sm90: blocks on a multiprocessor
  bool stream_k = false;  // sm90: tiles are cut along K, so that all multiprocessors have the same amount of work
  bool operator==(const DequantTiling&) const = default;
};

INGOT_API std::string_view name(DequantKernel kernel);  // "sm90"
INGOT_API std::optional<DequantKernel> parse_dequant_kernel(std::string_view text);

// The text that follows the kernel's name in a spec. For mma: "16x64x128:3:1:2" (tokens x rows x depth, stages, split,
// k_warps). For sm90: "mma:16x128x128:8:2:1" or "wgmma:64x256x128:4:1:1:waves2:multicast2:blocks2", which begins with
// the instruction and ends with the fields that are not 1, and with ":streamk" where tiles are cut along K.
INGOT_API std::string print(DequantKernel kernel, const DequantTiling& tiling);
INGOT_API std::optional<DequantTiling> parse_dequant_tiling(DequantKernel kernel, std::string_view text);

}  // namespace ingot
