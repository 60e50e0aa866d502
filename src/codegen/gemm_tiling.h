// Which kernel multiplies, and how the one for Hopper's tensor cores cuts the product up.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace ingot {

// automatic: cuBLASLt where it can, else sm90 where that can, else simt. The others are for a call that must be that
// kernel's (comparisons, tests): what it cannot do is then an error. The CPU reference computes every spec, whatever
// its kernel.
enum class GemmKernel : std::uint8_t { automatic, cublaslt, sm90, simt };

// Of templates/gemm_sm90.cuh: the outputs of a tile; the blocks that form a cluster and share the operand they have in
// common, along M or along N; stages of shared memory, 128 of K in each; and whether the two warpgroups that multiply
// share each tile (cooperative) or have tiles of their own (ping-pong), so that one writes while the other multiplies.
struct GemmTiling {
  int m = 128;
  int n = 256;
  int cluster_m = 1;
  int cluster_n = 1;
  int stages = 4;
  bool pingpong = false;
  auto operator<=>(const GemmTiling&) const = default;
};

std::string_view name(GemmKernel kernel);  // "sm90"
std::optional<GemmKernel> parse_gemm_kernel(std::string_view text);

// "128x256:2x1:4:cooperative": tile, cluster, stages, schedule.
std::string print(const GemmTiling& tiling);
std::optional<GemmTiling> parse_gemm_tiling(std::string_view text);

// Why the kernel cannot be made of this tiling, in words; empty if it can. `fast`: one set of sums, not two.
std::string tiling_fault(const GemmTiling& tiling, bool fast);

}  // namespace ingot
