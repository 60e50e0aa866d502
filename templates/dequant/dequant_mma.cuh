// out[M, N] = round(epilogue(scale_inv * sum_k x(m, k) value(w(n, k)) + bias)) on the tensor cores of sm_80 and up
// (mma.sync). x is bf16 or f16; the weight has codes of any format and scale_inv of any kind, packed or in rows; any
// size, stride and address. It takes what dequant_sm90 does not. With experts, each block finds its tile's expert from
// where their rows end (dequant_experts.cuh); blocks beyond the last tile have nothing to do.
//
// The weight is the instruction's operand A, 16 of its rows per warp; x is operand B, 8 tokens at a time, so that few
// multiplications are wasted on absent tokens. Codes go from memory to registers, two stages ahead, and are decoded
// there, each once per tile; only x goes through shared memory, by asynchronous copies if its rows start at multiples
// of 16 bytes.
//
// Order of accumulation: within 16 k, the tensor cores' order; then, in f32, ascending k within a unit's stages; then
// the units in ascending order; then, if several blocks split a tile's k, the blocks in ascending order, added by the
// block that arrives last. With scale_inv of groups, each 64 k (32 where a group has 32 k) has its own sum: total =
// total + sum * scale_inv. The order depends only on the tiling, the split and K: not on M, nor on which block arrives
// when.
#pragma once

#include "dequant/dequant_experts.cuh"
#include "dequant/dequant_factors.cuh"
#include "dequant/dequant_mma_codes.cuh"
#include "dequant/dequant_mma_tiling.cuh"
#include "gemm/gemm_epilogue.cuh"
#include "gemm/warp_mma.cuh"
#include "memory.cuh"
#include "numerics.cuh"
#include "platform.cuh"
#include "ptx/opaque.cuh"

namespace ingot {

struct DequantMmaParams {
  const void* x;
  i64 x_stride;
  u32 x_copied;  // may x be copied 16 bytes at a time?
  DequantCodesSource codes;
  const void* factors;
  u64 factor_stride;    // from one row's scale_inv (blocks128: from one 128 rows') to the next
  const float* faults;  // of a packed weight
  const void* bias;     // null: none
  void* out;
  i64 out_stride;
  u32 out_pairs;  // do all rows of out start at a multiple of two elements?
  i64 m;
  u32 split;     // blocks per tile
  float* parts;  // if there are several
  u32* arrived;
  EpilogueParams epilogue;
  DequantExperts experts;  // of C.experts
};

// The offset of 16 bytes of a token in a unit's part of a stage.
INGOT_HOST_DEVICE u32 dequant_mma_offset(u32 token, u32 chunk) {
  return token * kDequantMmaRowBytes + ((chunk ^ token) & 7U) * 16;
}

template <class W, class X, class Out, DequantMmaConfig C, class Epi, CodeLayout L = C.layout,
          DequantFactors Kind = C.factors, DequantMmaTiling T = C.tiling>
struct DequantMmaBlock {
  static constexpr bool kPacked = L != CodeLayout::row_major;
  using Codes = typename Select<kPacked, PackedCodes<W, L>, RowCodes<W>>::Type;
  static constexpr u32 kThreads = dequant_mma_threads(T);
  static constexpr u32 kTokens = T.tokens / 8;  // in units of 8 tokens
  static constexpr u32 kRowWarps = T.rows / 16;
  static constexpr u32 kGroup = dequant_group(Kind);
  static constexpr bool kGrouped = kGroup != 0;
  static constexpr u32 kFactors = kGroup == 32 ? 2 : 1;  // scale_inv of a row in a unit's 64 k
  // 2^kExponent is what decoding leaves out.
  static constexpr int kExponent = Codes::kShift + kDecodeShift<typename Codes::Decoded, X, L>;
  static constexpr float kScale = static_cast<float>(1U << kExponent);

  // A unit's part of a stage.
  struct Stage {
    Codes codes;
    float factors[kGrouped ? kFactors : 1][2];
  };
  struct Sums {
    float d[kTokens][4] = {};
  };

