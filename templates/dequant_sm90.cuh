// out[M, N] = factor[n] * sum_k x(m, k) w(n, k) + bias, with whatever gemm_epilogue.cuh does to it, on Hopper: x of 16
// bits, w codes of 8, 6 or 4 bits that are decoded on their way into the tensor cores. Any M, N, K; rows of x at
// multiples of 16 bytes.
//
// Work: for few tokens (rows of x), to read each code once at the memory's rate; from some 64 on, 2 M N K operations on
// the 16-bit tensor cores. Weights are operand A, from registers; tokens are the columns: the product is out's
// transpose.
//
// Schedule: one thread keeps a deep ring of stages filled through the copy engine: codes, packed in the order of the
// registers (dequant_fragment.cuh), in runs of bytes, and tiles of x. The warpgroups that multiply have 64 rows each,
// or several times 64. A warp reads its fragments, decodes them and multiplies: by mma.sync, or by wgmma, where it
// decodes the next 32 k while the tensor cores work at the last. Clusters of blocks split a tile's k, so that all
// multiprocessors have as much to do, or load x for each other (multicast). Blocks stay, and take tiles in turn.
//
// Before the kernel ahead has ended, the first codes are fetched into the L2.
//
// Sums: in the tensor cores' f32. Where factors are of groups of k, each group has a sum of its own, which is
// multiplied by its factor and added in f32, in ascending k. Where blocks split k, each row's sums go to one of them
// (distributed shared memory), which adds them in the order of k: every launch gives the same bits.
#pragma once

#include "dequant_factors.cuh"
#include "dequant_fragment.cuh"
#include "dequant_sm90_producer.cuh"
#include "dequant_sm90_tiling.cuh"
#include "gemm_epilogue.cuh"
#include "memory.cuh"
#include "numerics.cuh"
#include "platform.cuh"
#include "ptx/bulk.cuh"
#include "ptx/cluster.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/opaque.cuh"
#include "ptx/shared.cuh"
#include "ptx/wgmma.cuh"
#include "ptx/wgmma16.cuh"
#include "warp_mma.cuh"

namespace ingot {

#if INGOT_ON_DEVICE
// The factors of a thread's rows, as k ascends. The four lanes that have the same rows hold those of four groups.
template <DequantFactors Kind, u32 Waves>
struct DequantGroups {
  static constexpr u32 kGroup = dequant_group(Kind);
  const DequantSm90Params& p;
  u32 row;  // of this lane's first
  u32 lane;
  u32 last;  // group
  u32 four = 0;
  float now[Waves][2] = {};
  float next[Waves][2] = {};

  INGOT_DEVICE DequantGroups(const DequantSm90Params& params, u32 first_row, u32 own_lane)
      : p(params), row(first_row), lane(own_lane), last((params.k - 1) / max_of(kGroup, 1U)) {}

  INGOT_DEVICE void fetch(float (&into)[Waves][2], u32 of) const {
    const u32 group = min_of(4 * of + lane % 4, last);
    INGOT_UNROLL
    for (u32 wave = 0; wave < Waves; ++wave) {
      INGOT_UNROLL
      for (u32 half = 0; half < 2; ++half) {
        into[wave][half] =
            group_factor<Kind>(p.factors, p.factor_stride, min_of(row + wave * 64 + half * 8, p.n - 1), group);
      }
    }
  }
  INGOT_DEVICE void begin(u32 k) {
    four = k / kGroup / 4;
    fetch(now, four);
    fetch(next, four + 1);
  }
  // For all groups up to the one of k.
  INGOT_DEVICE void advance(u32 k) {
    if (k / kGroup / 4 == four) return;
    ++four;
    INGOT_UNROLL
    for (u32 wave = 0; wave < Waves; ++wave) {
      now[wave][0] = next[wave][0];
      now[wave][1] = next[wave][1];
    }
    fetch(next, four + 1);
  }
  INGOT_DEVICE float factor(u32 wave, u32 half, u32 k) const {
    const u32 from = (lane & ~3U) | (k / kGroup % 4);
    return float_from_bits(__shfl_sync(0xffffffffU, float_bits(now[wave][half]), from));
  }
};

// One of the warpgroups that multiply.
template <DequantFormat W, DequantActivation X, HighPrecision Out, DequantFactors Kind, DequantSm90Tiling T, class Epi>
struct DequantConsumer {
  static constexpr u32 kTokenTiles = T.tokens / 8;
  static constexpr u32 kSums = T.tokens / 2;
  static constexpr u32 kGroup = dequant_group(Kind);
  static constexpr bool kGrouped = kGroup != 0;
  static constexpr u32 kRowTiles = dequant_rows(T) / 16;
  static constexpr u32 kOwnRowTiles = kRowTiles / T.split;  // that this block adds up and writes
  static constexpr u32 kPartXBytes = T.tokens * kDequantPart * 2;
  static constexpr u32 kBlockBytes = T.depth / kDequantDepth * kDequantTileBytes<W>;  // of 64 rows in a stage
  static constexpr u32 kGroupSums = kGrouped ? kSums : 1;
  using Sums = float[T.waves][kSums];

