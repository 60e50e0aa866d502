// The mainloop of dequant_sm90: a warp reads fragments of its rows' codes, decodes them, multiplies by mma.sync or by
// wgmma, and applies the scale_inv of groups.
#pragma once

#include "dequant/dequant_factors.cuh"
#include "dequant/dequant_fragment.cuh"
#include "dequant/dequant_sm90_factors.cuh"
#include "dequant/dequant_sm90_position.cuh"
#include "dequant/dequant_sm90_producer.cuh"
#include "dequant/dequant_sm90_tiling.cuh"
#include "gemm/stage_ring.cuh"
#include "gemm/warp_mma.cuh"
#include "platform.cuh"
#include "ptx/cluster.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/opaque.cuh"
#include "ptx/shared.cuh"
#include "ptx/tma.cuh"
#include "ptx/wgmma.cuh"
#include "ptx/wgmma16.cuh"

namespace ingot {

#if INGOT_ON_DEVICE
template <CodeFormat W, DequantActivation X, DequantSm90Config C, CodeLayout L = C.layout,
          DequantFactors Kind = C.factors, DequantSm90Tiling T = C.tiling>
struct DequantSums {
  static constexpr u32 kTokenTiles = T.tokens / 8;
  static constexpr u32 kSums = T.tokens / 2;
  static constexpr u32 kGroup = dequant_group(Kind);
  // Are scale_inv multiplied into the codes? Otherwise each group of k that shares one has its own sums.
  static constexpr bool kFolded = Kind.into_codes;
  static_assert(!kFolded || kTakesMxFactors<W, X>);
  static constexpr bool kGrouped = kGroup != 0;
  static constexpr u32 kStep = dequant_step(T, Kind);      // k per step, by wgmma
  static constexpr u32 kPiece = T.depth / 32 / T.k_warps;  // this warp's tiles of 32 k in a stage, by mma
  static constexpr u32 kPartXBytes = T.tokens * kDequantPart * 2;
  static constexpr u32 kBlockBytes = T.depth / kDequantDepth * kDequantTileBytes<W>;  // of 64 rows in a stage
  using TileSums = float[T.waves][kSums];
  using MxWords = u32[T.waves][2];  // four scale_inv of 32 k, for each of the two rows that a lane has in each 64

  const DequantSm90Params& p;
  const DequantBlock<W, Kind, T>& block;
  DequantPosition<T> position;
  u32 release;  // the empty barrier, here or in another block, at which this lane arrives
  u32 parts;    // the number of 64-k parts of K
  u32 own;      // in a stage: this lane's fragment of the first 32 k and of its first 64 rows
  StageRing<T.stages> ring{};

  INGOT_DEVICE DequantSums(const DequantSm90Params& params, const DequantBlock<W, Kind, T>& b,
                           const DequantPosition<T>& at)
      : p(params),
        block(b),
        position(at),
        release(b.empty),
        parts(ceil_div(params.k, kDequantPart)),
        own(at.rows * T.waves * kBlockBytes + packed_fragment_offset<W>(at.warp % 4, at.lane)) {
    if constexpr (T.multicast > 1) release = ptx::mapa(b.empty, b.rank + at.lane % T.multicast * T.split);
  }

  // This warp is done with the stage: each block that sends to it may send the next data.
  INGOT_DEVICE void release_stage(u32 stage) const {
    if constexpr (T.multicast > 1) {
      if (position.lane < T.multicast) ptx::mbarrier_arrive_cluster(release + 8 * stage);
    } else {
      if (position.lane == 0) ptx::mbarrier_arrive(release + 8 * stage);
    }
  }

  // The same for a stage whose loads were only issued: without the fence, the copy engine would overtake them.
  INGOT_DEVICE void release_loaded_stage(u32 stage) const {
    ptx::fence_proxy_async();
    __syncwarp();
    release_stage(stage);
  }

