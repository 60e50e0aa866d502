// The kernels that compute GEMMs, and how Ingot's own tensor-core kernels divide a matmul into tiles.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "ingot/api.h"

namespace ingot {

// automatic: the kernel that tuning has found for the shape, else the first of cuBLASLt, sm90, mma and simt that takes
// the call (sm90 before cuBLASLt where prefers_sm90() in gemm_estimate.h says so). The others require that kernel: a
// call that it does not take is an error. The CPU reference computes every spec, whatever its kernel.
enum class GemmKernel : std::uint8_t { automatic, cublaslt, sm90, mma, simt };

// Ingot asks cuBLASLt's heuristic for at most this many algorithms for a shape; its best guess comes first.
inline constexpr int kCublasltAlgorithms = 8;

// A tiling of templates/gemm/gemm_sm90.cuh.
struct GemmTiling {
  // Outputs of a tile.
  int m = 128;
  int n = 256;
  // Blocks of a cluster, along M or along N; they share the operand that they have in common.
  int cluster_m = 1;
  int cluster_n = 1;
  int stages = 4;  // of shared memory, each 128 along K
  // The two warpgroups that multiply have their own tiles, so that one writes while the other multiplies; otherwise
  // they share each tile (cooperative).
  bool pingpong = false;
  // Tiles are cut along K, so that all multiprocessors have the same amount of work: for few rows, and for a last round
  // with few tiles.
  bool stream_k = false;
  auto operator<=>(const GemmTiling&) const = default;
};

// The tilings of templates/gemm/gemm_mma.cuh, which have nothing but the outputs of a tile.
inline constexpr std::array kMmaTilings{GemmTiling{.m = 128, .n = 128, .stages = 2},
                                        GemmTiling{.m = 64, .n = 64, .stages = 2}};

INGOT_API std::string_view name(GemmKernel kernel);  // "sm90"
INGOT_API std::optional<GemmKernel> parse_gemm_kernel(std::string_view text);

// "128x256:2x1:4:cooperative", "64x128:1x1:8:cooperative:streamk": tile, cluster, stages, schedule.
INGOT_API std::string print(const GemmTiling& tiling);
INGOT_API std::optional<GemmTiling> parse_gemm_tiling(std::string_view text);
// "128x128": one of kMmaTilings.
INGOT_API std::string print_mma_tiling(const GemmTiling& tiling);
INGOT_API std::optional<GemmTiling> parse_mma_tiling(std::string_view text);

}  // namespace ingot
