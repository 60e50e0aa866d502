// The epilogue store of dequant_sm90: a warp turns the accumulators of its rows, or where blocks or warpgroups split k
// those that it collects from them, into output. It applies scale_inv of rows, bias and the epilogue.
#pragma once

#include "dequant/dequant_factors.cuh"
#include "dequant/dequant_fragment.cuh"
#include "dequant/dequant_sm90_position.cuh"
#include "dequant/dequant_sm90_producer.cuh"
#include "dequant/dequant_sm90_tiling.cuh"
#include "gemm/gemm_epilogue.cuh"
#include "memory.cuh"
#include "numerics.cuh"
#include "platform.cuh"
#include "ptx/bulk.cuh"
#include "ptx/cluster.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/shared.cuh"
#include "ptx/tma.cuh"

namespace ingot {

#if INGOT_ON_DEVICE
template <CodeFormat W, DequantActivation X, HighPrecision Out, DequantSm90Config C, class Epi, CodeLayout L = C.layout,
          DequantFactors Kind = C.factors, DequantSm90Tiling T = C.tiling>
struct DequantOutput {
  static constexpr u32 kTokenTiles = T.tokens / 8;
  static constexpr u32 kSums = T.tokens / 2;
  static constexpr u32 kShares = dequant_shares(T);
  static constexpr u32 kOwnRowTiles = dequant_rows(T) / 16 / T.split;  // of 16 rows that this block adds up and writes
  static constexpr u32 kWarps = 4 * T.groups;
  // scale_inv and bias are fetched before the mainloop has ended, if there are registers for it; with kShares > 1 also
  // only if a warp finishes the same rows for all tokens.
  static constexpr bool kEarly = dequant_sums(T, Kind) + (T.wgmma ? dequant_step(T, Kind) / 2 : 8U) * T.waves +
                                     8 * T.waves + (T.stream_k ? 72 : 56) <=
                                 dequant_share(T, Kind);
  static constexpr bool kEarlyShared = kEarly && kWarps % kOwnRowTiles == 0;
  using TileSums = float[T.waves][kSums];

  const DequantSm90Params& p;
  const DequantBlock<W, Kind, T>& block;
  DequantPosition<T> position;
  u32 largest = 0;  // |out| of this thread so far, as bits

  INGOT_DEVICE DequantOutput(const DequantSm90Params& params, const DequantBlock<W, Kind, T>& b,
                             const DequantPosition<T>& at)
      : p(params), block(b), position(at) {}

  // scale_inv and bias of four neighbouring rows: a lane writes four outputs at a time.
  struct RowValues {
    float factors[4];
    float bias[4];
  };
  INGOT_DEVICE RowValues row_values(const DequantExpert& expert, u32 row) const {
    const u64 codes = packed_code_bytes(p.n, p.k, kCodeBits<W>);
    const float* const faults = reinterpret_cast<const float*>(dequant_weight<T>(p, expert) + codes);
    const X* const bias = static_cast<const X*>(operand_of_expert<T.experts>(p.bias, u64{p.n} * sizeof(X), expert));
    RowValues values{};
    INGOT_UNROLL
    for (u32 i = 0; i < 4; ++i) {
      const u32 n = min_of(row + i, p.n - 1);
      values.factors[i] = row_factor<Kind>(dequant_factors<T>(p, expert), n) * faults[n];
      values.bias[i] = p.bias == nullptr ? 0.0F : to_float(bias[n]);
    }
    return values;
  }

  // Which vector accesses the output's alignment allows.
  struct Target {
    typename Epi::Vectors vectors;
    bool pairs, fours;
  };
  INGOT_DEVICE Target target() const {
    return {Epi::vectors(p.epilogue), rows_aligned<Out>(p.out, p.out_stride, 2 * sizeof(Out)),
            rows_aligned<Out>(p.out, p.out_stride, 4 * sizeof(Out))};
  }