  INGOT_DEVICE u32 parts_of(u32 stage) const { return min_of(dequant_parts(T), parts - stage * dequant_parts(T)); }

  template <u32 Sums>
  INGOT_DEVICE static void clear(float (&d)[T.waves][Sums]) {
    INGOT_UNROLL
    for (u32 wave = 0; wave < T.waves; ++wave) {
      INGOT_UNROLL
      for (u32 i = 0; i < Sums; ++i) d[wave][i] = 0.0F;
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

  // Loads scale_inv that are multiplied into the codes, from the stage with which they came: that of k (a multiple of
  // 32), in the lowest bits, and the following ones up to a multiple of 128.
  INGOT_DEVICE void mx_words(u32 slot, u32 k, MxWords& of) const {
    constexpr u32 kPitch = dequant_factor_pitch(T);
    const u32 row = position.rows * T.waves * 64 + position.warp % 4 * 16 + position.lane / 4;
    const u32 at = block.factors + slot * dequant_factor_bytes(T, Kind) + row * kPitch + k / 128 * 4 % kPitch;
    INGOT_UNROLL
    for (u32 wave = 0; wave < T.waves; ++wave) {
      INGOT_UNROLL
      for (u32 half = 0; half < 2; ++half) {
        of[wave][half] = ptx::ld_shared4(at + (wave * 64 + half * 8) * kPitch) >> k / 32 % 4 * 8;
      }
    }
  }

  // Adds a group's sums, times its scale_inv, to the totals. (`any`: the group has sums already; otherwise adds
  // nothing.)
  template <u32 Sums>
  INGOT_DEVICE static void promote(float (&d)[T.waves][Sums], const float (&of_group)[T.waves][Sums],
                                   DequantGroups<Kind, T>& groups, u32 k, bool any = true) {
    groups.advance(k);
    INGOT_UNROLL
    for (u32 wave = 0; wave < T.waves; ++wave) {
      const float factors[2] = {any ? groups.factor(wave, 0, k) : 0.0F, any ? groups.factor(wave, 1, k) : 0.0F};
      INGOT_UNROLL
      for (u32 i = 0; i < Sums; ++i) {
        d[wave][i] = fused_multiply_add(of_group[wave][i], factors[i / 2 % 2], d[wave][i]);
      }
    }
  }

  // If a warp has the sums of only one tile, it keeps those of even and of odd steps of 16 k apart: the tensor cores
  // can take up a sum again only when they are done with it. (Not where larger tiles have few tokens: a row's bits do
  // not depend on how many its expert has.)
  static constexpr u32 kChains = T.waves * kTokenTiles == 1 ? 2 : 1;
  // Sums of `Eights` times 8 tokens by mma.sync.
  template <u32 Eights>
  using Chains = float[kChains][T.waves][4 * Eights];
  template <u32 Eights>
  INGOT_DEVICE static void clear_chains(Chains<Eights>& d) {
    INGOT_UNROLL
    for (u32 i = 0; i < kChains; ++i) clear(d[i]);
  }
  template <u32 Eights>
  INGOT_DEVICE static void join(Chains<Eights>& d) {
    INGOT_UNROLL
    for (u32 i = 0; kChains == 2 && i < 4 * Eights; ++i) d[0][0][i] = d[0][0][i] + d[kChains - 1][0][i];
  }

  // Tiles of 32 k that a warp loads before it multiplies so many eights of tokens. (Where groups have scale_inv, their
  // sums' order depends on it, so it is the same for all.)
  INGOT_HOST_DEVICE static constexpr u32 batch_of(u32 eights) {
    const u32 tokens = 8 * (kGrouped ? kTokenTiles : eights);
    const u32 most = dequant_fits_tokens(T) && !kGrouped ? 16 : 32;  // with more, a batch of 4 may spill
    if (kPiece % 4 == 0 && tokens * T.waves <= most) return 4;
    return kPiece % 2 == 0 ? 2 : 1;
  }

  // Multiplies 32 k of a decoded fragment by mma.sync. b: for each 8 tokens, operand B of the two steps.
  template <u32 Eights>
  INGOT_DEVICE static void multiply_by_mma(Chains<Eights>& d, u32 wave, const u32 (&a)[8], const u32 (&b)[Eights][4]) {
    INGOT_UNROLL
    for (u32 step = 0; step < 2; ++step) {
      INGOT_UNROLL
      for (u32 tile = 0; tile < Eights; ++tile) {
        float* const sums = &d[step % kChains][wave][4 * tile];
        float c[4] = {sums[0], sums[1], sums[2], sums[3]};
        multiply_add<X>(c, {a[4 * step], a[4 * step + 1], a[4 * step + 2], a[4 * step + 3]},
                        {b[tile][2 * step], b[tile][2 * step + 1]});
        INGOT_UNROLL
        for (u32 i = 0; i < 4; ++i) sums[i] = c[i];
      }
    }
  }

  // Decodes a fragment to 16 bits. mx holds, for each of its two rows, the scale_inv of several groups of 32 k; the
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

  template <u32 Eights, u32 Tiles, bool Large>
  INGOT_DEVICE static void multiply_loaded(Chains<Eights>& d, DequantGroups<Kind, T>& groups,
                                           const Words (&words)[Tiles][T.waves], const u32 (&b)[Tiles][Eights][4],
                                           const MxWords& mx, u32 k) {
    constexpr u32 kBatch = batch_of(Eights);
    constexpr u32 kGroupTiles = kGrouped ? min_of(kGroup / 32, kBatch) : kBatch;  // that share a scale_inv
    [[maybe_unused]] Chains<Eights> of_group;
    INGOT_UNROLL
    for (u32 i = 0; i < Tiles; ++i) {
      if constexpr (kGrouped) {
        if (i % kGroupTiles == 0) clear_chains<Eights>(of_group);
      }
      INGOT_UNROLL
      for (u32 wave = 0; wave < T.waves; ++wave) {
        u32 a[8];
        decode<Large>(words[i][wave], mx[wave], i, a);
        multiply_by_mma<Eights>(kGrouped ? of_group : d, wave, a, b[i]);
      }
      if constexpr (kGrouped) {
        if ((i + 1) % kGroupTiles == 0 || i + 1 == Tiles) {
          join<Eights>(of_group);
          // A tile by itself may be after the last k, within the last group, whose scale_inv may be Inf.
          promote(d[0], of_group[0], groups, k + 32 * i, Tiles > 1 || k < groups.p.k);
        }
      }
    }
  }

  // Multiplies `Tiles` tiles of 32 k, from k on. codes: the address of this lane's first fragment. x: the address of
  // the 64 k of x that contain the first tile, in their second half if `odd`. Everything is loaded before anything is
  // multiplied, then the stage is released if `last`. mx: as for decode(), with the first tile's scale_inv in the
  // lowest bits.
  template <u32 Eights, u32 Tiles>
  INGOT_DEVICE void multiply_tiles(Chains<Eights>& d, DequantGroups<Kind, T>& groups, u32 codes, u32 x, u32 odd, u32 k,
                                   bool last, u32 slot, const MxWords& mx) const {
    Words words[Tiles][T.waves];
    u32 b[Tiles][Eights][4];
    const u32 row = position.lane % 8;
    const u32 at_x = x + row * 128 + (((odd * 4 + position.lane / 8) ^ row) * 16);
    INGOT_UNROLL
    for (u32 i = 0; i < Tiles; ++i) {
      INGOT_UNROLL
      for (u32 wave = 0; wave < T.waves; ++wave) {
        load_words(codes + wave * kBlockBytes + i * kDequantTileBytes<W>, words[i][wave]);
      }
      INGOT_UNROLL
      for (u32 tile = 0; tile < Eights; ++tile) {
        load_matrices((at_x ^ (i % 2 * 64)) + i / 2 * kPartXBytes + tile * 1024, b[i][tile]);
      }
    }
    if (last) release_loaded_stage(slot);
    if constexpr (kFolded) {
      // scale_inv of 2 and more take longer.
      u32 any = 0;
      INGOT_UNROLL
      for (u32 wave = 0; wave < T.waves; ++wave) any |= mx[wave][0] | mx[wave][1];
      if (__any_sync(0xffffffffU, (any & 0x80808080U) != 0)) {
        multiply_loaded<Eights, Tiles, true>(d, groups, words, b, mx, k);
        return;
      }
    }
    multiply_loaded<Eights, Tiles, false>(d, groups, words, b, mx, k);
  }

  template <u32 Eights>
  INGOT_DEVICE void sum_by_mma(TileSums& sums, const DequantSpan& span, u32 first_row, const DequantExpert& expert) {
    constexpr u32 kBatch = batch_of(Eights);
    Chains<Eights> d;
    clear_chains<Eights>(d);
    DequantGroups<Kind, T> groups(p, expert, first_row + position.lane / 4, position.lane);
    if constexpr (kGrouped) groups.begin(span.begin * T.depth + position.piece * kPiece * 32);
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
          const u32 tile = position.piece * kPiece + batch;
          MxWords words{};
          if constexpr (kFolded) mx_words(ring.stage, k + 32 * tile, words);
          multiply_tiles<Eights, kBatch>(d, groups, codes + tile * kDequantTileBytes<W>, x + tile / 2 * kPartXBytes,
                                         tile % 2, k + 32 * tile, batch + kBatch >= kPiece, ring.stage, words);
        }
      } else {
        INGOT_UNROLL_BY(1)
        for (u32 tile = position.piece * kPiece; tile < min_of((position.piece + 1) * kPiece, 2 * parts_of(at));
             ++tile) {
          MxWords words{};
          if constexpr (kFolded) mx_words(ring.stage, k + 32 * tile, words);
          multiply_tiles<Eights, 1>(d, groups, codes + tile * kDequantTileBytes<W>, x + tile / 2 * kPartXBytes,
                                    tile % 2, k + 32 * tile, false, 0, words);
        }
        release_loaded_stage(ring.stage);
      }
      ring.advance();
    }
    if constexpr (!kGrouped) join<Eights>(d);
    INGOT_UNROLL
    for (u32 wave = 0; wave < T.waves; ++wave) {
      INGOT_UNROLL
      for (u32 i = 0; i < kSums; ++i) sums[wave][i] = i < 4 * Eights ? d[0][wave][i % (4 * Eights)] : 0.0F;
    }
  }
  // The same for as many eights of tokens as the tile has.
  template <u32 Eights>
  INGOT_DEVICE void sum_eights(TileSums& sums, const DequantSpan& span, u32 first_row, const DequantExpert& expert,
                               u32 eights) {
    if constexpr (Eights > 1) {
      if (eights < Eights) {
        sum_eights<Eights - 1>(sums, span, first_row, expert, eights);
        return;
      }
    }
    sum_by_mma<Eights>(sums, span, first_row, expert);
  }