  const DequantSm90Params& p;
  const DequantBlock<W, T>& block;
  u32 group;
  u32 warp;  // of the block
  u32 lane;
  u32 release;  // the empty barrier, here or in another block, that this lane arrives at
  u32 parts;    // of 64 k
  DequantSpan span;
  DequantRing<T.stages> ring{};
  u32 round = 0;  // tiles so far
  u32 largest = 0;

  INGOT_DEVICE DequantConsumer(const DequantSm90Params& params, const DequantBlock<W, T>& b, u32 warpgroup)
      : p(params),
        block(b),
        group(warpgroup),
        warp(threadIdx.x / 32),
        lane(threadIdx.x % 32),
        release(b.empty),
        parts(ceil_div(params.k, kDequantPart)),
        span(dequant_span(T, params.k, b.rank)) {
    if constexpr (T.multicast > 1) release = ptx::mapa(b.empty, b.rank + lane % T.multicast * T.split);
  }

  // This warp has read the stage: each block that sends to it may send the next.
  INGOT_DEVICE void release_stage(u32 stage) const {
    if constexpr (T.multicast > 1) {
      if (lane < T.multicast) ptx::mbarrier_arrive_cluster(release + 8 * stage);
    } else {
      if (lane == 0) ptx::mbarrier_arrive(release + 8 * stage);
    }
  }

  INGOT_DEVICE u32 parts_of(u32 stage) const { return min_of(dequant_parts(T), parts - stage * dequant_parts(T)); }

  INGOT_DEVICE static void clear(Sums& d) {
    INGOT_UNROLL
    for (u32 wave = 0; wave < T.waves; ++wave) {
      INGOT_UNROLL
      for (u32 i = 0; i < kSums; ++i) d[wave][i] = 0.0F;
    }
  }

  // This lane's fragment of a stage: of its wave-th 64 rows, and of so many tiles of 32 k from the first on.
  INGOT_DEVICE void fetch_fragment(u32 stage, u32 wave, u32 tile, u32 (&registers)[8]) const {
    const u32 at = stage + (group * T.waves + wave) * kBlockBytes + tile * kDequantTileBytes<W> +
                   packed_fragment_offset<W>(warp % 4, lane);
    u32 words[Fragment<W>::kWords];
    if constexpr (Fragment<W>::kWords == 4) {
      const U32x4 v = ptx::ld_shared16(at);
      words[0] = v.x;
      words[1] = v.y;
      words[2] = v.z;
      words[3] = v.w;
    } else if constexpr (Fragment<W>::kWords == 2) {
      const U32x2 v = ptx::ld_shared8(at);
      words[0] = v.x;
      words[1] = v.y;
    } else {
      INGOT_UNROLL
      for (u32 i = 0; i < 3; ++i) words[i] = ptx::ld_shared4(at + 4 * i);
    }
    decode_fragment<W, X>(words, registers);
    // Decoded here: past a branch, ptxas would no longer see that it may be done beside the tensor cores' work.
    if constexpr (T.wgmma && kGrouped) {
      INGOT_UNROLL
      for (u32& pair : registers) ptx::opaque(pair);
    }
  }

