// How dequant_sm90 divides a matmul into tiles, stages of shared memory and clusters of blocks: constant arithmetic
// shared by the kernel, its launch and the cost model.
#pragma once

#include "dequant/dequant_experts.cuh"
#include "dequant/dequant_factors.cuh"
#include "dequant/dequant_layout.cuh"
#include "gemm/stream_k.cuh"
#include "platform.cuh"

namespace ingot {

// A template argument. Rows are rows of the weight, tokens are rows of x.
struct DequantSm90Tiling {
  u32 tokens = 16;  // of a tile
  u32 groups = 2;   // warpgroups that multiply
  u32 waves = 1;    // 64-row slices that each warpgroup multiplies
  u32 depth = 128;  // k of a stage
  u32 stages = 8;
  u32 split = 1;      // blocks of a cluster that share a tile's k and then add up their sums
  u32 multicast = 1;  // tiles side by side in a cluster, which load x for each other
  bool wgmma = false;
  u32 blocks_per_sm = 1;
  u32 k_warps = 1;        // warpgroups that have the same rows, and each a part of every stage's k
  bool stream_k = false;  // tiles are cut along k (stream_k.cuh), so that all blocks have equal work
  bool experts = false;   // rows of x are those of experts (dequant_experts.cuh), and so are the tiles'
  bool operator==(const DequantSm90Tiling&) const = default;
};

// The kernel's template arguments that are not types.
struct DequantSm90Config {
  CodeLayout layout = CodeLayout::packed;
  DequantFactors factors{};
  DequantSm90Tiling tiling{};
};

inline constexpr u32 kDequantPart = 64;             // k of a tile of x: one row of the 128-byte swizzle
inline constexpr u32 kDequantSharedLimit = 232448;  // bytes that a block of sm_90 may have
inline constexpr u32 kDequantReserved = 1024;       // shared memory that an SM reserves for each block
inline constexpr u32 kDequantSharedTotal = kDequantSharedLimit + kDequantReserved;  // of an SM
inline constexpr u32 kDequantSharedUnit = 128;                                      // granularity of its allocation

INGOT_HOST_DEVICE constexpr u32 dequant_rows(const DequantSm90Tiling& t) { return 64 * t.groups / t.k_warps * t.waves; }
// How many partial sums of an output, over different k, are added up in the end.
INGOT_HOST_DEVICE constexpr u32 dequant_shares(const DequantSm90Tiling& t) { return t.split * t.k_warps; }
INGOT_HOST_DEVICE constexpr u32 dequant_cluster(const DequantSm90Tiling& t) { return t.split * t.multicast; }
INGOT_HOST_DEVICE constexpr u32 dequant_parts(const DequantSm90Tiling& t) { return t.depth / kDequantPart; }

// Sums in a thread: the tile's, and as many again for a group that has its own scale_inv.
INGOT_HOST_DEVICE constexpr u32 dequant_sums(const DequantSm90Tiling& t, DequantFactors kind) {
  return t.waves * t.tokens / 2 * (dequant_group(kind) == 0 ? 1 : 2);
}

// Registers per thread of the warpgroups that multiply and of those that copy, where the former need more than an even
// share: the latter are then a whole warpgroup, which gives its registers away. Otherwise two warps copy.
struct DequantRegisters {
  u32 multiplies, copies;  // 0: even shares
};
INGOT_HOST_DEVICE constexpr DequantRegisters dequant_registers(const DequantSm90Tiling& t, DequantFactors kind) {
  const u32 sums = dequant_sums(t, kind);
  if (t.blocks_per_sm == 1 && t.groups == 2 && sums + (t.wgmma ? 32 * t.waves : 0) > 112) return {232, 40};
  const bool is_full = sums == 64 && t.stream_k && t.depth > 64;  // of an even share, 8 bytes would spill
  if (t.blocks_per_sm == 1 && t.groups == 3 && (sums > 64 || is_full)) return {152, 56};
  if (t.blocks_per_sm == 1 && t.groups == 4 && sums > 32) return {112, 32};
  return {0, 0};
}
INGOT_HOST_DEVICE constexpr bool dequant_moves_registers(const DequantSm90Tiling& t, DequantFactors kind) {
  return dequant_registers(t, kind).copies != 0;
}
INGOT_HOST_DEVICE constexpr u32 dequant_threads(const DequantSm90Tiling& t, DequantFactors kind) {
  return 128 * t.groups + (dequant_moves_registers(t, kind) ? 128 : 64);
}
template <DequantSm90Config C>
INGOT_HOST_DEVICE constexpr u32 dequant_threads() {
  return dequant_threads(C.tiling, C.factors);
}
template <DequantSm90Config C>
INGOT_HOST_DEVICE constexpr u32 dequant_blocks_per_sm() {
  return C.tiling.blocks_per_sm;
}

// Bytes of a stage: first the codes, then x.
template <CodeFormat W>
INGOT_HOST_DEVICE constexpr u32 dequant_code_bytes(const DequantSm90Tiling& t) {
  return dequant_rows(t) * t.depth / 8 * kCodeBits<W>;
}
INGOT_HOST_DEVICE constexpr u32 dequant_x_bytes(const DequantSm90Tiling& t) { return t.tokens * t.depth * 2; }
template <CodeFormat W>
INGOT_HOST_DEVICE constexpr u32 dequant_stage_bytes(const DequantSm90Tiling& t) {
  return dequant_code_bytes<W>(t) + dequant_x_bytes(t);
}

// Bytes of a row's scale_inv in a stage, if they come with it: for at least 128 k.
INGOT_HOST_DEVICE constexpr u32 dequant_factor_pitch(const DequantSm90Tiling& t) { return max_of(t.depth, 128U) / 32; }
INGOT_HOST_DEVICE constexpr u32 dequant_factor_bytes(const DequantSm90Tiling& t, DequantFactors kind) {
  return kind.into_codes ? dequant_rows(t) * dequant_factor_pitch(t) : 0;
}

// Shared memory holds the stages and their scale_inv; if a tile's k is split, the inbox for all partial sums of this
// block's rows, otherwise outputs on their way out; the barriers: two per stage and three for the sums; and the table
// of experts, if there are any.
template <CodeFormat W>
INGOT_HOST_DEVICE constexpr u32 dequant_factors_offset(const DequantSm90Tiling& t) {
  return t.stages * dequant_stage_bytes<W>(t);
}
template <CodeFormat W>
INGOT_HOST_DEVICE constexpr u32 dequant_inbox_offset(const DequantSm90Tiling& t, DequantFactors kind) {
  return dequant_factors_offset<W>(t) + t.stages * dequant_factor_bytes(t, kind);
}
INGOT_HOST_DEVICE constexpr u32 dequant_inbox_bytes(const DequantSm90Tiling& t) {
  return dequant_shares(t) == 1 ? 0 : dequant_rows(t) * t.tokens * 4 * t.k_warps;
}
// Two inboxes if they are small, so that one fills while the other is read.
INGOT_HOST_DEVICE constexpr u32 dequant_inboxes(const DequantSm90Tiling& t) {
  return dequant_inbox_bytes(t) <= 16384 ? 2 : 1;
}
// If a tile's k is not split: for each warp the f32 values of some tokens by 16 rows, on their way to the output.
inline constexpr u32 kDequantScratchTokens = 16;
inline constexpr u32 kDequantScratchPitch = 20;  // so that neither rows nor tokens conflict in a bank
inline constexpr u32 kDequantScratch = kDequantScratchTokens * kDequantScratchPitch * 4;
INGOT_HOST_DEVICE constexpr u32 dequant_scratch_bytes(const DequantSm90Tiling& t) {
  return dequant_shares(t) == 1 ? 4 * t.groups * kDequantScratch : 0;
}
template <CodeFormat W>
INGOT_HOST_DEVICE constexpr u32 dequant_scratch_offset(const DequantSm90Tiling& t, DequantFactors kind) {
  return dequant_inbox_offset<W>(t, kind) + dequant_inboxes(t) * dequant_inbox_bytes(t);
}
template <CodeFormat W>
INGOT_HOST_DEVICE constexpr u32 dequant_barriers_offset(const DequantSm90Tiling& t, DequantFactors kind) {
  return dequant_scratch_offset<W>(t, kind) + dequant_scratch_bytes(t);
}
template <CodeFormat W>
INGOT_HOST_DEVICE constexpr u32 dequant_experts_offset(const DequantSm90Tiling& t, DequantFactors kind) {
  return dequant_barriers_offset<W>(t, kind) + 16 * t.stages + 24;
}
template <CodeFormat W>
INGOT_HOST_DEVICE constexpr u32 dequant_shared_bytes(const DequantSm90Tiling& t, DequantFactors kind) {
  return dequant_experts_offset<W>(t, kind) + (t.experts ? kExpertTableBytes : 0);
}

// Registers of a thread that multiplies. Each quarter of an SM has 16384 registers, which whole warps share in
// multiples of 8 per thread.
INGOT_HOST_DEVICE constexpr u32 dequant_share(const DequantSm90Tiling& t, DequantFactors kind) {
  const u32 warps = ceil_div(dequant_threads(t, kind) * t.blocks_per_sm, 128U);
  return dequant_moves_registers(t, kind) ? dequant_registers(t, kind).multiplies : 16384 / warps / 32 / 8 * 8;
}

// How many k are decoded before the tensor cores get their codes: 64 if there are enough registers.
INGOT_HOST_DEVICE constexpr u32 dequant_step(const DequantSm90Tiling& t, DequantFactors kind) {
  const bool room = dequant_sums(t, kind) + 32 * t.waves <= 160 && t.groups * t.blocks_per_sm <= 2;
  return t.depth % 128 == 0 && dequant_group(kind) != 32 && room ? 64 : 32;
}

// Does the kernel exist?
template <CodeFormat W>
INGOT_HOST_DEVICE constexpr bool dequant_sm90_exists(const DequantSm90Tiling& t, DequantFactors kind) {
  const bool tokens = t.wgmma ? t.tokens == 16 || t.tokens == 24 || t.tokens == 32 || t.tokens == 64 ||
                                    t.tokens == 128 || t.tokens == 256
                              : t.tokens == 8 || t.tokens == 16 || t.tokens == 32;
  const u32 share = dequant_share(t, kind);
  const u32 fragments = (t.wgmma ? dequant_step(t, kind) / 2 * t.waves : 8 + 4 * t.waves + t.tokens / 2) +
                        (dequant_group(kind) == 0 ? 0 : 12 * t.waves);
  const bool shares = t.k_warps >= 1 && t.groups % max_of(t.k_warps, 1U) == 0 &&
                      t.depth % (32 * max_of(t.k_warps, 1U)) == 0 && (t.k_warps == 1 || !t.wgmma);
  const bool pitch = !kind.into_codes || 512 % max_of(t.depth, 1U) == 0;  // a power of two, 16 at most
  return t.depth != 0 && tokens && shares && pitch && t.groups >= 1 && t.groups <= 4 && t.waves >= 1 && t.waves <= 4 &&
         t.depth % kDequantPart == 0 && t.stages >= 2 &&
         (t.split == 1 || t.split == 2 || t.split == 4 || t.split == 8) && dequant_rows(t) / 16 % t.split == 0 &&
         (t.multicast == 1 || t.multicast == 2 || t.multicast == 4) && dequant_cluster(t) <= 8 &&
         (!t.stream_k || (dequant_cluster(t) == 1 && t.k_warps == 1 && !t.experts)) &&
         t.tokens % (8 * t.multicast) == 0 && dequant_sums(t, kind) + fragments + 32 <= share &&
         dequant_sums(t, kind) <= 128 &&
         (dequant_shared_bytes<W>(t, kind) + kDequantReserved) * t.blocks_per_sm <= kDequantSharedTotal;
}

// Does a tile load and multiply only as many tokens as its expert has there, in eights? So an expert with few rows
// takes no longer than in a smaller tile, and one with more rows reads its codes once. (wgmma multiplies all tokens.)
INGOT_HOST_DEVICE constexpr bool dequant_fits_tokens(const DequantSm90Tiling& t) {
  return t.experts && !t.wgmma && t.tokens > 8 && t.multicast == 1;
}
// Eights of tokens that a tile loads and multiplies, of which its expert has `rows` from the tile's first one on.
INGOT_HOST_DEVICE constexpr u32 dequant_token_tiles(const DequantSm90Tiling& t, u32 rows) {
  return dequant_fits_tokens(t) ? min_of(t.tokens / 8, ceil_div(rows, 8U)) : t.tokens / 8;
}

// Tokens in the tensor map's box, which one copy loads of x. Fewer than a tile's if x has no more.
INGOT_HOST_DEVICE constexpr u32 dequant_x_box(const DequantSm90Tiling& t, u32 m) {
  if (dequant_fits_tokens(t)) return 8;
  return t.multicast > 1 ? t.tokens / t.multicast : min_of(t.tokens, ceil_div(m, 8U) * 8);
}

// The number of tiles of a whole cluster, along tokens and along rows.
INGOT_HOST_DEVICE constexpr u32 dequant_tiles_m(const DequantSm90Tiling& t, u32 m) { return ceil_div(m, t.tokens); }
INGOT_HOST_DEVICE constexpr u32 dequant_tiles_n(const DequantSm90Tiling& t, u32 n) {
  return ceil_div(n, dequant_rows(t) * t.multicast);
}

// Counts an expert's tiles of a whole cluster, for its table.
template <DequantSm90Tiling T>
struct DequantExpertTiles {
  u32 n;
  INGOT_HOST_DEVICE u32 operator()(u32 rows) const { return dequant_tiles_m(T, rows) * dequant_tiles_n(T, n); }
};
// Blocks to launch where the host does not know which rows experts have: as many as run at once, unless there cannot be
// as many tiles. Each expert may have one that is not full.
INGOT_HOST_DEVICE constexpr u32 dequant_expert_blocks(const DequantSm90Tiling& t, u32 m, u32 n, u32 experts,
                                                      u32 clusters) {
  const u64 most = (u64{m / t.tokens} + min_of(experts, m)) * dequant_tiles_n(t, n);
  return static_cast<u32>(min_of(most, u64{max_of(clusters, 1U)})) * dequant_cluster(t);
}

// Blocks to launch on a GPU that runs `clusters` clusters of this kernel at once. Each block gets as many tiles as any
// other, or one less.
INGOT_HOST_DEVICE constexpr u32 dequant_blocks(const DequantSm90Tiling& t, u32 m, u32 n, u32 clusters) {
  const u32 tiles = dequant_tiles_m(t, m) * dequant_tiles_n(t, n);
  const u32 rounds = ceil_div(tiles, max_of(clusters, 1U));
  return tiles == 0 ? 0 : ceil_div(tiles, rounds) * dequant_cluster(t);
}

// All blocks read x. Does it need more than half of the L2 of an H100?
INGOT_HOST_DEVICE constexpr bool dequant_outgrows_l2(i64 m, i64 k) { return 2 * m * k > i64{25} << 20; }

// The work for stream-K, with one step per stage: no parts are added before a tile's last steps (spare = 0).
INGOT_HOST_DEVICE constexpr StreamKWork dequant_work(const DequantSm90Tiling& t, u32 m, u32 n, u32 k) {
  return {.tiles = dequant_tiles_m(t, m) * dequant_tiles_n(t, n),
          .steps = static_cast<u32>(ceil_div(dequant_padded(k), u64{t.depth})),
          .spare = 0,
          .last_round_alone = dequant_outgrows_l2(m, k)};
}
// Memory in addition to the operands: for each block the sums of a tile, and a flag for each warp that has sums.
INGOT_HOST_DEVICE constexpr u32 dequant_sum_warps(const DequantSm90Tiling& t) { return 4 * t.groups; }
INGOT_HOST_DEVICE constexpr u64 dequant_sum_bytes(const DequantSm90Tiling& t) {
  return u64{dequant_rows(t)} * t.tokens * 4;
}

struct DequantSpan {
  u32 begin, end;
};
// The stages of a tile's k that belong to the block of rank `rank`.
INGOT_HOST_DEVICE constexpr DequantSpan dequant_span(const DequantSm90Tiling& t, u32 k, u32 rank) {
  const u64 stages = ceil_div(dequant_padded(k), u64{t.depth});
  return {static_cast<u32>(stages * rank / t.split), static_cast<u32>(stages * (rank + 1) / t.split)};
}

}  // namespace ingot
