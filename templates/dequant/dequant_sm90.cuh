// out[M, N] = factor[n] * sum_k x(m, k) w(n, k) + bias, followed by the epilogue of gemm_epilogue.cuh, on Hopper: x has
// 16 bits, w has codes of 8, 6 or 4 bits, which are decoded on their way into the tensor cores. Any M, N, K; rows of x
// start at multiples of 16 bytes.
//
// Work: for few tokens (rows of x), reading each code once, at the memory's rate; from about 64 tokens on, 2 M N K
// operations on the 16-bit tensor cores. Weights are operand A, from registers, and tokens are the columns, so the
// tensor cores compute out's transpose.
//
// Schedule: two warps keep a deep ring of stages filled. One thread of the first copies codes, packed in the order of
// the registers (dequant_layout.cuh), as runs of bytes; all its lanes copy the factors that are multiplied into the
// codes, if there are any. One thread of the second copies tiles of x. If the weight is constant, its codes and those
// factors are copied while the previous kernel in the stream ends. Each multiplying warpgroup has one or several times
// 64 rows. A warp reads its fragments, decodes them (dequant_fragment.cuh) and multiplies: by mma.sync, or by wgmma, in
// which case it decodes the next 32 or 64 k while the tensor cores multiply those before. Blocks of a cluster split a
// tile's k, so that all SMs have work, or load x for each other (multicast). Blocks are persistent: they take tiles in
// turn, or (stream-K) equal stretches of all tiles' k, and send their sums of another block's tile to that block
// (stream_k.cuh).
//
// Sums: the tensor cores sum in f32. With factors of groups of k, each group has its own sum, which is multiplied by
// its factor and added in f32, in ascending k; but e8m0 factors are multiplied into codes of 6 and 4 bits where the
// product is a bf16 (dequant_fragment.cuh). If blocks or warpgroups split k, all sums of a row go to one block
// (distributed shared memory), which adds them in a fixed order: every launch gives the same bits.
#pragma once

#include "dequant/dequant_factors.cuh"
#include "dequant/dequant_fragment.cuh"
#include "dequant/dequant_sm90_factors.cuh"
#include "dequant/dequant_sm90_producer.cuh"
#include "dequant/dequant_sm90_tiling.cuh"
#include "gemm/gemm_epilogue.cuh"
#include "gemm/stream_k_parts.cuh"
#include "gemm/warp_mma.cuh"
#include "memory.cuh"
#include "numerics.cuh"
#include "platform.cuh"
#include "ptx/bulk.cuh"
#include "ptx/cluster.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/opaque.cuh"
#include "ptx/shared.cuh"
#include "ptx/tma.cuh"
#include "ptx/wgmma.cuh"
#include "ptx/wgmma16.cuh"

namespace ingot {

#if INGOT_ON_DEVICE
// One of the warpgroups that multiply.
template <CodeFormat W, DequantActivation X, HighPrecision Out, DequantSm90Config C, class Epi, CodeLayout L = C.layout,
          DequantFactors Kind = C.factors, DequantSm90Tiling T = C.tiling>
struct DequantConsumer {
  static constexpr u32 kTokenTiles = T.tokens / 8;
  static constexpr u32 kSums = T.tokens / 2;
  static constexpr u32 kGroup = dequant_group(Kind);
  // Are factors multiplied into the codes? Otherwise each group of k that shares a factor has its own sums.
  static constexpr bool kFolded = Kind.into_codes;
  static_assert(!kFolded || kTakesMxFactors<W, X>);
  static constexpr bool kGrouped = kGroup != 0;
  static constexpr u32 kRowTiles = dequant_rows(T) / 16;
  static constexpr u32 kShares = dequant_shares(T);
  static constexpr u32 kRowGroups = T.groups / T.k_warps;   // warpgroups with different rows
  static constexpr u32 kStep = dequant_step(T, Kind);       // k per step, by wgmma
  static constexpr u32 kPiece = T.depth / 32 / T.k_warps;   // this warp's tiles of 32 k in a stage, by mma
  static constexpr u32 kOwnRowTiles = kRowTiles / T.split;  // tiles of 16 rows that this block adds up and writes
  static constexpr u32 kPartXBytes = T.tokens * kDequantPart * 2;
  static constexpr u32 kBlockBytes = T.depth / kDequantDepth * kDequantTileBytes<W>;  // of 64 rows in a stage
  static constexpr u32 kWarps = 4 * T.groups;
  // Factors and bias are fetched before the sums are complete, if there are registers for it; with kShares > 1 also
  // only if a warp finishes the same rows for all tokens.
  static constexpr bool kEarly =
      dequant_sums(T, Kind) + (T.wgmma ? kStep / 2 : 8U) * T.waves + 8 * T.waves + (T.stream_k ? 72 : 56) <=
      dequant_share(T, Kind);
  static constexpr bool kEarlyShared = kEarly && kWarps % kOwnRowTiles == 0;
  using Sums = float[T.waves][kSums];
  using MxWords = u32[T.waves][2];  // four factors of 32 k, for each of the two rows that a lane has in each 64

