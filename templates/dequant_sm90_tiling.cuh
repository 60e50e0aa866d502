// How dequant_sm90 cuts a product up: tiles, stages of shared memory, blocks of a cluster. Constant arithmetic, which
// the kernel, the launch and the cost model share.
#pragma once

#include "dequant_factors.cuh"
#include "dequant_fragment.cuh"
#include "platform.cuh"

namespace ingot {

// A template argument. Rows are those of the weight, tokens those of x.
struct DequantSm90Tiling {
  u32 tokens = 16;  // of a tile
  u32 groups = 2;   // warpgroups that multiply
  u32 waves = 1;    // times 64 rows of each
  u32 depth = 128;  // k of a stage
  u32 stages = 8;
  u32 split = 1;      // blocks of a cluster that share a tile's k and add up what each has
  u32 multicast = 1;  // tiles side by side in a cluster, which load x for each other
  bool wgmma = false;
  u32 blocks_per_sm = 1;
  bool operator==(const DequantSm90Tiling&) const = default;
};

inline constexpr u32 kDequantPart = 64;             // k of a tile of x: one row of the 128-byte swizzle
inline constexpr u32 kDequantSharedLimit = 232448;  // bytes that a block of sm_90 may have
inline constexpr u32 kDequantReserved = 1024;       // of a multiprocessor's, for each block

INGOT_HOST_DEVICE constexpr u32 dequant_rows(const DequantSm90Tiling& t) { return 64 * t.groups * t.waves; }
INGOT_HOST_DEVICE constexpr u32 dequant_cluster(const DequantSm90Tiling& t) { return t.split * t.multicast; }
INGOT_HOST_DEVICE constexpr u32 dequant_parts(const DequantSm90Tiling& t) { return t.depth / kDequantPart; }

// Sums in a thread: the tile's, and beside them those of a group that has a factor of its own.
INGOT_HOST_DEVICE constexpr u32 dequant_sums(const DequantSm90Tiling& t, DequantFactors kind) {
  return t.waves * t.tokens / 2 * (dequant_group(kind) == 0 ? 1 : 2);
}

// Registers of a thread that multiplies and of one that copies, where the first need more than an even share: the
// second are a whole warpgroup then, which gives its own away.
struct DequantRegisters {
  u32 multiplies, copies;  // 0: even shares
};
INGOT_HOST_DEVICE constexpr DequantRegisters dequant_registers(const DequantSm90Tiling& t, DequantFactors kind) {
  const u32 sums = dequant_sums(t, kind);
  if (t.blocks_per_sm == 1 && t.groups == 2 && sums > 96) return {232, 40};
  if (t.blocks_per_sm == 1 && t.groups == 3 && sums > 64) return {152, 56};
  if (t.blocks_per_sm == 1 && t.groups == 4 && sums > 32) return {112, 32};
  return {0, 0};
}
INGOT_HOST_DEVICE constexpr bool dequant_moves_registers(const DequantSm90Tiling& t, DequantFactors kind) {
  return dequant_registers(t, kind).copies != 0;
}
INGOT_HOST_DEVICE constexpr u32 dequant_threads(const DequantSm90Tiling& t, DequantFactors kind) {
  return 128 * t.groups + (dequant_moves_registers(t, kind) ? 128 : 32);
}

// Bytes of a stage: codes, then x.
template <DequantFormat W>
INGOT_HOST_DEVICE constexpr u32 dequant_code_bytes(const DequantSm90Tiling& t) {
  return dequant_rows(t) * t.depth / 8 * kCodeBits<W>;
}
INGOT_HOST_DEVICE constexpr u32 dequant_x_bytes(const DequantSm90Tiling& t) { return t.tokens * t.depth * 2; }
template <DequantFormat W>
INGOT_HOST_DEVICE constexpr u32 dequant_stage_bytes(const DequantSm90Tiling& t) {
  return dequant_code_bytes<W>(t) + dequant_x_bytes(t);
}

// Shared memory: the stages; where a tile's k is split, the other blocks' sums of this block's rows; barriers: two for
// each stage, and two for the sums.
template <DequantFormat W>
INGOT_HOST_DEVICE constexpr u32 dequant_inbox_offset(const DequantSm90Tiling& t) {
  return t.stages * dequant_stage_bytes<W>(t);
}
INGOT_HOST_DEVICE constexpr u32 dequant_inbox_bytes(const DequantSm90Tiling& t) {
  return t.split == 1 ? 0 : dequant_rows(t) * t.tokens * 4;
}
template <DequantFormat W>
INGOT_HOST_DEVICE constexpr u32 dequant_barriers_offset(const DequantSm90Tiling& t) {
  return dequant_inbox_offset<W>(t) + dequant_inbox_bytes(t);
}
template <DequantFormat W>
INGOT_HOST_DEVICE constexpr u32 dequant_shared_bytes(const DequantSm90Tiling& t) {
  return dequant_barriers_offset<W>(t) + 16 * t.stages + 16;
}

// Does the kernel exist?
template <DequantFormat W>
INGOT_HOST_DEVICE constexpr bool dequant_sm90_exists(const DequantSm90Tiling& t, DequantFactors kind) {
  const bool tokens = t.wgmma ? t.tokens == 16 || t.tokens == 32 || t.tokens == 64 || t.tokens == 128 || t.tokens == 256
                              : t.tokens == 8 || t.tokens == 16 || t.tokens == 32;
  // Each quarter of a multiprocessor has 16384 registers, which whole warps share in multiples of 8.
  const u32 warps = ceil_div(dequant_threads(t, kind) * t.blocks_per_sm, 128U);
  const u32 share =
      dequant_moves_registers(t, kind) ? dequant_registers(t, kind).multiplies : 16384 / warps / 32 / 8 * 8;
  const u32 fragments = (t.wgmma ? 16 * t.waves : 8 + t.tokens / 2) + (dequant_group(kind) == 0 ? 0 : 12 * t.waves);
  return tokens && t.groups >= 1 && t.groups <= 4 && t.waves >= 1 && t.waves <= 4 && t.depth % kDequantPart == 0 &&
         t.depth != 0 && t.stages >= 2 && (t.split == 1 || t.split == 2 || t.split == 4 || t.split == 8) &&
         dequant_rows(t) / 16 % t.split == 0 && (t.multicast == 1 || t.multicast == 2 || t.multicast == 4) &&
         dequant_cluster(t) <= 8 && t.tokens % (8 * t.multicast) == 0 &&
         dequant_sums(t, kind) + fragments + 32 <= share && dequant_sums(t, kind) <= 128 &&
         (dequant_shared_bytes<W>(t) + kDequantReserved) * t.blocks_per_sm <= kDequantSharedLimit + kDequantReserved;
}

// Tokens that the tensor map's box has: what one copy brings of x. Fewer than a tile's where there are no more, so that
// none is filled up with zeros.
INGOT_HOST_DEVICE constexpr u32 dequant_x_box(const DequantSm90Tiling& t, u32 m) {
  return t.multicast > 1 ? t.tokens / t.multicast : min_of(t.tokens, m);
}

// Tiles of a cluster.
INGOT_HOST_DEVICE constexpr u32 dequant_tiles_m(const DequantSm90Tiling& t, u32 m) { return ceil_div(m, t.tokens); }
INGOT_HOST_DEVICE constexpr u32 dequant_tiles_n(const DequantSm90Tiling& t, u32 n) {
  return ceil_div(n, dequant_rows(t) * t.multicast);
}

// Blocks to launch, of a GPU on which so many clusters of this kernel run at once: each has as many tiles as any other,
// or one less.
INGOT_HOST_DEVICE constexpr u32 dequant_blocks(const DequantSm90Tiling& t, u32 m, u32 n, u32 clusters) {
  const u32 tiles = dequant_tiles_m(t, m) * dequant_tiles_n(t, n);
  const u32 rounds = ceil_div(tiles, max_of(clusters, 1U));
  return tiles == 0 ? 0 : ceil_div(tiles, rounds) * dequant_cluster(t);
}

struct DequantSpan {
  u32 begin, end;
};
// The stages of a tile's k that the block of that rank has.
INGOT_HOST_DEVICE constexpr DequantSpan dequant_span(const DequantSm90Tiling& t, u32 k, u32 rank) {
  const u64 stages = ceil_div(dequant_padded(k), u64{t.depth});
  return {static_cast<u32>(stages * rank / t.split), static_cast<u32>(stages * (rank + 1) / t.split)};
}

}  // namespace ingot
