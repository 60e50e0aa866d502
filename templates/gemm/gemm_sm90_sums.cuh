// The mainloop of gemm_sm90, for one of the warpgroups that multiply: the tensor cores' sums, promoted to f32 or
// not, with scale_inv of groups or without; the order of the warpgroups in ping-pong; and the release of stages.
#pragma once

#include "gemm/gemm_sm90_factors.cuh"
#include "gemm/gemm_sm90_position.cuh"
#include "gemm/gemm_sm90_producer.cuh"
#include "gemm/gemm_sm90_tiling.cuh"
#include "gemm/stage_ring.cuh"
#include "platform.cuh"
#include "ptx/cluster.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/opaque.cuh"
#include "ptx/wgmma.cuh"

namespace ingot {

#if INGOT_ON_DEVICE
template <class A, class B, GemmSm90Config C, Sm90Tiling T = C.tiling>
struct Sm90Sums {
  static constexpr u32 kWaves = sm90_waves(T);
  static constexpr u32 kWaveRows = Sm90Position<T>::kWaveRows;
  static constexpr u32 kN = sm90_columns(T);
  static constexpr u32 kSums = kN / 2;  // per thread and wave
  static constexpr bool kGrouped = has_extents(C.scale_b);
  static constexpr u32 kPartN = sm90_part_columns(T, kGrouped);
  static constexpr bool kFp8 = sizeof(A) == 1;  // has scale_inv
  using Factors = Sm90StageFactors<C>;          // of groups

  const Sm90GemmParams& p;
  const Sm90Block<C>& block;
  Sm90Position<T> position;
  u32 release;  // the empty barrier, here or in another block, at which this lane arrives
  StageRing<T.stages> ring{};
  u32 shift = 0;  // sm90_factor_shift() of the tile

  INGOT_DEVICE Sm90Sums(const Sm90GemmParams& params, const Sm90Block<C>& b, u32 warpgroup)
      : p(params), block(b), position(warpgroup) {
    release = sm90_cluster_size(T) > 1 ? ptx::mapa(b.empty, position.lane % sm90_cluster_size(T)) : b.empty;
  }

  // This warp has read the stage: each block that sends to it may send the next data.
  INGOT_DEVICE void release_stage(u32 stage) const {
    if constexpr (ptx::kEachLaneArrives) return release_by_each_lane(stage);
    if constexpr (kGrouped) __syncwarp();  // all lanes have read scale_inv
    if constexpr (sm90_cluster_size(T) > 1) {
      if (position.lane < sm90_cluster_size(T)) ptx::mbarrier_arrive_cluster(release + 8 * stage);
    } else {
      if (position.lane == 0) ptx::mbarrier_arrive(release + 8 * stage);
    }
  }

  INGOT_DEVICE void release_by_each_lane(u32 stage) const {
    INGOT_UNROLL
    for (u32 to = 0; to < sm90_cluster_size(T); ++to) {
      const u32 empty = sm90_cluster_size(T) > 1 ? ptx::mapa(block.empty, to) : block.empty;
      ptx::mbarrier_arrive_cluster(empty + 8 * stage);
    }
  }

  // Warpgroups that have their own tiles multiply one after the other: the next one begins when this one has seen all
  // of its stages. (Otherwise it could not distinguish its stages from those of the ring's previous round.)
  INGOT_DEVICE void wait_for_turn() const {
    if constexpr (T.pingpong) ptx::named_barrier_sync(1 + position.group, 256);
  }
  INGOT_DEVICE void pass_turn() const {
    if constexpr (T.pingpong) ptx::named_barrier_arrive(1 + (position.group ^ 1), 256);
  }

  // If warpgroups share a tile and add up the tensor cores' parts, they should be out of step: one multiplies while
  // another adds. So each but the first begins a tile when the one before it has its first part. (Not if that one could
  // be a whole tile ahead and so arrive at this barrier twice.) Three with scale_inv of b's blocks get out of step by
  // themselves: they are 4 % faster if they begin together and read ahead. So do two that have halves of 256 columns.
  static constexpr bool kReadsAhead = (sm90_consumers(T) == 3 || kPartN != kN) && kGrouped && !Factors::kOfRows;
  static constexpr bool kInTurn = !T.pingpong && !kReadsAhead;
  INGOT_DEVICE void begin_after_another(u32 steps) const {
    if (kInTurn && position.group != 0 && steps >= T.stages) ptx::named_barrier_sync(position.group, 256);
  }
  INGOT_DEVICE void let_next_begin(u32 steps) const {
    if (!kInTurn || position.group + 1 == sm90_consumers(T) || steps < T.stages) return;
    ptx::named_barrier_arrive(position.group + 1, 256);
  }