  const DequantSm90Params& p;
  const DequantBlock<W, Kind, T>& block;
  u32 rows;   // index among the warpgroups with different rows
  u32 piece;  // index among the warpgroups with the same rows
  u32 warp;   // in the block
  u32 lane;
  u32 release;  // the empty barrier, here or in another block, at which this lane arrives
  u32 parts;    // the number of 64-k parts of K
  u32 own;      // in a stage: this lane's fragment of the first 32 k and of its first 64 rows
  StageRing<T.stages> ring{};
  u32 round = 0;  // tiles so far
  u32 largest = 0;

  INGOT_DEVICE DequantConsumer(const DequantSm90Params& params, const DequantBlock<W, Kind, T>& b, u32 warpgroup)
      : p(params),
        block(b),
        rows(warpgroup % kRowGroups),
        piece(warpgroup / kRowGroups),
        warp(threadIdx.x / 32),
        lane(threadIdx.x % 32),
        release(b.empty),
        parts(ceil_div(params.k, kDequantPart)),
        own(rows * T.waves * kBlockBytes + packed_fragment_offset<W>(warp % 4, lane)) {
    if constexpr (T.multicast > 1) release = ptx::mapa(b.empty, b.rank + lane % T.multicast * T.split);
  }

  // This warp is done with the stage: each block that sends to it may send the next data.
  INGOT_DEVICE void release_stage(u32 stage) const {
    if constexpr (T.multicast > 1) {
      if (lane < T.multicast) ptx::mbarrier_arrive_cluster(release + 8 * stage);
    } else {
      if (lane == 0) ptx::mbarrier_arrive(release + 8 * stage);
    }
  }

  // The same for a stage whose loads were only issued: without the fence, the copy engine would overtake them.
  INGOT_DEVICE void release_loaded_stage(u32 stage) const {
    ptx::fence_proxy_async();
    __syncwarp();
    release_stage(stage);
  }

  INGOT_DEVICE u32 parts_of(u32 stage) const { return min_of(dequant_parts(T), parts - stage * dequant_parts(T)); }

  INGOT_DEVICE static void clear(Sums& d) {
    INGOT_UNROLL
    for (u32 wave = 0; wave < T.waves; ++wave) {
      INGOT_UNROLL
      for (u32 i = 0; i < kSums; ++i) d[wave][i] = 0.0F;
    }
  }

  using Words = u32[Fragment<W>::kWords];

  // Loads a fragment from shared memory.
  INGOT_DEVICE static void load_words(u32 at, Words& words) {
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
  }

  // Loads factors that are multiplied into the codes, from the stage with which they came: that of k (a multiple of
  // 32), in the lowest bits, and the following ones up to a multiple of 128.
  INGOT_DEVICE void mx_words(u32 slot, u32 k, MxWords& of) const {
    constexpr u32 kPitch = dequant_factor_pitch(T);
    const u32 row = rows * T.waves * 64 + warp % 4 * 16 + lane / 4;
    const u32 at = block.factors + slot * dequant_factor_bytes(T, Kind) + row * kPitch + k / 128 * 4 % kPitch;
    INGOT_UNROLL
    for (u32 wave = 0; wave < T.waves; ++wave) {
      INGOT_UNROLL
      for (u32 half = 0; half < 2; ++half) {
        of[wave][half] = ptx::ld_shared4(at + (wave * 64 + half * 8) * kPitch) >> k / 32 % 4 * 8;
      }
    }
  }

  // Adds a group's sums, times its factor, to the totals. (`any`: the group has sums already; otherwise adds nothing.)
  INGOT_DEVICE static void promote(Sums& d, const Sums& of_group, DequantGroups<Kind, T.waves>& groups, u32 k,
                                   bool any = true) {
    groups.advance(k);
    INGOT_UNROLL
    for (u32 wave = 0; wave < T.waves; ++wave) {
      const float factors[2] = {any ? groups.factor(wave, 0, k) : 0.0F, any ? groups.factor(wave, 1, k) : 0.0F};
      INGOT_UNROLL
      for (u32 i = 0; i < kSums; ++i) {
        d[wave][i] = fused_multiply_add(of_group[wave][i], factors[i / 2 % 2], d[wave][i]);
      }
    }
  }

  // If a warp has the sums of only one tile, it keeps those of even and of odd steps of 16 k apart: the tensor cores
  // can take up a sum again only when they are done with it.
  static constexpr u32 kChains = T.waves * kTokenTiles == 1 ? 2 : 1;
  using Chains = float[kChains][T.waves][kSums];
  INGOT_DEVICE static void clear_chains(Chains& d) {
    INGOT_UNROLL
    for (u32 i = 0; i < kChains; ++i) clear(d[i]);
  }
  INGOT_DEVICE static void join(Chains& d) {
    INGOT_UNROLL
    for (u32 i = 0; kChains == 2 && i < kSums; ++i) d[0][0][i] = d[0][0][i] + d[kChains - 1][0][i];
  }