  const DequantMmaParams& p;
  DequantExpert expert;
  i64 first_token, first_row;  // of the tile; of the warp
  u32 tile, part;
  u32 begin, end;  // stages
  u32 shared;
  u32 lane, row_warp, unit;

  // Where a tile is: its expert, its first row of x, and its first row of the weight.
  struct Position {
    DequantExpert expert{};
    i64 token = 0, row = 0;
    bool exists = true;
  };

  // One of the tiles of `tokens` rows of x, from `first` on; those with the same rows of the weight follow each other.
  INGOT_DEVICE static Position position(u32 tile, i64 first, i64 tokens) {
    const u32 tiles_m = static_cast<u32>(ceil_div(tokens, i64{T.tokens}));
    return {.token = first + i64{tile % tiles_m} * T.tokens, .row = i64{tile / tiles_m} * T.rows};
  }
  INGOT_DEVICE static Position position_among_experts(const DequantMmaParams& p, u32 tile) {
    __shared__ u32 memory[kExpertTableBytes / sizeof(u32)];
    const ExpertTable table =
        make_expert_table(p.experts, memory, static_cast<u32>(p.m), kThreads, DequantMmaExpertTiles<T>{p.codes.n});
    if (tile >= table.tiles()) return {.exists = false};
    const u32 expert = table.expert_of(tile, 0);
    Position at = position(tile - table.first_tile(expert), table.first_row(expert), table.rows(expert));
    at.expert = {expert, table.row_ends[expert]};
    return at;
  }
  INGOT_DEVICE static Position position_of(const DequantMmaParams& p) {
    const u32 tile = blockIdx.x / p.split;
    if constexpr (C.experts) {
      return position_among_experts(p, tile);
    } else {
      return position(tile, 0, p.m);
    }
  }

  INGOT_DEVICE static DequantMmaBlock make(const DequantMmaParams& p, const Position& at) {
    const u32 part = blockIdx.x % p.split;
    const u64 stages = dequant_mma_stages(T, p.codes.k);
    const u32 warp = threadIdx.x / 32;
    return {.p = p,
            .expert = at.expert,
            .first_token = at.token,
            .first_row = at.row + warp % kRowWarps * 16,
            .tile = blockIdx.x / p.split,
            .part = part,
            .begin = static_cast<u32>(stages * part / p.split),
            .end = static_cast<u32>(stages * (part + 1) / p.split),
            .shared = shared_memory(),
            .lane = threadIdx.x % 32,
            .row_warp = warp % kRowWarps,
            .unit = warp / kRowWarps};
  }

  // What the tile's expert has of the operands; without experts, all of it.
  INGOT_DEVICE i64 end_m() const {
    if constexpr (C.experts) return expert.row_end;
    return p.m;
  }
  INGOT_DEVICE DequantCodesSource codes() const {
    DequantCodesSource source = p.codes;
    source.data = static_cast<const u8*>(operand_of_expert<C.experts>(p.codes.data, p.experts.weight_bytes, expert));
    return source;
  }
  INGOT_DEVICE const void* factors() const {
    return operand_of_expert<C.experts>(p.factors, p.experts.factor_bytes, expert);
  }
  INGOT_DEVICE const float* faults() const {
    return static_cast<const float*>(operand_of_expert<C.experts>(p.faults, p.experts.weight_bytes, expert));
  }
  INGOT_DEVICE const X* bias() const {
    return static_cast<const X*>(operand_of_expert<C.experts>(p.bias, static_cast<u64>(p.codes.n) * sizeof(X), expert));
  }

  INGOT_DEVICE i64 unit_k(u32 stage) const { return i64{stage} * dequant_mma_depth(T) + unit * kDequantMmaUnit; }
  INGOT_DEVICE u32 slot(u32 stage) const { return shared + stage % kDequantMmaStages * dequant_mma_stage_bytes(T); }

  // ---- Loads ----