  // A group's sums, times its factor, to those of all.
  INGOT_DEVICE static void promote(Sums& d, Sums& of_group, DequantGroups<Kind, T.waves>& groups, u32 k) {
    groups.advance(k);
    INGOT_UNROLL
    for (u32 wave = 0; wave < T.waves; ++wave) {
      const float factors[2] = {groups.factor(wave, 0, k), groups.factor(wave, 1, k)};
      INGOT_UNROLL
      for (u32 i = 0; i < kSums; ++i) {
        d[wave][i] = fused_multiply_add(of_group[wave][i], factors[i / 2 % 2], d[wave][i]);
      }
    }
  }

  // 32 k by mma.sync.
  INGOT_DEVICE void multiply_by_mma(Sums& d, u32 stage, u32 x, u32 part, u32 half) const {
    u32 b[kTokenTiles][4];
    INGOT_UNROLL
    for (u32 tile = 0; tile < kTokenTiles; ++tile) {
      const u32 row = lane % 8;
      load_matrices(x + part * kPartXBytes + (tile * 8 + row) * 128 + (((half * 4 + lane / 8) ^ row) * 16), b[tile]);
    }
    INGOT_UNROLL
    for (u32 wave = 0; wave < T.waves; ++wave) {
      u32 a[8];
      fetch_fragment(stage, wave, 2 * part + half, a);
      INGOT_UNROLL
      for (u32 step = 0; step < 2; ++step) {
        INGOT_UNROLL
        for (u32 tile = 0; tile < kTokenTiles; ++tile) {
          float* const sums = &d[wave][4 * tile];
          float c[4] = {sums[0], sums[1], sums[2], sums[3]};
          multiply_add<X>(c, {a[4 * step], a[4 * step + 1], a[4 * step + 2], a[4 * step + 3]},
                          {b[tile][2 * step], b[tile][2 * step + 1]});
          INGOT_UNROLL
          for (u32 i = 0; i < 4; ++i) sums[i] = c[i];
        }
      }
    }
  }

  INGOT_DEVICE void sum_by_mma(Sums& d, u32 first_row) {
    clear(d);
    DequantGroups<Kind, T.waves> groups(p, first_row + lane / 4, lane);
    Sums of_group;
    if constexpr (kGrouped) {
      clear(of_group);
      groups.begin(span.begin * T.depth);
    }
    INGOT_UNROLL_BY(1)
    for (u32 at = span.begin; at < span.end; ++at) {
      ptx::mbarrier_wait(block.full + 8 * ring.stage, ring.phase);
      const u32 stage = block.stages + ring.stage * dequant_stage_bytes<W>(T);
      const u32 x = stage + dequant_code_bytes<W>(T);
      const u32 now = parts_of(at);
      INGOT_UNROLL
      for (u32 part = 0; part < dequant_parts(T); ++part) {
        if (part >= now) break;
        const u32 k = at * T.depth + part * kDequantPart;
        INGOT_UNROLL
        for (u32 half = 0; half < 2; ++half) {
          if constexpr (kGrouped) {
            multiply_by_mma(of_group, stage, x, part, half);
            const u32 k_end = k + 32 * (half + 1);
            const bool last = half == 1 && part + 1 == now && at + 1 == span.end;
            if (k_end % kGroup == 0 || last) {
              promote(d, of_group, groups, k_end - 32);
              clear(of_group);
            }
          } else {
            multiply_by_mma(d, stage, x, part, half);
          }
        }
      }
      __syncwarp();
      release_stage(ring.stage);
      ring.advance();
    }
  }

  // 32 k of decoded fragments, by wgmma. x: its descriptor.
  INGOT_DEVICE static void multiply_by_wgmma(Sums& d, const u32 (&a)[T.waves][8], u64 x, u32 adds) {
    ptx::wgmma_fence();
    INGOT_UNROLL
    for (u32 wave = 0; wave < T.waves; ++wave) {
      ptx::wgmma_m64k16<X, T.tokens>(d[wave], a[wave][0], a[wave][1], a[wave][2], a[wave][3], x, adds);
      ptx::wgmma_m64k16<X, T.tokens>(d[wave], a[wave][4], a[wave][5], a[wave][6], a[wave][7], x + 2, 1);
    }
    ptx::wgmma_commit();
  }

  INGOT_DEVICE static void settle(Sums& d) {
    INGOT_UNROLL
    for (u32 wave = 0; wave < T.waves; ++wave) ptx::wgmma_settle(d[wave]);
  }