  // kBatch: tiles of 32 k that a warp loads before it multiplies. kGroupTiles: how many of them share a factor.
  static constexpr u32 kBatch = kPiece % 4 == 0 && T.tokens * T.waves <= 32 ? 4 : kPiece % 2 == 0 ? 2 : 1;
  static constexpr u32 kGroupTiles = kGrouped ? min_of(kGroup / 32, kBatch) : kBatch;

  // Multiplies 32 k of a decoded fragment by mma.sync. b: for each 8 tokens, operand B of the two steps.
  INGOT_DEVICE static void multiply_by_mma(Chains& d, u32 wave, const u32 (&a)[8], const u32 (&b)[kTokenTiles][4]) {
    INGOT_UNROLL
    for (u32 step = 0; step < 2; ++step) {
      INGOT_UNROLL
      for (u32 tile = 0; tile < kTokenTiles; ++tile) {
        float* const sums = &d[step % kChains][wave][4 * tile];
        float c[4] = {sums[0], sums[1], sums[2], sums[3]};
        multiply_add<X>(c, {a[4 * step], a[4 * step + 1], a[4 * step + 2], a[4 * step + 3]},
                        {b[tile][2 * step], b[tile][2 * step + 1]});
        INGOT_UNROLL
        for (u32 i = 0; i < 4; ++i) sums[i] = c[i];
      }
    }
  }

  // Decodes a fragment to 16 bits. mx holds, for each of its two rows, the factors of several groups of 32 k; the
  // fragment's is byte number `byte`.
  template <bool Large>
  INGOT_DEVICE static void decode(const Words& words, [[maybe_unused]] const u32 (&mx)[2], [[maybe_unused]] u32 byte,
                                  u32 (&a)[8]) {
    if constexpr (kFolded) {
      decode_mx_fragment<W, Large>(words, {mx[0] >> 8 * byte & 0xffU, mx[1] >> 8 * byte & 0xffU}, a);
    } else {
      decode_fragment<W, X, L>(words, a);
    }
  }

  template <u32 Tiles, bool Large>
  INGOT_DEVICE static void multiply_loaded(Chains& d, DequantGroups<Kind, T.waves>& groups,
                                           const Words (&words)[Tiles][T.waves], const u32 (&b)[Tiles][kTokenTiles][4],
                                           const MxWords& mx, u32 k) {
    [[maybe_unused]] Chains of_group;
    INGOT_UNROLL
    for (u32 i = 0; i < Tiles; ++i) {
      if constexpr (kGrouped) {
        if (i % kGroupTiles == 0) clear_chains(of_group);
      }
      INGOT_UNROLL
      for (u32 wave = 0; wave < T.waves; ++wave) {
        u32 a[8];
        decode<Large>(words[i][wave], mx[wave], i, a);
        multiply_by_mma(kGrouped ? of_group : d, wave, a, b[i]);
      }
      if constexpr (kGrouped) {
        if ((i + 1) % kGroupTiles == 0 || i + 1 == Tiles) {
          join(of_group);
          promote(d[0], of_group[0], groups, k + 32 * i);
        }
      }
    }
  }

  // Multiplies `Tiles` tiles of 32 k, from k on. codes: the address of this lane's first fragment. x: the address of
  // the 64 k of x that contain the first tile, in their second half if `odd`. Everything is loaded before anything is
  // multiplied, then the stage is released if `last`. mx: as for decode(), with the first tile's factors in the lowest
  // bits.
  template <u32 Tiles>
  INGOT_DEVICE void multiply_tiles(Chains& d, DequantGroups<Kind, T.waves>& groups, u32 codes, u32 x, u32 odd, u32 k,
                                   bool last, u32 slot, const MxWords& mx) const {
    Words words[Tiles][T.waves];
    u32 b[Tiles][kTokenTiles][4];
    const u32 row = lane % 8;
    const u32 at_x = x + row * 128 + (((odd * 4 + lane / 8) ^ row) * 16);
    INGOT_UNROLL
    for (u32 i = 0; i < Tiles; ++i) {
      INGOT_UNROLL
      for (u32 wave = 0; wave < T.waves; ++wave) {
        load_words(codes + wave * kBlockBytes + i * kDequantTileBytes<W>, words[i][wave]);
      }
      INGOT_UNROLL
      for (u32 tile = 0; tile < kTokenTiles; ++tile) {
        load_matrices((at_x ^ (i % 2 * 64)) + i / 2 * kPartXBytes + tile * 1024, b[i][tile]);
      }
    }
    if (last) release_loaded_stage(slot);
    if constexpr (kFolded) {
      // Factors of 2 and more take longer.
      u32 any = 0;
      INGOT_UNROLL
      for (u32 wave = 0; wave < T.waves; ++wave) any |= mx[wave][0] | mx[wave][1];
      if (__any_sync(0xffffffffU, (any & 0x80808080U) != 0)) {
        multiply_loaded<Tiles, true>(d, groups, words, b, mx, k);
        return;
      }
    }
    multiply_loaded<Tiles, false>(d, groups, words, b, mx, k);
  }