  // Copies a stage of x to shared memory, with zeros outside x.
  INGOT_DEVICE void fetch_x(u32 stage) const {
    constexpr u32 kChunks = T.tokens * T.k_warps * 8;
    const X* const x = static_cast<const X*>(p.x);
    // Kept in registers through the mainloop, the places of a thread's chunks would be too many there.
    u32 thread = threadIdx.x;
    if constexpr (C.experts && kGrouped) hide(thread);
    INGOT_UNROLL
    for (u32 i = 0; i < ceil_div(kChunks, kThreads); ++i) {
      const u32 chunk = i * kThreads + thread;
      if (kChunks % kThreads != 0 && chunk >= kChunks) break;
      const u32 token = chunk / (8 * T.k_warps);
      const u32 across = chunk % (8 * T.k_warps);
      const i64 m = first_token + token;
      const i64 k = i64{stage} * dequant_mma_depth(T) + across * 8;
      const u32 count = m < end_m() && k < p.codes.k ? static_cast<u32>(min_of(i64{8}, p.codes.k - k)) : 0;
      const X* const from = x + (count == 0 ? 0 : m * p.x_stride + k);
      const u32 target =
          slot(stage) + across / 8 * (T.tokens * kDequantMmaRowBytes) + dequant_mma_offset(token, across % 8);
      if (p.x_copied != 0) {
        copy_async<16>(target, from, 2 * count);
      } else {
        store_shared16(target, elements(from, count));
      }
    }
  }

  INGOT_DEVICE static U32x4 elements(const X* from, u32 count) {
    u32 words[4] = {};
    INGOT_UNROLL
    for (u32 i = 0; i < 8; ++i) {
      const u32 bits = i < count ? from[i].bits : 0;
      words[i / 2] |= bits << (16 * (i % 2));
    }
    return {words[0], words[1], words[2], words[3]};
  }

  INGOT_DEVICE i64 row_of(u32 half) const { return min_of(first_row + lane / 4 + 8 * half, p.codes.n - 1); }

  INGOT_DEVICE Stage fetch(u32 stage) const {
    Stage fetched{};
    if (stage >= end) return fetched;
    const i64 k = unit_k(stage);
    fetched.codes = Codes::load(codes(), first_row, k, lane);
    if constexpr (kGrouped) {
      INGOT_UNROLL
      for (u32 i = 0; i < kFactors; ++i) {
        const i64 at = min_of(k + 32 * i, p.codes.k - 1);
        INGOT_UNROLL
        for (u32 half = 0; half < 2; ++half) {
          fetched.factors[i][half] = group_factor<Kind>(factors(), p.factor_stride, static_cast<u32>(row_of(half)),
                                                        static_cast<u32>(at) / kGroup);
        }
      }
    }
    return fetched;
  }

  // ---- Sums ----

  // Loads x of 8 tokens and 32 k, with k in the same order as in the codes.
  INGOT_DEVICE void load_x(u32 stage, u32 half, u32 tokens, u32 (&words)[4]) const {
    const u32 from = slot(stage) + unit * (T.tokens * kDequantMmaRowBytes);
    if constexpr (kPacked) {
      load_matrices(from + dequant_mma_offset(tokens * 8 + lane % 8, 4 * half + lane / 8), words);
    } else {
      const U32x4 eight = load_shared16(from + dequant_mma_offset(tokens * 8 + lane / 4, 4 * half + lane % 4));
      words[0] = eight.x;
      words[1] = eight.y;
      words[2] = eight.z;
      words[3] = eight.w;
    }
  }

  INGOT_DEVICE void multiply(u32 stage, const Stage& now, Sums& sums, Sums& totals) const {
    INGOT_UNROLL
    for (u32 half = 0; half < 2; ++half) {
      u32 registers[8];
      now.codes.template decode<X>(half, registers);
      const u32 a[2][4] = {{registers[0], registers[1], registers[2], registers[3]},
                           {registers[4], registers[5], registers[6], registers[7]}};
      INGOT_UNROLL
      for (u32 j = 0; j < kTokens; ++j) {
        u32 words[4];
        load_x(stage, half, j, words);
        INGOT_UNROLL
        for (u32 s = 0; s < 2; ++s) {
          const u32 b[2] = {words[2 * s], words[2 * s + 1]};
          multiply_add<X>(sums.d[j], a[s], b);
        }
      }
      // Past the last k there is no group to add: sums of 0 times the scale_inv, perhaps Inf, would give NaN.
      if (kGrouped && (half == 1 || kGroup == 32) && unit_k(stage) + (kGroup == 32 ? 32 * half : 0) < p.codes.k) {
        add_group(now.factors[kGroup == 32 ? half : 0], sums, totals);
      }
    }
  }