  static constexpr u32 kStepWords = kStep / 4;
  using Fragments = u32[T.waves][kStepWords];

  static constexpr u32 kStepTiles = kStep / 32;
  // The tiles of 32 k whose scale_inv are loaded at once.
  static constexpr u32 kHeldTiles = min_of(T.depth / 32, 4U);

  // The operands of kStep k of a stage. They are loaded a step ahead, so that nothing waits for shared memory.
  struct Step {
    Words words[kStepTiles][T.waves];
    MxWords mx;
  };
  // The scale_inv of the steps that are decoded. large: is one of them 2 or more?
  struct Held {
    MxWords mx;
    bool large;
  };
  // Loads a step from stage `slot` of the ring, from its 32-k tile number `tile` on; k is the stage's first. With
  // scale_inv where they begin to be those of kHeldTiles, or if the step is `alone`.
  INGOT_DEVICE void load_step(u32 slot, u32 tile, u32 k, Step& step, bool alone = false) const {
    const u32 codes = block.stages + slot * dequant_stage_bytes<W>(T) + own;
    INGOT_UNROLL
    for (u32 i = 0; i < kStepTiles; ++i) {
      INGOT_UNROLL
      for (u32 wave = 0; wave < T.waves; ++wave) {
        load_words(codes + wave * kBlockBytes + (tile + i) * kDequantTileBytes<W>, step.words[i][wave]);
      }
    }
    if constexpr (kFolded) {
      if (alone || tile % kHeldTiles == 0) mx_words(slot, k + 32 * tile, step.mx);
    }
  }
  INGOT_DEVICE static void hold(const Step& step, Held& held) {
    u32 any = 0;
    INGOT_UNROLL
    for (u32 wave = 0; wave < T.waves; ++wave) {
      INGOT_UNROLL
      for (u32 half = 0; half < 2; ++half) {
        held.mx[wave][half] = step.mx[wave][half];
        any |= step.mx[wave][half];
      }
    }
    held.large = __any_sync(0xffffffffU, (any & 0x80808080U) != 0) != 0;
  }