  INGOT_DEVICE void sum_by_mma(Sums& sums, const DequantSpan& span, u32 first_row) {
    Chains d;
    clear_chains(d);
    DequantGroups<Kind, T.waves> groups(p, first_row + lane / 4, lane);
    if constexpr (kGrouped) groups.begin(span.begin * T.depth + piece * kPiece * 32);
    const u32 base = block.stages;
    const u32 whole = parts / dequant_parts(T);  // the number of stages with all their k
    INGOT_UNROLL_BY(1)
    for (u32 at = span.begin; at < span.end; ++at) {
      ptx::mbarrier_wait(block.full + 8 * ring.stage, ring.phase);
      const u32 stage = base + ring.stage * dequant_stage_bytes<W>(T);
      const u32 codes = stage + own;
      const u32 x = stage + dequant_code_bytes<W>(T);
      const u32 k = at * T.depth;
      if (at < whole) {
        INGOT_UNROLL
        for (u32 batch = 0; batch < kPiece; batch += kBatch) {
          const u32 tile = piece * kPiece + batch;
          MxWords words{};
          if constexpr (kFolded) mx_words(ring.stage, k + 32 * tile, words);
          multiply_tiles<kBatch>(d, groups, codes + tile * kDequantTileBytes<W>, x + tile / 2 * kPartXBytes, tile % 2,
                                 k + 32 * tile, batch + kBatch >= kPiece, ring.stage, words);
        }
      } else {
        INGOT_UNROLL_BY(1)
        for (u32 tile = piece * kPiece; tile < min_of((piece + 1) * kPiece, 2 * parts_of(at)); ++tile) {
          MxWords words{};
          if constexpr (kFolded) mx_words(ring.stage, k + 32 * tile, words);
          multiply_tiles<1>(d, groups, codes + tile * kDequantTileBytes<W>, x + tile / 2 * kPartXBytes, tile % 2,
                            k + 32 * tile, false, 0, words);
        }
        release_loaded_stage(ring.stage);
      }
      ring.advance();
    }
    if constexpr (!kGrouped) join(d);
    INGOT_UNROLL
    for (u32 wave = 0; wave < T.waves; ++wave) {
      INGOT_UNROLL
      for (u32 i = 0; i < kSums; ++i) sums[wave][i] = d[0][wave][i];
    }
  }

  static constexpr u32 kStepWords = kStep / 4;
  using Fragments = u32[T.waves][kStepWords];

  // What kStep k of a stage are decoded from. It is loaded a step ahead, so that nothing waits for shared memory.
  struct Step {
    Words words[kStep / 32][T.waves];
    MxWords mx;
  };
  // Loads a step from stage `slot` of the ring, from its 32-k tile number `tile` on; k is the stage's first.
  INGOT_DEVICE void load_step(u32 slot, u32 tile, u32 k, Step& step) const {
    const u32 codes = block.stages + slot * dequant_stage_bytes<W>(T) + own;
    INGOT_UNROLL
    for (u32 i = 0; i < kStep / 32; ++i) {
      INGOT_UNROLL
      for (u32 wave = 0; wave < T.waves; ++wave) {
        load_words(codes + wave * kBlockBytes + (tile + i) * kDequantTileBytes<W>, step.words[i][wave]);
      }
    }
    if constexpr (kFolded) mx_words(slot, k + 32 * tile, step.mx);
  }
  INGOT_DEVICE static void decode_step(const Step& step, Fragments& a) {
    INGOT_UNROLL
    for (u32 i = 0; i < kStep / 32; ++i) {
      INGOT_UNROLL
      for (u32 wave = 0; wave < T.waves; ++wave) {
        u32 registers[8];
        decode<true>(step.words[i][wave], step.mx[wave], i, registers);
        INGOT_UNROLL
        for (u32 j = 0; j < 8; ++j) {
          // Decode here: past a branch, ptxas would no longer see that decoding may overlap the tensor cores' work.
          if constexpr (kGrouped) ptx::opaque(registers[j]);
          a[wave][8 * i + j] = registers[j];
        }
      }
    }
  }

  // Multiplies decoded fragments by wgmma. x: wgmma_address_field() of the first 16 k.
  INGOT_DEVICE static void multiply_by_wgmma(Sums& d, const Fragments& a, u32 x, u32 adds) {
    ptx::wgmma_fence();
    INGOT_UNROLL
    for (u32 wave = 0; wave < T.waves; ++wave) {
      INGOT_UNROLL
      for (u32 i = 0; i < kStep / 16; ++i) {
        ptx::wgmma_m64k16<X, T.tokens>(d[wave], a[wave][4 * i], a[wave][4 * i + 1], a[wave][4 * i + 2],
                                       a[wave][4 * i + 3], ptx::wgmma_descriptor_of(x + 2 * i), i == 0 ? adds : 1);
      }
    }
    ptx::wgmma_commit();
  }

