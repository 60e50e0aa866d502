// How gemm_mma divides a GEMM into tiles: constant arithmetic shared by the kernel and its launch.
#pragma once

#include "platform.cuh"

namespace ingot {

// A template argument: a block's outputs. Its warps, two of them along M, compute m / 2 x 32 outputs each.
struct MmaTiling {
  u32 m = 128, n = 128;
  bool operator==(const MmaTiling&) const = default;
};

// The kernel's template arguments that are not types.
struct GemmMmaConfig {
  MmaTiling tiling{};
  bool group_factors = false;  // scale_inv of groups along K
};

inline constexpr u32 kMmaDepth = 64;      // of K in a step: 128 bytes of a row of 16-bit elements
inline constexpr u32 kMmaRowBytes = 128;  // bytes of a row in shared memory

INGOT_HOST_DEVICE constexpr u32 mma_threads(const MmaTiling& t) { return 2 * t.n; }

// Shared memory: two steps of both operands in 16 bits, and as much as one of these for data in flight: two steps of
// 8-bit codes, or one step of 16-bit elements.
INGOT_HOST_DEVICE constexpr u32 mma_tile_bytes(const MmaTiling& t) { return (t.m + t.n) * kMmaRowBytes; }
INGOT_HOST_DEVICE constexpr u32 mma_shared_bytes(const MmaTiling& t) { return 3 * mma_tile_bytes(t); }

// The blocks per SM for which the compiler divides the registers; scale_inv of groups need a second set of
// accumulators.
INGOT_HOST_DEVICE constexpr u32 mma_blocks_at_once(const MmaTiling& t, bool grouped) {
  return t.n == 128 ? (grouped ? 1 : 2) : (grouped ? 3 : 4);
}

template <GemmMmaConfig C>
INGOT_HOST_DEVICE constexpr u32 mma_threads() {
  return mma_threads(C.tiling);
}
template <GemmMmaConfig C>
INGOT_HOST_DEVICE constexpr u32 mma_blocks_at_once() {
  return mma_blocks_at_once(C.tiling, C.group_factors);
}

INGOT_HOST_DEVICE constexpr i64 mma_blocks(const MmaTiling& t, i64 m, i64 n) {
  return ceil_div(m, i64{t.m}) * ceil_div(n, i64{t.n});
}

// How many bytes of an operand whose rows are stored along k may be copied at a time: 16, 4, or 0 if rows start
// anywhere.
INGOT_HOST_DEVICE u32 mma_copied_bytes(const void* data, i64 row_bytes) {
  const u64 at = reinterpret_cast<u64>(data) | static_cast<u64>(row_bytes);
  return at % 16 == 0 ? 16 : at % 4 == 0 ? 4 : 0;
}

}  // namespace ingot