  // The sums of the group that ends before k, which the tensor cores have been given.
  INGOT_DEVICE static void end_group(Sums& d, Sums& of_group, DequantGroups<Kind, T.waves>& groups, u32 k) {
    ptx::wgmma_wait<0>();
    settle(of_group);
    promote(d, of_group, groups, k - 1);
    settle(of_group);
  }

  // (Sums begin as zeros: of registers that nothing is written to before the tensor cores add to them, ptxas makes
  // copies.)
  INGOT_DEVICE void sum_by_wgmma(Sums& d, u32 first_row) {
    clear(d);
    if (span.begin == span.end) return;
    DequantGroups<Kind, T.waves> groups(p, first_row + lane / 4, lane);
    Sums of_group;
    if constexpr (kGrouped) {
      clear(of_group);
      groups.begin(span.begin * T.depth);
    }
    u32 first[T.waves][8];
    u32 second[T.waves][8];
    u32 adds = 0;  // does this group have any yet?
    u32 previous = 0;
    INGOT_UNROLL_BY(1)
    for (u32 at = span.begin; at < span.end; ++at) {
      ptx::mbarrier_wait(block.full + 8 * ring.stage, ring.phase);
      const u32 stage = block.stages + ring.stage * dequant_stage_bytes<W>(T);
      const u64 x = ptx::wgmma_descriptor(stage + dequant_code_bytes<W>(T));
      const u32 now = parts_of(at);
      INGOT_UNROLL_BY(1)
      for (u32 part = 0; part < now; ++part) {
        const u32 k = at * T.depth + part * kDequantPart;
        const u64 x_part = x + part * (kPartXBytes / 16);
        INGOT_UNROLL
        for (u32 wave = 0; wave < T.waves; ++wave) fetch_fragment(stage, wave, 2 * part, first[wave]);
        if constexpr (kGrouped) {
          if (adds != 0 && k % kGroup == 0) {
            end_group(d, of_group, groups, k);
            adds = 0;
          }
          multiply_by_wgmma(of_group, first, x_part, adds);
        } else {
          multiply_by_wgmma(d, first, x_part, 1);
        }
        adds = 1;
        ptx::wgmma_wait<1>();
        if (part == 0 && at != span.begin) release_stage(previous);
        INGOT_UNROLL
        for (u32 wave = 0; wave < T.waves; ++wave) fetch_fragment(stage, wave, 2 * part + 1, second[wave]);
        if constexpr (kGroup == 32) {
          end_group(d, of_group, groups, k + 32);
          multiply_by_wgmma(of_group, second, x_part + 4, 0);
        } else if constexpr (kGrouped) {
          multiply_by_wgmma(of_group, second, x_part + 4, 1);
        } else {
          multiply_by_wgmma(d, second, x_part + 4, 1);
        }
        ptx::wgmma_wait<1>();
      }
      previous = ring.stage;
      ring.advance();
    }
    if constexpr (kGrouped) {
      end_group(d, of_group, groups, min_of(span.end * T.depth, parts * kDequantPart));
    } else {
      ptx::wgmma_wait<0>();
      settle(d);
    }
    release_stage(previous);
  }

  // What belongs to the rows of a lane's outputs: of two pairs of rows, eight apart.
  struct RowValues {
    float factors[2][2];
    float bias[2][2];
  };
  // row: the first of 16.
  INGOT_DEVICE RowValues row_values(u32 row) const {
    const u64 codes = packed_code_bytes(p.n, p.k, kCodeBits<W>);
    const float* const faults = reinterpret_cast<const float*>(p.weights + codes);
    RowValues values{};
    INGOT_UNROLL
    for (u32 pair = 0; pair < 2; ++pair) {
      INGOT_UNROLL
      for (u32 i = 0; i < 2; ++i) {
        const u32 n = min_of(row + (lane / 8) * 2 + pair * 8 + i, p.n - 1);
        values.factors[pair][i] = row_factor<Kind>(p.factors, n) * faults[n];
        values.bias[pair][i] = p.bias == nullptr ? 0.0F : to_float(static_cast<const X*>(p.bias)[n]);
      }
    }
    return values;
  }