  INGOT_DEVICE static void settle(Sums& d) {
    INGOT_UNROLL
    for (u32 wave = 0; wave < T.waves; ++wave) ptx::wgmma_settle(d[wave]);
  }

  // Waits for the sums of the group that ends before k, and adds them to the totals.
  INGOT_DEVICE static void end_group(Sums& d, Sums& of_group, DequantGroups<Kind, T.waves>& groups, u32 k, bool any) {
    ptx::wgmma_wait<0>();
    settle(of_group);
    promote(d, of_group, groups, max_of(k, 1U) - 1, any);
    settle(of_group);
  }

  // Ends the group that ends before step `step`, at k, if one does. adds: has the group any sums yet? Returns the same
  // of the group that the step belongs to.
  INGOT_DEVICE u32 end_group_before(Sums& d, Sums& of_group, DequantGroups<Kind, T.waves>& groups, u32 step, u32 k,
                                    u32 adds) {
    if constexpr (T.depth % kGroup == 0) {
      // There is no branch here: past one, ptxas would keep decoding and multiplying apart.
      if (step * kStep % kGroup == 0) end_group(d, of_group, groups, k, adds != 0);
      return step * kStep % kGroup == 0 ? 0 : 1;
    }
    if (k % kGroup != 0) return adds;
    end_group(d, of_group, groups, k, adds != 0);
    return 0;
  }

  // Adds a step's products to the group's sums, or to the result's where there are no groups.
  INGOT_DEVICE void multiply_step(Sums& d, Sums& of_group, const Fragments& weights, u32 x, u32 adds) {
    if constexpr (kGrouped) {
      multiply_by_wgmma(of_group, weights, x, adds);
    } else {
      multiply_by_wgmma(d, weights, x, 1);
    }
  }

  // Waits for the stage after the ring's.
  INGOT_DEVICE u32 wait_for_next_stage() const {
    StageRing<T.stages> next = ring;
    next.advance();
    ptx::mbarrier_wait(block.full + 8 * next.stage, next.phase);
    return next.stage;
  }

  // (Sums begin as zeros: ptxas makes copies of registers to which nothing is written before the tensor cores add to
  // them.)
  INGOT_DEVICE void sum_by_wgmma(Sums& d, const DequantSpan& span, u32 first_row) {
    clear(d);
    if (span.begin == span.end) return;
    DequantGroups<Kind, T.waves> groups(p, first_row + lane / 4, lane);
    Sums of_group;
    if constexpr (kGrouped) {
      clear(of_group);
      groups.begin(span.begin * T.depth);
    }
    u32 adds = 0;  // has this group any sums yet?
    u32 previous = T.stages;
    const u32 base = block.stages;
    const u32 whole = min_of(span.end, parts / dequant_parts(T));  // the end of the stages with all their k
    Fragments first;
    Fragments second;
    Step even{};
    Step odd{};
    if (span.begin < whole) {
      ptx::mbarrier_wait(block.full + 8 * ring.stage, ring.phase);
      load_step(ring.stage, 0, span.begin * T.depth, even);
    }
    INGOT_UNROLL_BY(1)
    for (u32 at = span.begin; at < whole; ++at) {
      const u32 stage = base + ring.stage * dequant_stage_bytes<W>(T);
      // Uniform in the warp, which only the shuffle tells ptxas: descriptors are then computed once for all lanes.
      const u32 x = __shfl_sync(0xffffffffU, ptx::wgmma_address_field(stage + dequant_code_bytes<W>(T)), 0);
      // Steps come in pairs, each with its own registers.
      INGOT_UNROLL
      for (u32 step = 0; step < T.depth / kStep; step += 2) {
        const u32 k = at * T.depth + step * kStep;
        load_step(ring.stage, (step + 1) * (kStep / 32), at * T.depth, odd);
        decode_step(even, first);
        if constexpr (kGrouped) {
          adds = end_group_before(d, of_group, groups, step, k, adds);
        }
        multiply_step(d, of_group, first, x + x_offset(step), adds);
        adds = 1;
        ptx::wgmma_wait<1>();
        if (step == 0 && previous < T.stages) release_stage(previous);
        if (step + 2 < T.depth / kStep) {
          load_step(ring.stage, (step + 2) * (kStep / 32), at * T.depth, even);
        } else if (at + 1 < whole) {
          load_step(wait_for_next_stage(), 0, (at + 1) * T.depth, even);
        }
        decode_step(odd, second);
        constexpr bool kNewGroup = kGrouped && kGroup <= kStep;
        if constexpr (kNewGroup) end_group(d, of_group, groups, k + kStep, true);
        multiply_step(d, of_group, second, x + x_offset(step + 1), kNewGroup ? 0 : 1);
        ptx::wgmma_wait<1>();
      }
      previous = ring.stage;
      ring.advance();
    }
    if constexpr (kGrouped) {
      end_group(d, of_group, groups, whole * T.depth, adds != 0);
    } else {
      ptx::wgmma_wait<0>();
      settle(d);
    }
    if (previous < T.stages) release_stage(previous);
    if constexpr (dequant_parts(T) > 1) {
      if (whole < span.end) {
        sum_short_stage(d, groups, whole);
        ring.advance();
      }
    }
  }