  INGOT_DEVICE static void add_group(const float (&factors)[2], Sums& sums, Sums& totals) {
    INGOT_UNROLL
    for (u32 j = 0; j < kTokens; ++j) {
      INGOT_UNROLL
      for (u32 i = 0; i < 4; ++i) {
        totals.d[j][i] = fused_multiply_add(sums.d[j][i] * kScale, factors[i / 2], totals.d[j][i]);
        sums.d[j][i] = 0.0F;
      }
    }
  }

  // The mainloop: multiplies all stages of the block and returns this unit's accumulators.
  INGOT_DEVICE Sums sum() const {
    Sums sums{};
    Sums totals{};
    for (u32 ahead = 0; ahead + 1 < kDequantMmaStages; ++ahead) {
      if (begin + ahead < end) fetch_x(begin + ahead);
      commit_copies();
    }
    Stage now = fetch(begin);
    Stage next = fetch(begin + 1);
    INGOT_UNROLL_BY(1)
    for (u32 stage = begin; stage < end; ++stage) {
      wait_for_copies<kDequantMmaStages - 2>();
      __syncthreads();
      if (stage + 2 < end) fetch_x(stage + 2);
      commit_copies();
      const Stage later = fetch(stage + 2);
      multiply(stage, now, sums, totals);
      now = next;
      next = later;
    }
    if constexpr (kGrouped) return totals;
    return sums;
  }

  // ---- Sums of units, and of blocks ----

  INGOT_DEVICE u32 thread_of_rows() const { return row_warp * 32 + lane; }

  INGOT_DEVICE static U32x4 bits_of(const float (&d)[4]) {
    return {float_bits(d[0]), float_bits(d[1]), float_bits(d[2]), float_bits(d[3])};
  }
  INGOT_DEVICE static void add(float (&d)[4], const U32x4& other) {
    d[0] = d[0] + float_from_bits(other.x);
    d[1] = d[1] + float_from_bits(other.y);
    d[2] = d[2] + float_from_bits(other.z);
    d[3] = d[3] + float_from_bits(other.w);
  }

  // Adds the units' sums; afterwards the first unit has the block's sums.
  INGOT_DEVICE void add_units(Sums& sums) const {
    if constexpr (T.k_warps == 1) return;
    const auto address = [&](u32 from, u32 j) {
      return shared + (((from - 1) * kTokens + j) * (kRowWarps * 32) + thread_of_rows()) * 16;
    };
    __syncthreads();  // no warp reads x any more
    if (unit != 0) {
      INGOT_UNROLL
      for (u32 j = 0; j < kTokens; ++j) store_shared16(address(unit, j), bits_of(sums.d[j]));
    }
    __syncthreads();
    if (unit != 0) return;
    INGOT_UNROLL_BY(1)
    for (u32 from = 1; from < T.k_warps; ++from) {
      INGOT_UNROLL
      for (u32 j = 0; j < kTokens; ++j) add(sums.d[j], load_shared16(address(from, j)));
    }
  }

  INGOT_DEVICE U32x4* part_at(u32 from, u32 j) const {
    U32x4* const all = reinterpret_cast<U32x4*>(p.parts);
    const u64 first = (u64{tile} * p.split + from) * (T.rows * T.tokens / 4);
    return all + first + j * (kRowWarps * 32) + thread_of_rows();
  }