  // 16 rows' sums of 8 tokens, as the tensor cores leave them, to the output. A lane has two tokens of a row and of the
  // row 8 below; it trades one of them for the other's of the next row, so that it has pairs of neighbours in the
  // output.
  INGOT_DEVICE void write(const float (&sums)[4], const RowValues& values, const typename Epi::Vectors& vectors,
                          bool vector, u32 row, u32 token) {
    const float scale = float_from_bits(static_cast<u32>(127 + kDecodeShift<W, X>) << 23);
    const bool odd = lane / 4 % 2 != 0;
    const u32 m = token + lane % 4 * 2 + (odd ? 1 : 0);
    INGOT_UNROLL
    for (u32 pair = 0; pair < 2; ++pair) {
      const float mine = odd ? sums[2 * pair + 1] : sums[2 * pair];
      const float given = odd ? sums[2 * pair] : sums[2 * pair + 1];
      const float taken = float_from_bits(__shfl_xor_sync(0xffffffffU, float_bits(given), 4));
      float x = (odd ? taken : mine) * scale;
      float y = (odd ? mine : taken) * scale;
      x = x * values.factors[pair][0];
      y = y * values.factors[pair][1];
      if (p.bias != nullptr) {
        x = x + values.bias[pair][0];
        y = y + values.bias[pair][1];
      }
      const u32 n = row + (lane / 8) * 2 + pair * 8;
      if (m >= p.m || n >= p.n) continue;
      const bool both = n + 1 < p.n;
      const typename Epi::Raw raw = Epi::fetch(p.epilogue, vectors, m, n, both);
      Epi::apply(p.epilogue, vectors, raw, m, n, both, x, y);
      store_pair(static_cast<Out*>(p.out) + m * p.out_stride + n, x, y, vector, both);
      if constexpr (Epi::kAmax) {
        largest = max_of(largest, gemm_amax_bits<Out>(x));
        if (both) largest = max_of(largest, gemm_amax_bits<Out>(y));
      }
    }
  }

  INGOT_DEVICE void write_own(const Sums& d, u32 row, u32 token) {
    const typename Epi::Vectors vectors = Epi::vectors(p.epilogue);
    const bool vector = rows_aligned<Out>(p.out, p.out_stride, 2 * sizeof(Out));
    INGOT_UNROLL
    for (u32 wave = 0; wave < T.waves; ++wave) {
      const u32 first = row + ((group * T.waves + wave) * 4 + warp % 4) * 16;
      if (first >= p.n) continue;
      const RowValues values = row_values(first);
      INGOT_UNROLL
      for (u32 tile = 0; tile < kTokenTiles; ++tile) {
        if (token + tile * 8 >= p.m) break;
        const float sums[4] = {d[wave][4 * tile], d[wave][4 * tile + 1], d[wave][4 * tile + 2], d[wave][4 * tile + 3]};
        write(sums, values, vectors, vector, first, token + tile * 8);
      }
    }
  }

  // The place of 16 rows' sums of 8 tokens in the inbox of the block that adds them up.
  INGOT_DEVICE u32 inbox_place(u32 rank, u32 row_tile, u32 tile) const {
    return (((rank * kOwnRowTiles + row_tile) * kTokenTiles + tile) * 32 + lane) * 16;
  }