  // The distance from the first step to `step`, as an offset in x's descriptor.
  INGOT_DEVICE static constexpr u32 x_offset(u32 step) {
    return step * kStep / kDequantPart * (kPartXBytes / 16) + step * kStep % kDequantPart / 8;
  }

  // Multiplies the last stage, if it has less k than others: one step after the other.
  INGOT_DEVICE void sum_short_stage(Sums& d, DequantGroups<Kind, T.waves>& groups, u32 at) const {
    ptx::mbarrier_wait(block.full + 8 * ring.stage, ring.phase);
    const u32 stage = block.stages + ring.stage * dequant_stage_bytes<W>(T);
    const u32 x = __shfl_sync(0xffffffffU, ptx::wgmma_address_field(stage + dequant_code_bytes<W>(T)), 0);
    const u32 steps = parts_of(at) * (kDequantPart / kStep);
    INGOT_UNROLL_BY(1)
    for (u32 step = 0; step < steps; ++step) {
      Fragments a;
      Step now{};
      load_step(ring.stage, step * (kStep / 32), at * T.depth, now);
      decode_step(now, a);
      if constexpr (kGrouped) {
        Sums of_group;
        clear(of_group);
        multiply_by_wgmma(of_group, a, x + x_offset(step), 1);
        end_group(d, of_group, groups, at * T.depth + (step + 1) * kStep, true);
      } else {
        multiply_by_wgmma(d, a, x + x_offset(step), 1);
        ptx::wgmma_wait<0>();
        settle(d);
      }
    }
    release_stage(ring.stage);
  }

