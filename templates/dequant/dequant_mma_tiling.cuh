// How dequant_mma divides a matmul into tiles and stages: constant arithmetic shared by the kernel, its launch and the
// cost model.
#pragma once

#include "dequant/dequant_factors.cuh"
#include "dequant/dequant_layout.cuh"
#include "platform.cuh"

namespace ingot {

// A template argument. tokens: rows of x in a tile; rows: rows of the weight in a tile; k_warps: units of warps that
// share a stage's k, 64 each, and then add up their sums.
struct DequantMmaTiling {
  u32 tokens = 16, rows = 64, k_warps = 2;
  bool operator==(const DequantMmaTiling&) const = default;
};

// The kernel's template arguments that are not types.
struct DequantMmaConfig {
  CodeLayout layout = CodeLayout::row_major;
  DequantFactors factors{};
  DequantMmaTiling tiling{};
  bool experts = false;  // rows of x are those of experts (dequant_experts.cuh); each has k to itself: split = 1
};

inline constexpr u32 kDequantMmaUnit = 64;       // k of a unit in a stage
inline constexpr u32 kDequantMmaStages = 3;      // stages of x in shared memory, and of codes in registers
inline constexpr u32 kDequantMmaRowBytes = 128;  // bytes of a token in a unit's part of a stage

INGOT_HOST_DEVICE constexpr u32 dequant_mma_threads(const DequantMmaTiling& t) { return t.rows / 16 * t.k_warps * 32; }
INGOT_HOST_DEVICE constexpr u32 dequant_mma_depth(const DequantMmaTiling& t) { return kDequantMmaUnit * t.k_warps; }
INGOT_HOST_DEVICE constexpr u32 dequant_mma_stage_bytes(const DequantMmaTiling& t) {
  return t.tokens * t.k_warps * kDequantMmaRowBytes;
}
// Shared memory holds the stages, and afterwards the units' sums.
INGOT_HOST_DEVICE constexpr u32 dequant_mma_shared_bytes(const DequantMmaTiling& t) {
  return max_of(kDequantMmaStages * dequant_mma_stage_bytes(t), (t.k_warps - 1) * t.rows * t.tokens * 4);
}

// The blocks per SM for which the compiler divides the registers.
INGOT_HOST_DEVICE constexpr u32 dequant_mma_blocks_at_once(const DequantMmaTiling& t) {
  return t.tokens == 64 ? 1 : 512 / dequant_mma_threads(t);
}

template <DequantMmaConfig C>
INGOT_HOST_DEVICE constexpr u32 dequant_mma_threads() {
  return dequant_mma_threads(C.tiling);
}
template <DequantMmaConfig C>
INGOT_HOST_DEVICE constexpr u32 dequant_mma_blocks_at_once() {
  return dequant_mma_blocks_at_once(C.tiling);
}

INGOT_HOST_DEVICE constexpr i64 dequant_mma_tiles(const DequantMmaTiling& t, i64 m, i64 n) {
  return ceil_div(m, i64{t.tokens}) * ceil_div(n, i64{t.rows});
}
// With experts, of which the host knows no rows: the most tiles that so many rows of x may have. Each expert may have a
// tile that is not full.
INGOT_HOST_DEVICE constexpr i64 dequant_mma_most_tiles(const DequantMmaTiling& t, i64 m, i64 n, i64 experts) {
  return (m / t.tokens + min_of(experts, m)) * ceil_div(n, i64{t.rows});
}
// Counts an expert's tiles, for its table.
template <DequantMmaTiling T>
struct DequantMmaExpertTiles {
  i64 n;
  INGOT_HOST_DEVICE u32 operator()(u32 rows) const { return static_cast<u32>(dequant_mma_tiles(T, i64{rows}, n)); }
};
INGOT_HOST_DEVICE constexpr u32 dequant_mma_stages(const DequantMmaTiling& t, i64 k) {
  return static_cast<u32>(ceil_div(k, i64{dequant_mma_depth(t)}));
}

// If several blocks split a tile's k: the memory for their sums, in the order in which their threads hold them. (A
// counter of the blocks that have arrived is 0 before the launch and after it.)
INGOT_HOST_DEVICE constexpr u64 dequant_mma_part_bytes(const DequantMmaTiling& t) { return u64{t.rows} * t.tokens * 4; }
INGOT_HOST_DEVICE constexpr u64 dequant_mma_parts_bytes(const DequantMmaTiling& t, i64 tiles, u32 split) {
  return split == 1 ? 0 : static_cast<u64>(tiles) * split * dequant_mma_part_bytes(t);
}

}  // namespace ingot