  // Decodes a step. Its first tile's scale_inv are byte number `byte` of those held. Those of 2 and more take longer.
  INGOT_DEVICE static void decode_step(const Step& step, const Held& held, u32 byte, Fragments& a) {
    if constexpr (kFolded) {
      if (held.large) {
        decode_tiles<true>(step, held.mx, byte, a);
        return;
      }
    }
    decode_tiles<false>(step, held.mx, byte, a);
  }
  template <bool Large>
  INGOT_DEVICE static void decode_tiles(const Step& step, const MxWords& mx, u32 byte, Fragments& a) {
    INGOT_UNROLL
    for (u32 i = 0; i < kStepTiles; ++i) {
      INGOT_UNROLL
      for (u32 wave = 0; wave < T.waves; ++wave) {
        u32 registers[8];
        decode<Large>(step.words[i][wave], mx[wave], byte + i, registers);
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
  INGOT_DEVICE static void multiply_by_wgmma(TileSums& d, const Fragments& a, u32 x, u32 adds) {
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

  INGOT_DEVICE static void settle(TileSums& d) {
    INGOT_UNROLL
    for (u32 wave = 0; wave < T.waves; ++wave) ptx::wgmma_settle(d[wave]);
  }

  // Waits for the sums of the group that ends before k, and adds them to the totals.
  INGOT_DEVICE static void end_group(TileSums& d, TileSums& of_group, DequantGroups<Kind, T>& groups, u32 k, bool any) {
    ptx::wgmma_wait<0>();
    settle(of_group);
    promote(d, of_group, groups, max_of(k, 1U) - 1, any);
    settle(of_group);
  }

  // Ends the group that ends before step `step`, at k, if one does. adds: has the group any sums yet? Returns the same
  // of the group that the step belongs to.
  INGOT_DEVICE u32 end_group_before(TileSums& d, TileSums& of_group, DequantGroups<Kind, T>& groups, u32 step, u32 k,
                                    u32 adds) {
    if constexpr (T.depth % kGroup == 0) {
      // There is no branch here: past one, ptxas would not interleave decoding and multiplying.
      if (step * kStep % kGroup == 0) end_group(d, of_group, groups, k, adds != 0);
      return step * kStep % kGroup == 0 ? 0 : 1;
    }
    if (k % kGroup != 0) return adds;
    end_group(d, of_group, groups, k, adds != 0);
    return 0;
  }

  // Adds a step's products to the group's sums, or to the result's where there are no groups.
  INGOT_DEVICE void multiply_step(TileSums& d, TileSums& of_group, const Fragments& weights, u32 x, u32 adds) {
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
  INGOT_DEVICE void sum_by_wgmma(TileSums& d, const DequantSpan& span, u32 first_row, const DequantExpert& expert) {
    clear(d);
    if (span.begin == span.end) return;
    DequantGroups<Kind, T> groups(p, expert, first_row + position.lane / 4, position.lane);
    TileSums of_group;
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
    Held held{};
    if (span.begin < whole) {
      ptx::mbarrier_wait(block.full + 8 * ring.stage, ring.phase);
      load_step(ring.stage, 0, span.begin * T.depth, even);
    }
    INGOT_UNROLL_BY(1)
    for (u32 at = span.begin; at < whole; ++at) {
      const u32 stage = base + ring.stage * dequant_stage_bytes<W>(T);
      // Uniform in the warp, which ptxas knows only by the shuffle: descriptors are then computed once for all lanes.
      const u32 x = __shfl_sync(0xffffffffU, ptx::wgmma_address_field(stage + dequant_code_bytes<W>(T)), 0);
      // Steps come in pairs, each with its own registers.
      INGOT_UNROLL
      for (u32 step = 0; step < T.depth / kStep; step += 2) {
        const u32 k = at * T.depth + step * kStep;
        const u32 tile = step * kStepTiles;
        load_step(ring.stage, tile + kStepTiles, at * T.depth, odd);
        if (kFolded && tile % kHeldTiles == 0) hold(even, held);
        decode_step(even, held, tile % kHeldTiles, first);
        if constexpr (kGrouped) {
          adds = end_group_before(d, of_group, groups, step, k, adds);
        }
        multiply_step(d, of_group, first, x + x_offset(step), adds);
        adds = 1;
        ptx::wgmma_wait<1>();
        if (step == 0 && previous < T.stages) release_stage(previous);
        if (step + 2 < T.depth / kStep) {
          load_step(ring.stage, tile + 2 * kStepTiles, at * T.depth, even);
        } else if (at + 1 < whole) {
          load_step(wait_for_next_stage(), 0, (at + 1) * T.depth, even);
        }
        decode_step(odd, held, (tile + kStepTiles) % kHeldTiles, second);
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
  INGOT_DEVICE void sum_short_stage(TileSums& d, DequantGroups<Kind, T>& groups, u32 at) const {
    ptx::mbarrier_wait(block.full + 8 * ring.stage, ring.phase);
    const u32 stage = block.stages + ring.stage * dequant_stage_bytes<W>(T);
    const u32 x = __shfl_sync(0xffffffffU, ptx::wgmma_address_field(stage + dequant_code_bytes<W>(T)), 0);
    const u32 steps = parts_of(at) * (kDequantPart / kStep);
    INGOT_UNROLL_BY(1)
    for (u32 step = 0; step < steps; ++step) {
      Fragments a;
      Step now{};
      load_step(ring.stage, step * kStepTiles, at * T.depth, now, true);
      Held held{};
      if constexpr (kFolded) hold(now, held);
      decode_step(now, held, 0, a);
      if constexpr (kGrouped) {
        TileSums of_group;
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

  // Computes this warp's sums over the k of `span`, for the tile whose first row is `row` and whose first token
  // `token`.
  INGOT_DEVICE void sum(TileSums& d, const DequantSpan& span, u32 row, [[maybe_unused]] u32 token,
                        const DequantExpert& expert) {
    const u32 first_row = row + position.rows * T.waves * 64 + position.warp % 4 * 16;
    if constexpr (T.wgmma) {
      sum_by_wgmma(d, span, first_row, expert);
    } else if constexpr (dequant_fits_tokens(T)) {
      sum_eights<kTokenTiles>(d, span, first_row, expert, dequant_token_tiles(T, expert.row_end - token));
    } else {
      sum_by_mma<kTokenTiles>(d, span, first_row, expert);
    }
  }
};
#endif

}  // namespace ingot