  // Factors and bias of four neighbouring rows: a lane writes four outputs at a time.
  struct RowValues {
    float factors[4];
    float bias[4];
  };
  INGOT_DEVICE RowValues row_values(u32 row) const {
    const u64 codes = packed_code_bytes(p.n, p.k, kCodeBits<W>);
    const float* const faults = reinterpret_cast<const float*>(p.weights + codes);
    RowValues values{};
    INGOT_UNROLL
    for (u32 i = 0; i < 4; ++i) {
      const u32 n = min_of(row + i, p.n - 1);
      values.factors[i] = row_factor<Kind>(p.factors, n) * faults[n];
      values.bias[i] = p.bias == nullptr ? 0.0F : to_float(static_cast<const X*>(p.bias)[n]);
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

  // Writes a token's sums of four rows to the output.
  INGOT_DEVICE void write(const float (&sums)[4], const RowValues& values, const Target& to, u32 m, u32 n) {
    if (m >= p.m || n >= p.n) return;
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
    return row + ((rows * T.waves + wave) * 4 + warp % 4) * 16 + lane % 4 * 4;
  }

  // Writes a tile whose sums over all k are complete. They pass through shared memory, some tokens at a time: the
  // tensor cores leave two tokens of a row in a lane, whereas the output has the rows of a token side by side.
  INGOT_DEVICE void write_own(const Sums& d, u32 row, u32 token, const RowValues (&values)[T.waves]) {
    constexpr u32 kAtOnce = min_of(kDequantScratchTokens / 8, kTokenTiles);
    const Target to = target();
    const u32 scratch = block.scratch + warp * kDequantScratch;
    const u32 in = scratch + (lane % 4 * 2 * kDequantScratchPitch + lane / 4) * 4;
    const u32 out = scratch + (lane / 4 * kDequantScratchPitch + lane % 4 * 4) * 4;
    INGOT_UNROLL
    for (u32 wave = 0; wave < T.waves; ++wave) {
      const u32 n = own_row(row, wave);
      if (n - lane % 4 * 4 >= p.n) continue;
      const RowValues of = kEarly ? values[wave] : row_values(n);
      INGOT_UNROLL
      for (u32 first = 0; first < kTokenTiles; first += kAtOnce) {
        if (token + first * 8 >= p.m) break;
        __syncwarp();
        INGOT_UNROLL
        for (u32 tile = 0; tile < kAtOnce; ++tile) {
          INGOT_UNROLL
          for (u32 i = 0; i < 4; ++i) {
            ptx::st_shared_float(in + ((tile * 8 + i % 2) * kDequantScratchPitch + i / 2 * 8) * 4,
                                 d[wave][4 * (first + tile) + i]);
          }
        }
        __syncwarp();
        INGOT_UNROLL
        for (u32 tile = 0; tile < kAtOnce; ++tile) {
          const U32x4 four = ptx::ld_shared16(out + tile * 8 * kDequantScratchPitch * 4);
          const float sums[4] = {float_from_bits(four.x), float_from_bits(four.y), float_from_bits(four.z),
                                 float_from_bits(four.w)};
          write(sums, of, to, token + (first + tile) * 8 + lane / 4, n);
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
  INGOT_DEVICE u32 token_tiles(u32 token) const { return min_of(kTokenTiles, ceil_div(p.m - token, 8U)); }
  INGOT_DEVICE u32 shared_row(u32 row, u32 row_tile) const { return row + (block.rank * kOwnRowTiles + row_tile) * 16; }

  // Sends the sums of the block's tile number `index`.
  INGOT_DEVICE void send(const Sums& d, u32 index, u32 token) const {
    const u32 tiles = token_tiles(token);
    const u32 inbox = index % dequant_inboxes(T);
    const u32 arrived = block.arrived + 8 * inbox;
    if constexpr (T.split > 1) {
      if (threadIdx.x == 0) ptx::mbarrier_arrive_expect_tx(arrived, kShares * kOwnRowTiles * tiles * 512);
    }
    INGOT_UNROLL
    for (u32 wave = 0; wave < T.waves; ++wave) {
      const u32 row_tile = (rows * T.waves + wave) * 4 + warp % 4;
      u32 to = inbox_address(inbox, block.rank * T.k_warps + piece, row_tile % kOwnRowTiles, 0) + lane * 16;
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
      if (lane == 0) ptx::mbarrier_arrive(arrived);
    }
  }

  // Adds up and writes this warp's part of the block's own rows, of the block's tile number `index`.
  INGOT_DEVICE void finish(u32 index, u32 row, u32 token, const RowValues& early) {
    const u32 tiles = token_tiles(token);
    const u32 inbox = index % dequant_inboxes(T);
    const Target to = target();
    // This lane's token, and its first row.
    const u32 m = lane % 8;
    const u32 r = lane / 8 * 4;
    ptx::mbarrier_wait(block.arrived + 8 * inbox, index / dequant_inboxes(T) % 2);
    INGOT_UNROLL_BY(1)
    for (u32 unit = warp; unit < kOwnRowTiles * tiles; unit += kWarps) {
      const u32 row_tile = unit % kOwnRowTiles;
      const u32 tile = unit / kOwnRowTiles;
      const u32 first = shared_row(row, row_tile);
      if (first >= p.n) continue;
      const RowValues values = kEarlyShared ? early : row_values(first + r);
      float sums[4] = {0.0F, 0.0F, 0.0F, 0.0F};
      INGOT_UNROLL
      for (u32 share = 0; share < kShares; ++share) {
        const u32 from = inbox_address(inbox, share, row_tile, tile) + m / 2 * 16 + m % 2 * 4 + r / 8 * 8 + r % 8 * 64;
        INGOT_UNROLL
        for (u32 i = 0; i < 4; ++i) sums[i] = sums[i] + float_from_bits(ptx::ld_shared4(from + i * 64));
      }
      write(sums, values, to, token + tile * 8 + m, first + r);
    }
  }

  // This warp has read the inbox: each block that sends to it may send again.
  INGOT_DEVICE void drain() const {
    // (PTX does not say whether st.async's writes are ordinary ones or the copy engine's.)
    if constexpr (T.split > 1) ptx::fence_proxy_async();
    __syncwarp();
    if constexpr (T.split > 1) {
      if (lane < T.split) ptx::mbarrier_arrive_cluster(ptx::mapa(block.drained, block.side * T.split + lane));
    } else {
      if (lane == 0) ptx::mbarrier_arrive(block.drained);
    }
  }

  // Computes this warp's sums over the k of `span`, for the tile whose first row is `row`.
  INGOT_DEVICE void sum(Sums& d, const DequantSpan& span, u32 row) {
    const u32 first_row = row + rows * T.waves * 64 + warp % 4 * 16;
    if constexpr (T.wgmma) {
      sum_by_wgmma(d, span, first_row);
    } else {
      sum_by_mma(d, span, first_row);
    }
  }

  // Computes whole tiles, or this block's share of each tile's k.
  INGOT_DEVICE void run_whole() {
    u32 late_row = 0;
    u32 late_token = 0;
    RowValues late{};
    INGOT_UNROLL_BY(1)
    for (DequantWalk<T> walk(p, block); walk.more(); walk.advance()) {
      const u32 row = walk.row();
      const u32 token = walk.token();
      Sums d;
      [[maybe_unused]] RowValues values[T.waves];
      if constexpr (kShares == 1 && kEarly) {
        INGOT_UNROLL
        for (u32 wave = 0; wave < T.waves; ++wave) values[wave] = row_values(own_row(row, wave));
      }
      RowValues early{};
      if constexpr (kShares > 1 && kEarlyShared)
        early = row_values(shared_row(row, warp % kOwnRowTiles) + lane / 8 * 4);
      sum(d, walk.span(), row);
      if constexpr (kShares == 1) {
        write_own(d, row, token, values);
      } else if constexpr (kLate) {
        // The inbox of this tile was last used by the tile before the previous one.
        if (round > 0) finish(round - 1, late_row, late_token, late);
        if (round > 1) ptx::mbarrier_wait(block.drained, round % 2);
        if (round > 0 && walk.more_after()) drain();
        send(d, round, token);
        late_row = row;
        late_token = token;
        late = early;
      } else {
        if (round > 0) ptx::mbarrier_wait(block.drained, (round - 1) % 2);
        send(d, round, token);
        finish(round, row, token, early);
        if (walk.more_after()) drain();
      }
      ++round;
    }
    if constexpr (kShares > 1 && kLate) {
      if (round > 0) finish(round - 1, late_row, late_token, late);
    }
  }

  // Stream-K (stream_k.cuh): this block sends its sums of another block's tile to that block, and adds to its own tiles
  // what other blocks have summed.
  INGOT_DEVICE void run_cut() {
    using Part = StreamKPart<kWarps, dequant_sum_bytes(T)>;
    constexpr u32 kVectors = T.waves * kSums <= 32 ? kSums / 4 : 4;  // registers are scarce
    INGOT_UNROLL_BY(1)
    for (DequantWalk<T> walk(p, block); walk.more(); walk.advance()) {
      const StreamKStretch& stretch = walk.stretch;
      const u32 row = walk.row();
      Sums d;
      [[maybe_unused]] RowValues values[T.waves];
      if constexpr (kEarly) {
        INGOT_UNROLL
        for (u32 wave = 0; wave < T.waves; ++wave) values[wave] = row_values(own_row(row, wave));
      }
      sum(d, walk.span(), row);
      if (!stretch.owns()) {
        Part(p.cut, stretch.index(), warp, lane).write(d, lane);
        continue;
      }
      INGOT_UNROLL_BY(1)
      for (u32 other = stretch.index() + 1; stretch.reaches(other); ++other) {
        Part(p.cut, other, warp, lane).template add_to<kVectors>(d, lane);
      }
      write_own(d, row, walk.token(), values);
    }
  }

  INGOT_DEVICE void run() {
    if constexpr (T.stream_k) {
      run_cut();
    } else {
      run_whole();
    }
    if constexpr (Epi::kAmax) raise_epilogue_amax(p.epilogue, largest);
  }
};
#endif

// Requires M, N, K > 0. The number of blocks is a multiple of dequant_cluster(T); they are launched as clusters of that
// size.
template <CodeFormat W, DequantActivation X, HighPrecision Out, DequantSm90Config C, class Epi = PlainEpilogue>
INGOT_KERNEL void INGOT_LAUNCH_BOUNDS((dequant_threads<C>()), (dequant_blocks_per_sm<C>()))
    dequant_sm90([[maybe_unused]] const __grid_constant__ DequantSm90Params p) {
  constexpr DequantFactors Kind = C.factors;
  constexpr DequantSm90Tiling T = C.tiling;
  static_assert(has_dequant_factors(Kind), "dequant_sm90 has no such factors");
  static_assert(dequant_sm90_exists<W>(T, Kind));
#if INGOT_ON_DEVICE
  constexpr u32 kProducer = 128 * T.groups;
  const auto block = DequantBlock<W, Kind, T>::make();
  const u32 warp = __shfl_sync(0xffffffffU, threadIdx.x / 32, 0);
  if (threadIdx.x == kProducer) block.make_barriers();
  if (threadIdx.x == kProducer + 32) ptx::prefetch_tensormap(&p.x);
  __syncwarp();
  block.begin();
  // All of the above may overlap the end of the previous kernel; so may the copies of a constant weight.
  if (warp >= 4 * T.groups) {
    if constexpr (dequant_moves_registers(T, Kind)) ptx::setmaxnreg_dec<dequant_registers(T, Kind).copies>();
    if (warp != 4 * T.groups || p.constant_weight == 0) {
      start_in_turn();
    }
    const u32 lane = threadIdx.x % 32;
    if (warp == 4 * T.groups && (lane == 0 || DequantBlock<W, Kind, T>::kFactors)) {
      DequantProducer<W, Kind, T>(p, block).run_codes(lane);
    }
    if (threadIdx.x == kProducer + 32) DequantProducer<W, Kind, T>(p, block).run_x();
  } else {
    if constexpr (dequant_moves_registers(T, Kind)) ptx::setmaxnreg_inc<dequant_registers(T, Kind).multiplies>();
    start_in_turn();
    DequantConsumer<W, X, Out, C, Epi>(p, block, warp / 4).run();
  }
  block.end();
#endif
}

}  // namespace ingot
