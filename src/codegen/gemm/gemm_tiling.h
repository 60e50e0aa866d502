// Which kernel multiplies, and how those of ours for tensor cores cut the product up.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace ingot {

// automatic: what tuning has found for the shape, else the first that can of cuBLASLt, sm90, mma and simt (of sm90 and
// cuBLASLt where prefers_sm90() in gemm_estimate.h). The others are for a call that must be that kernel's: what it
// cannot do is then an error. The CPU reference computes every spec, whatever its kernel.
enum class GemmKernel : std::uint8_t { automatic, cublaslt, sm90, mma, simt };

// cuBLASLt's heuristic names at most this many algorithms for a shape, its best guess first.
inline constexpr int kCublasltAlgorithms = 8;

// Of templates/gemm/gemm_sm90.cuh: the outputs of a tile; the blocks that form a cluster and share the operand they
// have in common, along M or along N; stages of shared memory, 128 of K in each; and whether the two warpgroups that
// multiply share each tile (cooperative) or have tiles of their own (ping-pong), so that one writes while the other
// multiplies. stream_k: tiles are cut along K, so that all multiprocessors have as much to do; for few rows, and for a
// last round of few tiles.
struct GemmTiling {
  int m = 128;
  int n = 256;
  int cluster_m = 1;
  int cluster_n = 1;
  int stages = 4;
  bool pingpong = false;
  bool stream_k = false;
  auto operator<=>(const GemmTiling&) const = default;
};

// Those of templates/gemm/gemm_mma.cuh: a tile of the outputs is all that they say.
inline constexpr std::array kMmaTilings{GemmTiling{.m = 128, .n = 128, .stages = 2},
                                        GemmTiling{.m = 64, .n = 64, .stages = 2}};

std::string_view name(GemmKernel kernel);  // "sm90"
std::optional<GemmKernel> parse_gemm_kernel(std::string_view text);

// "128x256:2x1:4:cooperative", "64x128:1x1:8:cooperative:streamk": tile, cluster, stages, schedule.
std::string print(const GemmTiling& tiling);
std::optional<GemmTiling> parse_gemm_tiling(std::string_view text);
// "128x128": one of kMmaTilings.
std::string print_mma_tiling(const GemmTiling& tiling);
std::optional<GemmTiling> parse_mma_tiling(std::string_view text);

// Why the kernel cannot be made of this tiling, in words; empty if it can. `fast`: one set of sums, not two.
std::string tiling_fault(const GemmTiling& tiling, bool fast);

}  // namespace ingot