  // Writes a token's sums of four rows to the output. Tokens from end_m on are not the tile's.
  INGOT_DEVICE void write(const float (&sums)[4], const RowValues& values, const Target& to, u32 m, u32 n, u32 end_m) {
    if (m >= end_m || n >= p.n) return;
    const float scale = float_from_bits(static_cast<u32>(127 + kDecodeShift<W, X, L>) << 23);
    Out* const at = static_cast<Out*>(p.out) + m * p.out_stride + n;
    float results[4];
    INGOT_UNROLL
    for (u32 i = 0; i < 4; ++i) {
      results[i] = sums[i] * scale * values.factors[i];
      if (p.bias != nullptr) results[i] = results[i] + values.bias[i];
    }
    const bool fours = to.fours && n + 3 < p.n;
    INGOT_UNROLL
    for (u32 i = 0; i < 4; i += 2) {
      if (n + i >= p.n) break;
      const bool both = n + i + 1 < p.n;
      const typename Epi::Raw raw = Epi::fetch(p.epilogue, to.vectors, m, n + i, both);
      Epi::apply(p.epilogue, to.vectors, raw, m, n + i, both, results[i], results[i + 1]);
      if (!fours) store_pair(at + i, results[i], results[i + 1], to.pairs, both);
      if constexpr (Epi::kAmax) {
        largest = max_of(largest, gemm_amax_bits<Out>(results[i]));
        if (both) largest = max_of(largest, gemm_amax_bits<Out>(results[i + 1]));
      }
    }
    if (fours) store_four(at, results);
  }
  INGOT_DEVICE static void store_four(Out* at, const float (&v)[4]) {
    if constexpr (sizeof(Out) == 4) {
      *reinterpret_cast<U32x4*>(at) = {float_bits(v[0]), float_bits(v[1]), float_bits(v[2]), float_bits(v[3])};
    } else {
      *reinterpret_cast<U32x2*>(at) = {from_float_pair<Out>(v[0], v[1]), from_float_pair<Out>(v[2], v[3])};
    }
  }

  // The first of this lane's four rows among the 16 that the warp has in a wave.
  INGOT_DEVICE u32 own_row(u32 row, u32 wave) const {
    return row + ((position.rows * T.waves + wave) * 4 + position.warp % 4) * 16 + position.lane % 4 * 4;
  }

  // Writes a tile whose sums over all k are complete. They pass through shared memory, some tokens at a time: the
  // tensor cores leave two tokens of a row in a lane, whereas the output has the rows of a token side by side.
  INGOT_DEVICE void write_own(const TileSums& d, u32 row, u32 token, const DequantExpert& expert,
                              const RowValues (&values)[T.waves]) {
    constexpr u32 kAtOnce = min_of(kDequantScratchTokens / 8, kTokenTiles);
    const Target to = target();
    const u32 scratch = block.scratch + position.warp * kDequantScratch;
    const u32 in = scratch + (position.lane % 4 * 2 * kDequantScratchPitch + position.lane / 4) * 4;
    const u32 out = scratch + (position.lane / 4 * kDequantScratchPitch + position.lane % 4 * 4) * 4;
    INGOT_UNROLL
    for (u32 wave = 0; wave < T.waves; ++wave) {
      const u32 n = own_row(row, wave);
      if (n - position.lane % 4 * 4 >= p.n) continue;
      const RowValues of = kEarly ? values[wave] : row_values(expert, n);
      INGOT_UNROLL
      for (u32 first = 0; first < kTokenTiles; first += kAtOnce) {
        if (token + first * 8 >= dequant_end_m<T>(p, expert)) break;
        __syncwarp();
        INGOT_UNROLL
        for (u32 tile = 0; tile < min_of(kAtOnce, kTokenTiles - first); ++tile) {
          INGOT_UNROLL
          for (u32 i = 0; i < 4; ++i) {
            ptx::st_shared_float(in + ((tile * 8 + i % 2) * kDequantScratchPitch + i / 2 * 8) * 4,
                                 d[wave][4 * (first + tile) + i]);
          }
        }
        __syncwarp();
        INGOT_UNROLL
        for (u32 tile = 0; tile < min_of(kAtOnce, kTokenTiles - first); ++tile) {
          const U32x4 four = ptx::ld_shared16(out + tile * 8 * kDequantScratchPitch * 4);
          const float sums[4] = {float_from_bits(four.x), float_from_bits(four.y), float_from_bits(four.z),
                                 float_from_bits(four.w)};
          write(sums, of, to, token + (first + tile) * 8 + position.lane / 4, n, dequant_end_m<T>(p, expert));
        }
      }
    }
  }

  // If blocks or warpgroups split k, each has the sums of all rows over its own k. It sends each row's sums to the
  // block that owns the row, which adds them up and writes them. If there is room for two inboxes, it does so only when
  // it has the next tile's sums, so that nobody waits for sums on their way.
  static constexpr bool kLate = dequant_inboxes(T) == 2;

  // The address of the sums of 16 rows by 8 tokens in the inbox of the block that adds them up. Lane l's four sums are
  // the l-th 16 bytes.
  INGOT_DEVICE u32 inbox_address(u32 of, u32 share, u32 row_tile, u32 tile) const {
    return block.inbox + (((of * kShares + share) * kOwnRowTiles + row_tile) * kTokenTiles + tile) * 512;
  }
  INGOT_DEVICE u32 token_tiles(u32 token, const DequantExpert& expert) const {
    return min_of(kTokenTiles, ceil_div(dequant_end_m<T>(p, expert) - token, 8U));
  }
  INGOT_DEVICE u32 shared_row(u32 row, u32 row_tile) const { return row + (block.rank * kOwnRowTiles + row_tile) * 16; }