  INGOT_DEVICE static void clear(float (&d)[kWaves][kSums]) {
    INGOT_UNROLL
    for (u32 wave = 0; wave < kWaves; ++wave) {
      INGOT_UNROLL
      for (u32 i = 0; i < kSums; ++i) d[wave][i] = 0.0F;
    }
  }

  // Follows the instructions of multiply(): keeps the compiler from moving loads of scale_inv between them, where the
  // tensor cores would wait for the second instruction.
  INGOT_DEVICE static void keep_loads_behind() { __syncwarp(); }

  template <u32 Columns = kN>
  INGOT_DEVICE void multiply(float (&d)[Columns / 2], u64 a, u64 b, u32 wave, u32 adds) const {
    INGOT_UNROLL
    for (u32 k = 0; k < kSm90Depth; k += 32) {
      if constexpr (kFp8) {
        ptx::wgmma_m64k32<A, B, Columns>(d, a + (wave * kWaveRows * kSm90Depth + k) / 16, b + k / 16,
                                         k == 0 ? adds : 1);
      } else {
        // 32 bytes are 16 of K; across K, those are 16 rows.
        constexpr u32 kA = C.across_a ? kSm90Step16 : 1;
        constexpr u32 kB = C.across_b ? kSm90Step16 : 1;
        ptx::wgmma_m64k16_shared<A, C.across_a, C.across_b, Columns>(
            d, a + (wave * kWaveRows * kSm90Depth + k * kA) / 16, b + k * kB / 16, k == 0 ? adds : 1);
      }
    }
  }

  // Sums `steps` steps, from the ring's next stage on. If tiles are cut along K, adds them to what d holds.
  INGOT_DEVICE void sum_fast(float (&d)[kWaves][kSums], u64 tile_a, u64 tile_b, u32 steps) {
    u32 previous = 0;
    if constexpr (T.stream_k) {
      INGOT_UNROLL
      for (u32 wave = 0; wave < kWaves; ++wave) ptx::wgmma_settle(d[wave]);
    }
    INGOT_UNROLL_BY(1)
    for (u32 step = 0; step < steps; ++step) {
      ptx::mbarrier_wait(block.full + 8 * ring.stage, ring.phase);
      const u32 offset = ring.stage * (sm90_stage_bytes(T) / 16);
      ptx::wgmma_fence();
      INGOT_UNROLL
      for (u32 wave = 0; wave < kWaves; ++wave) {
        multiply(d[wave], tile_a + offset, tile_b + offset, wave, T.stream_k ? 1 : step);
      }
      ptx::wgmma_commit();
      ptx::wgmma_wait<1>();
      if (step != 0) release_stage(previous);
      previous = ring.stage;
      ring.advance();
    }
    pass_turn();
    ptx::wgmma_wait<0>();
    INGOT_UNROLL
    for (u32 wave = 0; wave < kWaves; ++wave) ptx::wgmma_settle(d[wave]);
    release_stage(previous);
  }

  INGOT_DEVICE void sum_promoted(float (&d)[kWaves][kSums], u64 tile_a, u64 tile_b, u32 steps) {
    float part[kSums];
    if constexpr (!T.stream_k) clear(d);
    begin_after_another(steps);
    INGOT_UNROLL_BY(1)
    for (u32 step = 0; step < steps; ++step) {
      ptx::mbarrier_wait(block.full + 8 * ring.stage, ring.phase);
      if (step == steps - 1) pass_turn();
      const u32 offset = ring.stage * (sm90_stage_bytes(T) / 16);
      INGOT_UNROLL
      for (u32 wave = 0; wave < kWaves; ++wave) {
        ptx::wgmma_fence();
        multiply(part, tile_a + offset, tile_b + offset, wave, 0);
        ptx::wgmma_commit();
        ptx::wgmma_wait<0>();
        ptx::wgmma_settle(part);
        if (wave == 0 && step == 0) let_next_begin(steps);
        if (wave == kWaves - 1) release_stage(ring.stage);
        INGOT_UNROLL
        for (u32 i = 0; i < kSums; ++i) d[wave][i] = d[wave][i] + part[i];
        ptx::wgmma_settle(d[wave]);
      }
      ring.advance();
    }
  }