  // Each block has all rows' sums of its k; it sends each row's to the block whose row it is, adds up those of its own,
  // and writes them.
  INGOT_DEVICE void exchange(const Sums& d, u32 row, u32 token) {
    const u32 tiles = min_of(kTokenTiles, ceil_div(p.m - token, 8U));
    if (threadIdx.x == 0) ptx::mbarrier_arrive_expect_tx(block.arrived, T.split * kOwnRowTiles * tiles * 512);
    if (round != 0) ptx::mbarrier_wait(block.drained, (round - 1) % 2);
    const u32 first_block = block.side * T.split;
    INGOT_UNROLL
    for (u32 wave = 0; wave < T.waves; ++wave) {
      const u32 row_tile = (group * T.waves + wave) * 4 + warp % 4;
      const u32 owner = first_block + row_tile / kOwnRowTiles;
      const u32 to = ptx::mapa(block.inbox + inbox_place(block.rank, row_tile % kOwnRowTiles, 0), owner);
      const u32 barrier = ptx::mapa(block.arrived, owner);
      INGOT_UNROLL
      for (u32 tile = 0; tile < kTokenTiles; ++tile) {
        if (tile >= tiles) break;
        ptx::st_async_floats(to + tile * 512, d[wave][4 * tile], d[wave][4 * tile + 1], d[wave][4 * tile + 2],
                             d[wave][4 * tile + 3], barrier);
      }
    }
    const typename Epi::Vectors vectors = Epi::vectors(p.epilogue);
    const bool vector = rows_aligned<Out>(p.out, p.out_stride, 2 * sizeof(Out));
    ptx::mbarrier_wait(block.arrived, round % 2);
    INGOT_UNROLL_BY(1)
    for (u32 unit = warp; unit < kOwnRowTiles * tiles; unit += 4 * T.groups) {
      const u32 row_tile = unit % kOwnRowTiles;
      const u32 tile = unit / kOwnRowTiles;
      const u32 first = row + (block.rank * kOwnRowTiles + row_tile) * 16;
      if (first >= p.n) continue;
      const RowValues values = row_values(first);
      float sums[4] = {0.0F, 0.0F, 0.0F, 0.0F};
      INGOT_UNROLL
      for (u32 rank = 0; rank < T.split; ++rank) {
        const U32x4 part = ptx::ld_shared16(block.inbox + inbox_place(rank, row_tile, tile));
        sums[0] = sums[0] + float_from_bits(part.x);
        sums[1] = sums[1] + float_from_bits(part.y);
        sums[2] = sums[2] + float_from_bits(part.z);
        sums[3] = sums[3] + float_from_bits(part.w);
      }
      write(sums, values, vectors, vector, first, token + tile * 8);
    }
    __syncwarp();
    if (lane < T.split) ptx::mbarrier_arrive_cluster(ptx::mapa(block.drained, first_block + lane));
  }

  INGOT_DEVICE void run() {
    INGOT_UNROLL_BY(1)
    for (DequantWalk<T> walk(p, block.side); walk.more(); walk.advance()) {
      Sums d;
      const u32 first_row = walk.row() + group * T.waves * 64 + warp % 4 * 16;
      if constexpr (T.wgmma) {
        sum_by_wgmma(d, first_row);
      } else {
        sum_by_mma(d, first_row);
      }
      if constexpr (T.split > 1) {
        exchange(d, walk.row(), walk.token());
      } else {
        write_own(d, walk.row(), walk.token());
      }
      ++round;
    }
    if constexpr (Epi::kAmax) raise_epilogue_amax(p.epilogue, largest);
  }
};
#endif

// M, N, K > 0. Blocks are a multiple of dequant_cluster(T), launched as clusters of that size.
template <DequantFormat W, DequantActivation X, HighPrecision Out, DequantFactors Kind, DequantSm90Tiling T,
          class Epi = PlainEpilogue>
INGOT_KERNEL void INGOT_LAUNCH_BOUNDS(dequant_threads(T, Kind), T.blocks_per_sm)
    dequant_sm90([[maybe_unused]] const __grid_constant__ DequantSm90Params p) {
  static_assert(dequant_sm90_exists<W>(T, Kind));
#if INGOT_ON_DEVICE
  constexpr u32 kProducer = 128 * T.groups;
  const auto block = DequantBlock<W, T>::make();
  const u32 warp = __shfl_sync(0xffffffffU, threadIdx.x / 32, 0);
  if (threadIdx.x == kProducer) {
    block.make_barriers();
    ptx::prefetch_tensormap(&p.x);
    DequantProducer<W, T>(p, block).prefetch();
  }
  __syncwarp();
  block.sync_all();
  // What is above may run while the kernel ahead ends.
  start_in_turn();
  if (warp >= 4 * T.groups) {
    if constexpr (dequant_moves_registers(T, Kind)) ptx::setmaxnreg_dec<dequant_registers(T, Kind).copies>();
    if (threadIdx.x == kProducer) DequantProducer<W, T>(p, block).run();
  } else {
    if constexpr (dequant_moves_registers(T, Kind)) ptx::setmaxnreg_inc<dequant_registers(T, Kind).multiplies>();
    DequantConsumer<W, X, Out, Kind, T, Epi>(p, block, warp / 4).run();
  }
  // No block leaves while another may still send to it or arrive at its barriers.
  __syncwarp();
  block.sync_all();
#endif
}

}  // namespace ingot