  // Adds the blocks' sums. The block that arrives last has the tile's sums afterwards; the others get false.
  INGOT_DEVICE bool add_blocks(Sums& sums) const {
    __shared__ u32 is_last;
    if (unit == 0) {
      INGOT_UNROLL
      for (u32 j = 0; j < kTokens; ++j) *part_at(part, j) = bits_of(sums.d[j]);
    }
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) is_last = atomicInc(p.arrived + tile, p.split - 1) == p.split - 1 ? 1 : 0;
    __syncthreads();
    if (is_last == 0) return false;
    __threadfence();
    if (unit != 0) return true;
    sums = {};
    INGOT_UNROLL_BY(1)
    for (u32 from = 0; from < p.split; ++from) {
      INGOT_UNROLL
      for (u32 j = 0; j < kTokens; ++j) add(sums.d[j], load16_in_place(part_at(from, j)));
    }
    return true;
  }

  // ---- The epilogue ----

  INGOT_DEVICE void write(const Sums& sums) const {
    float factors[2];
    INGOT_UNROLL
    for (u32 half = 0; half < 2; ++half) {
      factors[half] = row_factor<Kind>(this->factors(), static_cast<u32>(row_of(half)));
      if constexpr (kPacked) factors[half] = factors[half] * faults()[row_of(half)];
    }
    const typename Epi::Vectors vectors = Epi::vectors(p.epilogue);
    // A lane has two tokens of each row, but a pair of outputs is two rows of a token: of two neighbouring rows, the
    // two lanes exchange one token each.
    const bool odd = lane / 4 % 2 != 0;
    INGOT_UNROLL
    for (u32 half = 0; half < 2; ++half) {
      const i64 n = first_row + lane / 4 / 2 * 2 + 8 * half;
      const float bias[2] = {bias_of(n), bias_of(n + 1)};
      INGOT_UNROLL
      for (u32 j = 0; j < kTokens; ++j) {
        float mine[2];
        INGOT_UNROLL
        for (u32 i = 0; i < 2; ++i) mine[i] = finish(sums.d[j][2 * half + i], factors[half]);
        const float other = float_from_bits(__shfl_xor_sync(0xffffffffU, float_bits(odd ? mine[0] : mine[1]), 4));
        const i64 m = first_token + j * 8 + lane % 4 * 2 + (odd ? 1 : 0);
        store(m, n, (odd ? other : mine[0]) + bias[0], (odd ? mine[1] : other) + bias[1], vectors);
      }
    }
  }

  // -0 leaves every sum unchanged.
  INGOT_DEVICE float bias_of(i64 n) const { return p.bias != nullptr && n < p.codes.n ? to_float(bias()[n]) : -0.0F; }

  INGOT_DEVICE static float finish(float sum, float factor) {
    if constexpr (!kGrouped) sum = sum * kScale;
    return sum * factor;
  }

  INGOT_DEVICE void store(i64 m, i64 n, float x, float y, const typename Epi::Vectors& vectors) const {
    if (m >= end_m() || n >= p.codes.n) return;
    const bool both = n + 1 < p.codes.n;
    if constexpr (!Epi::kNothing) {
      Epi::apply(p.epilogue, vectors, Epi::fetch(p.epilogue, vectors, m, n, both), m, n, both, x, y);
    }
    store_pair(static_cast<Out*>(p.out) + (m * p.out_stride + n), x, y, p.out_pairs != 0, both);
  }
};

// Requires M > 0 and N > 0. The grid has dequant_mma_tiles() * split blocks or, with experts, dequant_mma_most_tiles().
template <class W, class X, class Out, DequantMmaConfig C, class Epi = PlainEpilogue>
INGOT_KERNEL void INGOT_LAUNCH_BOUNDS((dequant_mma_threads<C>()), (dequant_mma_blocks_at_once<C>()))
    dequant_mma(const DequantMmaParams p) {
  static_assert(has_dequant_factors(C.factors) && !C.factors.into_codes, "dequant_mma has no such factors");
  static_assert(!C.experts || Epi::kNothing, "a vector along the columns would be that of all experts");
  start_in_turn();
  using Block = DequantMmaBlock<W, X, Out, C, Epi>;
  const typename Block::Position position = Block::position_of(p);
  if (!position.exists) return;
  const auto block = Block::make(p, position);
  auto sums = block.sum();
  block.add_units(sums);
  if (p.split > 1 && !block.add_blocks(sums)) return;
  if (block.unit == 0) block.write(sums);
}

}  // namespace ingot