  // Parts that will be added to the tile's sums are in two sets of registers: while a thread adds one, the tensor cores
  // compute the other. A part is 128 of K for all columns, or for half of them if registers are short.
  static constexpr u32 kPartsOfStep = kN > 128 ? 2 : 1;
  static constexpr u32 kPartColumns = kN / kPartsOfStep;
  static constexpr u32 kPart = kPartColumns / 2;
  static constexpr bool kOverlapped = kWaves == 1 && !T.stream_k && kSums + 2 * kPart <= 192 && !T.pingpong &&
                                      !Factors::kOfRows && sm90_consumers(T) == 2 && kPartN == kN;

  struct Part {
    float sums[kPart];
    float of_rows[2];  // scale_inv, if it has its own
  };
  struct PartSource {
    u64 tile_a, tile_b;
  };

  // Starts the current stage's part, of the first columns or of the last, and loads its scale_inv, which are used one
  // part later.
  INGOT_DEVICE void begin_part(Part& part, const PartSource& from, bool last) const {
    constexpr u32 kLastColumns = (kPartsOfStep - 1) * kPartColumns * kSm90Depth / 16;
    const u64 a = from.tile_a + ring.stage * (sm90_stage_bytes(T) / 16);
    const u64 b = from.tile_b + ring.stage * (sm90_stage_bytes(T) / 16) + (last ? kLastColumns : 0);
    ptx::wgmma_fence();
    INGOT_UNROLL
    for (u32 k = 0; k < kSm90Depth; k += 32) {
      ptx::wgmma_m64k32<A, B, kPartColumns>(part.sums, a + k / 16, b + k / 16, k == 0 ? 0 : 1);
    }
    ptx::wgmma_commit();
    if constexpr (kGrouped) {
      keep_loads_behind();
      Factors(block, position, ring.stage, shift).rows(part.of_rows, 0);
    }
  }

  // Adds a part that the tensor cores have finished, to the first sums or to the last.
  INGOT_DEVICE static void add_part(float (&d)[kWaves][kSums], Part& part, bool last) {
    constexpr u32 kLast = (kPartsOfStep - 1) * kPart;
    ptx::wgmma_settle(part.sums);
    INGOT_UNROLL
    for (u32 i = 0; i < kPart; ++i) {
      float& sum = d[0][(last ? kLast : 0) + i];
      sum = kGrouped ? fused_multiply_add(part.sums[i], part.of_rows[i / 2 % 2], sum) : sum + part.sums[i];
    }
  }

  INGOT_DEVICE void next_stage() {
    ring.advance();
    ptx::mbarrier_wait(block.full + 8 * ring.stage, ring.phase);
  }

  // Starts part `two`, and adds part `one` while the tensor cores compute it.
  INGOT_DEVICE void to_two(float (&d)[kWaves][kSums], Part& one, Part& two, const PartSource& from) {
    const u32 previous = ring.stage;
    if constexpr (kPartsOfStep == 1) next_stage();
    begin_part(two, from, true);
    ptx::wgmma_wait<1>();
    if constexpr (kPartsOfStep == 1) release_stage(previous);
    add_part(d, one, false);
  }

  // (The loop takes two parts at a time, and whether one is left over is tested at run time: otherwise ptxas says that
  // parts cannot overlap, and makes each wait for the one before.)
  INGOT_DEVICE void sum_overlapped(float (&d)[kWaves][kSums], const PartSource& from, u32 steps) {
    Part one;
    Part two;
    clear(d);
    u32 parts = steps * kPartsOfStep;
    ptx::opaque(parts);
    ptx::mbarrier_wait(block.full + 8 * ring.stage, ring.phase);
    begin_part(one, from, false);
    u32 part = 1;
    INGOT_UNROLL_BY(1)
    for (; part + 1 < parts; part += 2) {
      to_two(d, one, two, from);
      const u32 previous = ring.stage;
      next_stage();
      begin_part(one, from, false);
      ptx::wgmma_wait<1>();
      release_stage(previous);
      add_part(d, two, true);
    }
    if (part < parts) {
      to_two(d, one, two, from);
      ptx::wgmma_wait<0>();
      release_stage(ring.stage);
      add_part(d, two, true);
    } else {
      ptx::wgmma_wait<0>();
      release_stage(ring.stage);
      add_part(d, one, false);
    }
    ring.advance();
  }