  // Sends the sums of the block's tile number `index`.
  INGOT_DEVICE void send(const TileSums& d, u32 index, u32 token, const DequantExpert& expert) const {
    const u32 tiles = token_tiles(token, expert);
    const u32 inbox = index % dequant_inboxes(T);
    const u32 arrived = block.arrived + 8 * inbox;
    if constexpr (T.split > 1) {
      if (threadIdx.x == 0) ptx::mbarrier_arrive_expect_tx(arrived, kShares * kOwnRowTiles * tiles * 512);
    }
    INGOT_UNROLL
    for (u32 wave = 0; wave < T.waves; ++wave) {
      const u32 row_tile = (position.rows * T.waves + wave) * 4 + position.warp % 4;
      u32 to = inbox_address(inbox, block.rank * T.k_warps + position.piece, row_tile % kOwnRowTiles, 0) +
               position.lane * 16;
      u32 barrier = arrived;
      if constexpr (T.split > 1) {
        const u32 owner = block.side * T.split + row_tile / kOwnRowTiles;
        to = ptx::mapa(to, owner);
        barrier = ptx::mapa(barrier, owner);
      }
      INGOT_UNROLL
      for (u32 tile = 0; tile < kTokenTiles; ++tile) {
        if (tile >= tiles) break;
        const float* const sums = &d[wave][4 * tile];
        if constexpr (T.split > 1) {
          ptx::st_async_floats(to + tile * 512, sums[0], sums[1], sums[2], sums[3], barrier);
        } else {
          ptx::st_shared16(to + tile * 512,
                           {float_bits(sums[0]), float_bits(sums[1]), float_bits(sums[2]), float_bits(sums[3])});
        }
      }
    }
    if constexpr (T.split == 1) {
      __syncwarp();
      if (ptx::kEachLaneArrives || position.lane == 0) ptx::mbarrier_arrive(arrived);
    }
  }

  // Adds up and writes this warp's part of the block's own rows, of the block's tile number `index`.
  INGOT_DEVICE void finish(u32 index, u32 row, u32 token, const DequantExpert& expert, const RowValues& early) {
    const u32 tiles = token_tiles(token, expert);
    const u32 inbox = index % dequant_inboxes(T);
    const Target to = target();
    // This lane's token, and its first row.
    const u32 m = position.lane % 8;
    const u32 r = position.lane / 8 * 4;
    ptx::mbarrier_wait(block.arrived + 8 * inbox, index / dequant_inboxes(T) % 2);
    INGOT_UNROLL_BY(1)
    for (u32 unit = position.warp; unit < kOwnRowTiles * tiles; unit += kWarps) {
      const u32 row_tile = unit % kOwnRowTiles;
      const u32 tile = unit / kOwnRowTiles;
      const u32 first = shared_row(row, row_tile);
      if (first >= p.n) continue;
      const RowValues values = kEarlyShared ? early : row_values(expert, first + r);
      float sums[4] = {0.0F, 0.0F, 0.0F, 0.0F};
      INGOT_UNROLL
      for (u32 share = 0; share < kShares; ++share) {
        const u32 from = inbox_address(inbox, share, row_tile, tile) + m / 2 * 16 + m % 2 * 4 + r / 8 * 8 + r % 8 * 64;
        INGOT_UNROLL
        for (u32 i = 0; i < 4; ++i) sums[i] = sums[i] + float_from_bits(ptx::ld_shared4(from + i * 64));
      }
      write(sums, values, to, token + tile * 8 + m, first + r, dequant_end_m<T>(p, expert));
    }
  }

  // This warp has read the inbox: each block that sends to it may send again.
  INGOT_DEVICE void drain() const {
    // (PTX does not say whether st.async's writes are ordinary ones or the copy engine's.)
    if constexpr (T.split > 1) ptx::fence_proxy_async();
    __syncwarp();
    if constexpr (T.split > 1) {
      if (position.lane < T.split)
        ptx::mbarrier_arrive_cluster(ptx::mapa(block.drained, block.side * T.split + position.lane));
    } else {
      if (ptx::kEachLaneArrives || position.lane == 0) ptx::mbarrier_arrive(block.drained);
    }
  }

  // After the last tile.
  INGOT_DEVICE void end() const {
    if constexpr (Epi::kAmax) raise_epilogue_amax(p.epilogue, largest);
  }
};
#endif

}  // namespace ingot