  // Adds a share of columns that the tensor cores have finished, times its scale_inv.
  INGOT_DEVICE static void add_scaled(float (&d)[kSums], const float (&part)[kPartN / 2], u32 share,
                                      const float (&of_rows)[2], const Factors& factors) {
    INGOT_UNROLL
    for (u32 j = 0; j < kPartN / 8; ++j) {
      const u32 eight = share * (kPartN / 8) + j;
      float of_columns[2];
      if constexpr (Factors::kOfRows) factors.columns(of_columns, eight);
      INGOT_UNROLL
      for (u32 i = 0; i < 4; ++i) {
        const float factor = Factors::kOfRows ? of_rows[i / 2] * of_columns[i % 2] : of_rows[i / 2];
        d[4 * eight + i] = fused_multiply_add(part[4 * j + i], factor, d[4 * eight + i]);
      }
    }
  }

  // A step's parts, one after the other: each of 64 rows and one share of the warpgroup's columns.
  INGOT_DEVICE void sum_scaled(float (&d)[kWaves][kSums], u64 tile_a, u64 tile_b, u32 steps) {
    constexpr u32 kShares = kN / kPartN;
    constexpr u32 kParts = kWaves * kShares;
    float part[kPartN / 2];
    if constexpr (!T.stream_k) clear(d);
    begin_after_another(steps);
    bool is_full = false;  // is the stage known to be?
    INGOT_UNROLL_BY(1)
    for (u32 step = 0; step < steps; ++step) {
      if (!is_full) ptx::mbarrier_wait(block.full + 8 * ring.stage, ring.phase);
      if (step == steps - 1) pass_turn();
      const u32 offset = ring.stage * (sm90_stage_bytes(T) / 16);
      const Factors factors(block, position, ring.stage, shift);
      float of_rows[kParts][2];
      if constexpr (kReadsAhead) {
        INGOT_UNROLL
        for (u32 i = 0; i < kParts; ++i) factors.rows(of_rows[i], i / kShares, i % kShares);
      }
      INGOT_UNROLL
      for (u32 i = 0; i < kParts; ++i) {
        const u32 wave = i / kShares;
        const u32 share = i % kShares;
        ptx::wgmma_fence();
        multiply<kPartN>(part, tile_a + offset, tile_b + offset + share * (kPartN * kSm90Depth / 16), wave, 0);
        ptx::wgmma_commit();
        if constexpr (!kReadsAhead) {
          keep_loads_behind();
          factors.rows(of_rows[i], wave, share);
        }
        ptx::wgmma_wait<0>();
        ptx::wgmma_settle(part);
        if (i == 0 && step == 0) let_next_begin(steps);
        if (i == kParts - 1 && !Factors::kOfRows) release_stage(ring.stage);
        if (kReadsAhead && i == kParts - 1) {
          ring.advance();
          is_full = step + 1 < steps && ptx::mbarrier_looks_complete(block.full + 8 * ring.stage, ring.phase);
        }
        add_scaled(d[wave], part, share, of_rows[i], factors);
        ptx::wgmma_settle(d[wave]);
        if (i == kParts - 1 && Factors::kOfRows) release_stage(ring.stage);
      }
      if constexpr (!kReadsAhead) ring.advance();
    }
  }

  INGOT_DEVICE void sum(float (&d)[kWaves][kSums], u64 tile_a, u64 tile_b, u32 steps) {
    if constexpr (kOverlapped && !C.fast_accumulation) {
      sum_overlapped(d, {tile_a, tile_b}, steps);
    } else if constexpr (kGrouped) {
      sum_scaled(d, tile_a, tile_b, steps);
    } else if constexpr (C.fast_accumulation) {
      sum_fast(d, tile_a, tile_b, steps);
    } else {
      sum_promoted(d, tile_a, tile_b, steps);
    }
  }
};
#endif

}  // namespace ingot
