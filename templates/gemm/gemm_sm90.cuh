// out[M, N] = factor_a * factor_b * sum_k a(m, k) b(n, k) + bias on Hopper's tensor cores (sm_90a), followed by the
// epilogue (gemm_epilogue.cuh). FP8 operands have rows along k; two of bf16 or of f16 have rows along or across k, and
// no factors. Rows start at multiples of 16 bytes; any K; out has any pitch.
//
// Work: 2 M N K operations at 8192 per clock and SM (bf16, f16: 4096). Each operand byte comes from the L2 once per
// tile that needs it, half as often if two blocks of a cluster share it (multicast).
//
// Schedule: blocks are persistent and take tiles in turn (gemm_sm90_tiling.cuh). One thread of the producer warpgroup
// keeps a ring of stages filled with tiles of A and B, 128 bytes deep, through the copy engine; it loads the next tile
// while the current one ends. Two consumer warpgroups multiply with wgmma from shared memory. They share each tile,
// half of its rows each (of 64 rows: half of its columns), or (ping-pong) have tiles of their own, so that one
// multiplies while the other writes. A stage's `full` barrier counts its bytes; its `empty` barrier counts the
// consuming warps of all blocks to which it was sent. gemm_sm90_producer.cuh has the producer's half of this.
//
// Stream-K cuts tiles along K (stream_k.cuh); a block sends its sums of another block's tile to that block
// (stream_k_parts.cuh). It is for few rows, where whole tiles would not use the memory's full rate, and for incomplete
// last rounds. In fast mode, the sums of a tile are then the tensor cores' sums of each part, added in f32.
//
// Sums: fast mode leaves a tile's whole sum to the tensor cores, which keep fewer bits than f32. Otherwise the tensor
// cores sum each 128 of K, and each such part is added to a sum in f32; if registers allow, while the tensor cores
// compute the next part. bf16 and f16 are always summed as in fast mode: their sums keep f32's bits. Factors and bias
// are applied in f32, as in gemm_simt: ((sum * factor_a) * factor_b) + bias; a factor of the whole b is first
// multiplied into factor_a.
//
// Factors of groups (a: one per 128 of K in a row; b: likewise, or one per block of 128 x 128) are applied to each
// part: sum = sum + part * (factor_a * factor_b), one fused multiply-add. They are loaded steps ahead.
//
// Epilogue: what it reads of other matrices is requested a chunk of columns at a time, before the first of them is
// computed; one of those matrices is read in whole rows through the warp's shared memory, as the preactivation is
// written.
//
// Output: each warp works on its own. It rearranges 16 rows of 128 bytes in its own shared memory (stmatrix, swizzled)
// and waits for no other warp. From there the copy engine stores them (ping-pong), or the warp does, in whole rows of
// 128 bytes; or in single elements, if the output's rows do not start at multiples of 16 bytes. FP8 output goes in rows
// of 64 bytes, stored by the warp.
#pragma once

#include "gemm/gemm_epilogue.cuh"
#include "gemm/gemm_sm90_producer.cuh"
#include "gemm/gemm_sm90_producer16.cuh"
#include "gemm/gemm_sm90_split.cuh"
#include "gemm/gemm_sm90_tiling.cuh"
#include "gemm/stream_k_parts.cuh"
#include "memory.cuh"
#include "numerics.cuh"
#include "platform.cuh"
#include "ptx/cluster.cuh"
#include "ptx/cvt.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/mma.cuh"
#include "ptx/opaque.cuh"
#include "ptx/shared.cuh"
#include "ptx/tma.cuh"
#include "ptx/wgmma.cuh"

namespace ingot {

#if INGOT_ON_DEVICE
// One of the two warpgroups that multiply.
template <class A, class B, class Out, GemmSm90Config C, class Epi, Sm90Tiling T = C.tiling>
struct Sm90Consumer {
  static constexpr bool kOwnRows = !T.pingpong && !sm90_shares_columns(T);  // own rows of a tile that both share
  static constexpr u32 kWaves = sm90_waves(T);
  static constexpr u32 kWaveRows = T.pingpong ? 64 : 128;  // from one wave of a warpgroup to the next
  static constexpr u32 kN = sm90_columns(T);
  static constexpr u32 kSums = kN / 2;                                 // per thread and wave
  static constexpr u32 kColumns = kN / 128 + (kN % 128 != 0 ? 1 : 0);  // per thread, when factors are fetched
  static constexpr bool kCodes = sizeof(Out) == 1;
  static constexpr u32 kChunk = kCodes ? 64 : 128 / static_cast<u32>(sizeof(Out));  // columns of a staged row
  static constexpr u32 kRowBytes = kChunk * static_cast<u32>(sizeof(Out));
  static constexpr bool kColumnFactors = is_rowwise(C.scale_b);
  static constexpr bool kGrouped = has_extents(C.scale_b);
  // Does the copy engine store? Waiting for it takes longer than a warp takes to read its rows back and store them
  // itself. So it does only in the schedule in which another warpgroup multiplies meanwhile and has more of the shared
  // memory.
  static constexpr bool kStoredByEngine = T.pingpong && !kCodes;
  static constexpr bool kFp8 = sizeof(A) == 1;  // has factors
  using Bias = typename GemmBias<A, B, Out>::Type;
  using OthersPart = StreamKPart<kSm90Warps, sm90_part_bytes(T)>;
  static constexpr u32 kPartVectors = kWaves * kSums <= 64 ? kSums / 4 : 8;

  const Sm90GemmParams& p;
  const Sm90Block<T>& block;
  u32 group;   // 0 or 1
  u32 thread;  // in the warpgroup
  u32 lane;
  u32 release;      // the empty barrier, here or in another block, at which this lane arrives
  u32 columns = 0;  // shared memory: this tile's column factors, then its bias
  u32 other_half = 0;
  StageRing<T.stages> ring{};
  float scale = 1.0F;  // for an FP8 output
  u32 largest = 0;     // |out| of this thread so far, as bits; for 16-bit output a pair of them

  INGOT_DEVICE Sm90Consumer(const Sm90GemmParams& params, const Sm90Block<T>& b, u32 warpgroup)
      : p(params), block(b), group(warpgroup), thread(threadIdx.x % 128), lane(threadIdx.x % 32) {
    release = sm90_cluster_size(T) > 1 ? ptx::mapa(b.empty, lane % sm90_cluster_size(T)) : b.empty;
  }

  // This warp has read the stage: each block that sends to it may send the next data.
  INGOT_DEVICE void release_stage(u32 stage) const {
    if constexpr (sm90_cluster_size(T) > 1) {
      if (lane < sm90_cluster_size(T)) ptx::mbarrier_arrive_cluster(release + 8 * stage);
    } else {
      if (lane == 0) ptx::mbarrier_arrive(release + 8 * stage);
    }
  }

  // Warpgroups that have tiles of their own multiply in turn: the next one begins when this one has seen all of its
  // stages. (Otherwise it could not tell its stages from those of the ring's previous round.)
  INGOT_DEVICE void wait_for_turn() const {
    if constexpr (T.pingpong) ptx::named_barrier_sync(1 + group, 256);
  }
  INGOT_DEVICE void pass_turn() const {
    if constexpr (T.pingpong) ptx::named_barrier_arrive(1 + (group ^ 1), 256);
  }

  // If warpgroups share a tile and add up the tensor cores' parts, they should be out of step: one multiplies while the
  // other adds. So the second begins a tile when the first has its first part. (Not if the first could be a whole tile
  // ahead and so arrive at this barrier twice.)
  INGOT_DEVICE void begin_second(u32 steps) const {
    if (!T.pingpong && group == 1 && steps >= T.stages) ptx::named_barrier_sync(1, 256);
  }
  INGOT_DEVICE void let_second_begin(u32 steps) const {
    if (!T.pingpong && group == 0 && steps >= T.stages) ptx::named_barrier_arrive(1, 256);
  }

  INGOT_DEVICE static void clear(float (&d)[kWaves][kSums]) {
    INGOT_UNROLL
    for (u32 wave = 0; wave < kWaves; ++wave) {
      INGOT_UNROLL
      for (u32 i = 0; i < kSums; ++i) d[wave][i] = 0.0F;
    }
  }

  INGOT_DEVICE void multiply(float (&d)[kSums], u64 a, u64 b, u32 wave, u32 adds) const {
    INGOT_UNROLL
    for (u32 k = 0; k < kSm90Depth; k += 32) {
      if constexpr (kFp8) {
        ptx::wgmma_m64k32<A, B, kN>(d, a + (wave * kWaveRows * kSm90Depth + k) / 16, b + k / 16, k == 0 ? adds : 1);
      } else {
        // 32 bytes are 16 of K; across K, those are 16 rows.
        constexpr u32 kA = C.across_a ? kSm90Step16 : 1;
        constexpr u32 kB = C.across_b ? kSm90Step16 : 1;
        ptx::wgmma_m64k16_shared<A, C.across_a, C.across_b, kN>(d, a + (wave * kWaveRows * kSm90Depth + k * kA) / 16,
                                                                b + k * kB / 16, k == 0 ? adds : 1);
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
    begin_second(steps);
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
        if (wave == 0 && step == 0) let_second_begin(steps);
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
  static constexpr bool kOverlapped =
      kWaves == 1 && !T.stream_k && kSums + 2 * kPart <= 192 && !T.pingpong && !sm90_factors_of_rows(C);

  // The address of a's factor for a row and a group of K; of b's for a row, or for the rows that share one.
  INGOT_DEVICE const float* factor_a(u32 row, u32 of_k) const {
    return p.factor_a + (i64{row} * p.factor_a_stride + i64{of_k} * p.factor_a_group_stride);
  }
  INGOT_DEVICE const float* factor_b(u32 row, u32 of_k) const {
    return p.factor_b + (i64{row} * p.factor_b_stride + i64{of_k} * p.factor_b_group_stride);
  }

  // The factors of a part, if it has its own.
  struct PartFactors {
    float rows[2];
    float b;
  };
  struct Part {
    float sums[kPart];
    PartFactors factors;
  };
  struct PartSource {
    u64 tile_a, tile_b;
    const float* rows[2];  // factors of each step, if they are of groups
    const float* b;
  };

  // Starts the current stage's part, of the first columns or of the last, and loads its factors, which are used one
  // part later.
  INGOT_DEVICE void begin_part(Part& part, const PartSource& from, bool last, u32 step) const {
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
      const i64 group_a = i64{step} * p.factor_a_group_stride;
      part.factors.rows[0] = ptx::ld_global_nc_float(from.rows[0] + group_a);
      part.factors.rows[1] = ptx::ld_global_nc_float(from.rows[1] + group_a);
      part.factors.b = ptx::ld_global_nc_float(from.b + i64{step} * p.factor_b_group_stride);
    }
  }

  // Adds a part that the tensor cores have finished, to the first sums or to the last.
  INGOT_DEVICE static void add_part(float (&d)[kWaves][kSums], Part& part, bool last) {
    constexpr u32 kLast = (kPartsOfStep - 1) * kPart;
    ptx::wgmma_settle(part.sums);
    float factors[2] = {1.0F, 1.0F};
    if constexpr (kGrouped) {
      ptx::wgmma_settle(part.factors.rows);
      factors[0] = part.factors.rows[0] * part.factors.b;
      factors[1] = part.factors.rows[1] * part.factors.b;
    }
    INGOT_UNROLL
    for (u32 i = 0; i < kPart; ++i) {
      float& sum = d[0][(last ? kLast : 0) + i];
      sum = kGrouped ? fused_multiply_add(part.sums[i], factors[i / 2 % 2], sum) : sum + part.sums[i];
    }
  }

  INGOT_DEVICE void next_stage() {
    ring.advance();
    ptx::mbarrier_wait(block.full + 8 * ring.stage, ring.phase);
  }

  // Starts part `two`, and adds part `one` while the tensor cores compute it.
  INGOT_DEVICE void to_two(float (&d)[kWaves][kSums], Part& one, Part& two, const PartSource& from, u32 step) {
    const u32 previous = ring.stage;
    if constexpr (kPartsOfStep == 1) next_stage();
    begin_part(two, from, true, step);
    ptx::wgmma_wait<1>();
    if constexpr (kPartsOfStep == 1) release_stage(previous);
    add_part(d, one, false);
  }

  INGOT_DEVICE PartSource part_source(u64 tile_a, u64 tile_b, const Sm90TileIndex& first) const {
    PartSource from{tile_a, tile_b, {}, nullptr};
    if constexpr (kGrouped) {
      INGOT_UNROLL
      for (u32 half = 0; half < 2; ++half) {
        const u32 row = min_of(first.m + wave_row(0) + lane / 4 + half * 8, p.m - 1);
        from.rows[half] = factor_a(row, 0);
      }
      from.b = factor_b(min_of(first.n, p.n - 1) / C.scale_b.rows, 0);
    }
    return from;
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
    begin_part(one, from, false, 0);
    u32 part = 1;
    INGOT_UNROLL_BY(1)
    for (; part + 1 < parts; part += 2) {
      to_two(d, one, two, from, part);
      const u32 previous = ring.stage;
      next_stage();
      begin_part(one, from, false, part + 1);
      ptx::wgmma_wait<1>();
      release_stage(previous);
      add_part(d, two, true);
    }
    if (part < parts) {
      to_two(d, one, two, from, part);
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

  // The factors of a's rows and of b's block. The four lanes that share a row hold those of four steps, one each.
  struct FourSteps {
    float rows[kWaves][2];
    float b;
  };

  // b: its factors from the first of these steps on.
  INGOT_DEVICE void fetch_four(FourSteps& fetched, const float* b, u32 row, u32 begin, u32 step, u32 steps) const {
    const u32 at = min_of(step + lane % 4, steps - 1);
    INGOT_UNROLL
    for (u32 wave = 0; wave < kWaves; ++wave) {
      INGOT_UNROLL
      for (u32 half = 0; half < 2; ++half) {
        const u32 of_row = min_of(row + wave * kWaveRows + half * 8, p.m - 1);
        fetched.rows[wave][half] = ptx::ld_global_nc_float(factor_a(of_row, begin + at));
      }
    }
    if constexpr (kGrouped && !sm90_factors_of_rows(C)) {
      fetched.b = ptx::ld_global_nc_float(b + i64{at} * p.factor_b_group_stride);
    }
  }

  // Waits for what was fetched, here and not before.
  INGOT_DEVICE static void settle(FourSteps& fetched) {
    INGOT_UNROLL
    for (u32 wave = 0; wave < kWaves; ++wave) ptx::wgmma_settle(fetched.rows[wave]);
    float b[1] = {fetched.b};
    ptx::wgmma_settle(b);
    fetched.b = b[0];
  }

  INGOT_DEVICE float of_step(float held, u32 step) const {
    return float_from_bits(__shfl_sync(0xffffffffU, float_bits(held), (lane & 28U) | (step % 4)));
  }

  // begin: the tile's step with which these steps begin.
  INGOT_DEVICE void sum_scaled(float (&d)[kWaves][kSums], u64 tile_a, u64 tile_b, u32 begin, u32 steps,
                               const Sm90TileIndex& first) {
    float part[kSums];
    if constexpr (!T.stream_k) clear(d);
    const u32 row = first.m + wave_row(0) + lane / 4;
    const u32 row_b = min_of(first.n + (sm90_factors_of_rows(C) ? thread % kN : 0), p.n - 1);
    const float* const b = factor_b(row_b / C.scale_b.rows, begin);
    const u32 shared = block.columns + 2 * group * sm90_column_bytes(T);
    FourSteps now{};
    FourSteps next{};
    fetch_four(next, b, row, begin, 0, steps);
    float next_b[1] = {sm90_factors_of_rows(C) ? b[0] : 0.0F};
    begin_second(steps);
    u32 step = 0;
    INGOT_UNROLL_BY(1)
    while (step < steps) {
      settle(next);
      now = next;
      fetch_four(next, b, row, begin, step + 4, steps);
      const u32 end = min_of(step + 4, steps);
      INGOT_UNROLL_BY(1)
      for (; step < end; ++step) {
        const u32 columns_b = shared + (begin + step) % 2 * sm90_column_bytes(T);
        if constexpr (sm90_factors_of_rows(C)) {
          // Every warp has finished reading what lay here two steps ago: it has since passed the barrier of the last
          // step.
          ptx::wgmma_settle(next_b);
          if (kN == 128 || thread < kN) ptx::st_shared_float(columns_b + 4 * thread, next_b[0]);
          ptx::named_barrier_sync(3 + group, 128);
          const u32 next_step = min_of(step + 1, steps - 1);
          next_b[0] = ptx::ld_global_nc_float(b + i64{next_step} * p.factor_b_group_stride);
        }
        ptx::mbarrier_wait(block.full + 8 * ring.stage, ring.phase);
        if (step == steps - 1) pass_turn();
        const u32 offset = ring.stage * (sm90_stage_bytes(T) / 16);
        const float whole_b = sm90_factors_of_rows(C) ? 1.0F : of_step(now.b, step);
        INGOT_UNROLL
        for (u32 wave = 0; wave < kWaves; ++wave) {
          ptx::wgmma_fence();
          multiply(part, tile_a + offset, tile_b + offset, wave, 0);
          ptx::wgmma_commit();
          float of_row[2] = {of_step(now.rows[wave][0], step), of_step(now.rows[wave][1], step)};
          if constexpr (!sm90_factors_of_rows(C)) {
            of_row[0] = of_row[0] * whole_b;
            of_row[1] = of_row[1] * whole_b;
          }
          ptx::wgmma_wait<0>();
          ptx::wgmma_settle(part);
          if (wave == 0 && step == 0) let_second_begin(steps);
          if (wave == kWaves - 1) release_stage(ring.stage);
          INGOT_UNROLL
          for (u32 j = 0; j < kSums / 4; ++j) {
            float of_column[2] = {1.0F, 1.0F};
            if constexpr (sm90_factors_of_rows(C)) {
              ptx::ld_shared_floats(columns_b + 4 * (j * 8 + lane % 4 * 2), of_column[0], of_column[1]);
            }
            INGOT_UNROLL
            for (u32 i = 0; i < 4; ++i) {
              const float factor = sm90_factors_of_rows(C) ? of_row[i / 2] * of_column[i % 2] : of_row[i / 2];
              d[wave][4 * j + i] = fused_multiply_add(part[4 * j + i], factor, d[wave][4 * j + i]);
            }
          }
          ptx::wgmma_settle(d[wave]);
        }
        ring.advance();
      }
    }
  }

  // Factors and bias are loaded before the sums and used after them.
  struct Fetched {
    float rows[kWaves][2];
    float columns[kColumns];
    float bias[kColumns];
  };

  INGOT_DEVICE u32 wave_row(u32 wave) const {
    return wave * kWaveRows + (kOwnRows ? group * 64 : 0) + thread / 32 * 16;
  }

  INGOT_DEVICE Fetched fetch(const Sm90TileIndex& first) const {
    Fetched fetched{};
    if constexpr (kFp8 && !kGrouped) {
      const float whole = kColumnFactors ? 1.0F : p.factor_b[0];
      INGOT_UNROLL
      for (u32 wave = 0; wave < kWaves; ++wave) {
        INGOT_UNROLL
        for (u32 half = 0; half < 2; ++half) {
          const u32 row = min_of(first.m + wave_row(wave) + lane / 4 + half * 8, p.m - 1);
          fetched.rows[wave][half] = p.factor_a[row * p.factor_a_stride] * whole;
        }
      }
    }
    INGOT_UNROLL
    for (u32 i = 0; i < kColumns; ++i) {
      const u32 column = min_of(first.n + i * 128 + thread, p.n - 1);
      if constexpr (kColumnFactors) fetched.columns[i] = p.factor_b[column];
      if constexpr (C.bias) fetched.bias[i] = to_float(static_cast<const Bias*>(p.bias)[column]);
    }
    return fetched;
  }

  // Puts column factors and bias in the warpgroup's shared memory. The previous tile had the other half of it, and
  // every warp has finished reading the tile before that: it has passed this barrier since. (If b has factors of
  // groups, the steps have used the first parts of both halves, and may do so again once every warp is here; a bias has
  // the second parts.)
  INGOT_DEVICE void share(const Fetched& fetched) {
    if constexpr (kColumnFactors || C.bias || sm90_factors_of_rows(C)) {
      other_half ^= sm90_column_bytes(T);
      columns = block.columns + 2 * group * sm90_column_bytes(T) + other_half;
      INGOT_UNROLL
      for (u32 i = 0; i < kColumns; ++i) {
        const u32 column = i * 128 + thread;
        if (kN % 128 != 0 && column >= kN) continue;
        if constexpr (kColumnFactors) ptx::st_shared_float(columns + 4 * column, fetched.columns[i]);
        if constexpr (C.bias) ptx::st_shared_float(columns + 4 * (kN + column), fetched.bias[i]);
      }
      ptx::named_barrier_sync(3 + group, 128);
    }
  }

  // Applies factors and bias to two neighbouring columns of a row.
  INGOT_DEVICE void finish(float& x, float& y, float factor_row, const float (&factors)[2],
                           const float (&bias)[2]) const {
    if constexpr (kFp8 && !kGrouped) {
      x = x * factor_row;
      y = y * factor_row;
    }
    if constexpr (kColumnFactors) {
      x = x * factors[0];
      y = y * factors[1];
    }
    if constexpr (C.bias) {
      x = x + bias[0];
      y = y + bias[1];
    }
  }

  // Eight columns of 16 rows go to the warp's staging rows. The 16-byte units of a row are swizzled so that neither
  // side has bank conflicts.
  INGOT_DEVICE static u32 swizzle(u32 row, u32 unit) {
    return unit ^ (kCodes ? row / 2 & 3 : sizeof(Out) == 4 && !kStoredByEngine ? (row & 3) * 2 : row & 7);
  }

  // The number of blocks of eight columns, an even number, whose other inputs are fetched together: as many as there
  // are registers for beside the sums.
  static constexpr u32 kBlocks = kChunk / 8;
  static constexpr u32 kRoom = kWaves * kSums > 128 ? 4 : 32;
  INGOT_HOST_DEVICE static constexpr u32 fetched_together() {
    u32 blocks = kBlocks;
    while (blocks > 2 && blocks * 2 * Epi::kWords > kRoom) blocks /= 2;
    return blocks;
  }
  static constexpr u32 kTogether = fetched_together();

  // Of the epilogue's other matrices, one that is read and one that is written pass through the warp's staging rows,
  // where the output will be. In whole rows of 128 bytes they take an eighth of the cache cycles that accesses by each
  // thread's own pairs would take, and the operands' tiles need those cycles too.
  static constexpr bool kFirstByRows = sizeof(Out) == 2 && Epi::kFirstBytes == 2;
  static constexpr bool kPreactivationByRows =
      sizeof(Out) == 2 && Epi::kPreactivation && !Epi::kAddsC && is_same<typename Epi::Beside, Out>;
  // Nothing else is read or written, so values may be computed for elements outside the output. That is a fraction of
  // the code, and of the time to compile it, that a test for each pair takes.
  static constexpr bool kAllByRows =
      Epi::kReadsNoOther && (kFirstByRows || Epi::kFirstBytes == 0) && (!Epi::kPreactivation || kPreactivationByRows);

  INGOT_DEVICE static u32 row_address(u32 staging, u32 r, u32 unit) {
    return staging + r * kRowBytes + swizzle(r, unit) * 16;
  }

  // The address that this lane passes to stmatrix and ldmatrix for the first two blocks of eight columns, of 16 bits
  // each. An exclusive or with 16 j makes it that of blocks j and j + 1, if j is even: rows of 128 bytes are aligned.
  // (Beside 192 sums there is no register to keep it in from chunk to chunk.)
  INGOT_DEVICE u32 matrices_address(u32 staging) const {
    u32 own = lane;
    if constexpr (kWaves * kSums > 128) ptx::opaque(own);
    return row_address(staging, own % 16, own / 16);
  }

  // Loads 16 rows of 128 bytes of the first matrix that the epilogue reads. What lies outside of it is left as it is:
  // nobody stores what is computed from that.
  INGOT_DEVICE void bring_first(u32 row, u32 column, u32 staging) const {
    const u32 rows = row < p.m ? min_of(p.m - row, 16U) : 0;
    if (Epi::first_in_vectors(p.epilogue)) {
      const u32 n = column + lane % 8 * 8;
      const u32 bytes = n < p.n ? min_of((p.n - n) * 2, 16U) : 0;
      INGOT_UNROLL_BY(1)
      for (u32 r = bytes != 0 ? lane / 8 : 16; r < rows; r += 4) {
        ptx::cp_async<16>(row_address(staging, r, lane % 8), Epi::first_at(p.epilogue, row + r, n), bytes);
      }
      ptx::cp_async_commit();
      ptx::cp_async_wait<0>();
    } else {
      const u32 n = column + lane * 2;
      INGOT_UNROLL_BY(kWaves * kSums > 128 ? 1 : 4)  // beside 192 sums there are no registers for more
      for (u32 r = n < p.n ? 0 : 16; r < rows; ++r) {
        const auto* const at = reinterpret_cast<const u16*>(Epi::first_at(p.epilogue, row + r, n));
        const u32 second = n + 1 < p.n ? at[1] : 0;
        ptx::st_shared4(row_address(staging, r, lane / 4) + lane % 4 * 4, at[0] | second << 16);
      }
    }
    __syncwarp();
  }

  // Turns a chunk's sums into factors * sum + bias, and stages those as the preactivation.
  INGOT_DEVICE void stage_preactivation(float (&d)[kSums], const float (&rows)[2], u32 chunk, u32 matrices) const {
    u32 words[4];
    INGOT_UNROLL
    for (u32 j = 0; j < kBlocks; ++j) {
      float x[4];
      finished(d, rows, chunk, j, x);
      INGOT_UNROLL
      for (u32 i = 0; i < 4; ++i) d[(chunk * kBlocks + j) * 4 + i] = x[i];
      words[j % 2 * 2] = pack(x[0], x[1]);
      words[j % 2 * 2 + 1] = pack(x[2], x[3]);
      if (j % 2 == 1) ptx::stmatrix_x4(matrices ^ (j - 1) * 16, words);
    }
  }

  // Neither factors nor a bias are applied after the sums. As the sums are the same in each turn of the loop over
  // chunks, the compiler would then compute the whole epilogue in front of it.
  static constexpr bool kFinishedSums = !Epi::kNothing && (!kFp8 || kGrouped) && !C.bias;

  // factors * sum + bias for block j of eight columns: two neighbours of a row, and the same two eight rows below.
  INGOT_DEVICE void finished(float (&d)[kSums], const float (&rows)[2], u32 chunk, u32 j, float (&x)[4]) const {
    const u32 at = (chunk * kBlocks + j) * 4;
    const u32 local = chunk * kChunk + j * 8 + lane % 4 * 2;
    float factors[2] = {};
    float bias[2] = {};
    if constexpr (kColumnFactors) ptx::ld_shared_floats(columns + 4 * local, factors[0], factors[1]);
    if constexpr (C.bias) ptx::ld_shared_floats(columns + 4 * (kN + local), bias[0], bias[1]);
    INGOT_UNROLL
    for (u32 i = 0; i < 4; ++i) {
      if constexpr (kFinishedSums) ptx::opaque(d[at + i]);
      x[i] = d[at + i];
    }
    finish(x[0], x[1], rows[0], factors, bias);
    finish(x[2], x[3], rows[1], factors, bias);
  }

  // `row`, `column`: where the chunk begins in the output.
  INGOT_DEVICE void stage_columns(float (&d)[kSums], const float (&rows)[2], u32 chunk, u32 staging,
                                  [[maybe_unused]] u32 matrices, u32 row, u32 column,
                                  const typename Epi::Vectors& vectors) {
    u32 words[4];
    [[maybe_unused]] const bool inside = row + 16 <= p.m && column + kChunk <= p.n;
    INGOT_UNROLL
    for (u32 first = 0; first < kBlocks; first += kTogether) {
      typename Epi::Raw raw[kTogether][2] = {};
      if constexpr (Epi::kWords != 0 && !(kFirstByRows && Epi::kNoOtherMatrix)) {
        INGOT_UNROLL
        for (u32 j = 0; j < kTogether; ++j) {
          INGOT_UNROLL
          for (u32 half = 0; half < 2; ++half) {
            const u32 m = row + lane / 4 + half * 8;
            const u32 n = column + (first + j) * 8 + lane % 4 * 2;
            if (m >= p.m || n >= p.n) continue;
            raw[j][half] = Epi::template fetch<!kFirstByRows>(p.epilogue, vectors, m, n, n + 1 < p.n);
          }
        }
      }
      if constexpr (kFirstByRows) {
        INGOT_UNROLL
        for (u32 j = 0; j < kTogether; j += 2) {
          ptx::ldmatrix_x4(matrices ^ (first + j) * 16, words);
          INGOT_UNROLL
          for (u32 i = 0; i < 4; ++i) Epi::set_first(raw[j + i / 2][i % 2], words[i]);
        }
      }
      INGOT_UNROLL
      for (u32 i = 0; i < kTogether; ++i) {
        const u32 j = first + i;
        float x[4];
        if constexpr (kPreactivationByRows) {
          INGOT_UNROLL
          for (u32 k = 0; k < 4; ++k) x[k] = d[(chunk * kBlocks + j) * 4 + k];
        } else {
          finished(d, rows, chunk, j, x);
        }
        const u32 m = row + lane / 4;
        const u32 n = column + j * 8 + lane % 4 * 2;
        apply_epilogue(raw[i], m, n, vectors, x);
        if constexpr (Epi::kAmax && sizeof(Out) != 2) look_at(x, m, n, inside);
        if constexpr (kCodes) {
          INGOT_UNROLL
          for (u32 half = 0; half < 2; ++half) {
            const u32 r = lane / 4 + half * 8;
            ptx::st_shared2(staging + r * kRowBytes + swizzle(r, j / 2) * 16 + j % 2 * 8 + lane % 4 * 2,
                            encode_pair<Out>(x[2 * half] * scale, x[2 * half + 1] * scale));
          }
        } else if constexpr (sizeof(Out) == 4) {
          const u32 unit = 2 * j + lane % 4 / 2;
          INGOT_UNROLL
          for (u32 half = 0; half < 2; ++half) {
            const u32 r = lane / 4 + half * 8;
            ptx::st_shared_floats(staging + r * kRowBytes + swizzle(r, unit) * 16 + lane % 2 * 8, x[2 * half],
                                  x[2 * half + 1]);
          }
        } else {
          words[j % 2 * 2] = pack(x[0], x[1]);
          words[j % 2 * 2 + 1] = pack(x[2], x[3]);
          if constexpr (Epi::kAmax) {
            look_at_pair(words[j % 2 * 2], m, n, inside);
            look_at_pair(words[j % 2 * 2 + 1], m + 8, n, inside);
          }
          if (j % 2 == 1) ptx::stmatrix_x4(matrices ^ (j - 1) * 16, words);
        }
      }
    }
  }

  // x: two neighbouring elements of row m, and those of the row eight below.
  INGOT_DEVICE void apply_epilogue([[maybe_unused]] const typename Epi::Raw (&raw)[2], [[maybe_unused]] u32 m,
                                   [[maybe_unused]] u32 n, [[maybe_unused]] const typename Epi::Vectors& vectors,
                                   [[maybe_unused]] float (&x)[4]) {
    if constexpr (!Epi::kNothing) {
      INGOT_UNROLL
      for (u32 half = 0; half < 2; ++half) {
        if (!kAllByRows && (m + half * 8 >= p.m || n >= p.n)) continue;
        Epi::template apply<!kPreactivationByRows>(p.epilogue, vectors, raw[half], m + half * 8, n, n + 1 < p.n,
                                                   x[2 * half], x[2 * half + 1]);
      }
    }
  }

  // Counts values for the amax. inside: the chunk lies within the output, for the whole warp.
  INGOT_DEVICE void look_at(const float (&x)[4], u32 m, u32 n, bool inside) {
    INGOT_UNROLL
    for (u32 i = 0; i < 4; ++i) {
      const bool counts = inside || (m + i / 2 * 8 < p.m && n + i % 2 < p.n);
      largest = max_of(largest, counts ? amax_bits(x[i]) : 0U);
    }
  }
  INGOT_DEVICE void look_at_pair(u32 pair, u32 m, u32 n, bool inside) {
    u32 counted = 0x7fff7fffU;
    if (!inside) counted = m >= p.m || n >= p.n ? 0U : n + 1 < p.n ? counted : 0x7fffU;
    largest = max_u16x2(largest, pair & counted);
  }

  INGOT_DEVICE static u32 pack(float low, float high) {
    if constexpr (is_same<Out, bf16>) {
      return ptx::cvt_bf16x2(low, high);
    } else {
      return ptx::cvt_f16x2(low, high);
    }
  }

  // Stores 16 rows of a chunk, whose columns are all inside, from the warp's shared memory.
  INGOT_DEVICE void write_whole_rows(Out* out, i64 stride, u32 row, u32 column, u32 staging) const {
    constexpr u32 kUnits = kRowBytes / 16;
    INGOT_UNROLL
    for (u32 i = 0; i < 16; i += 32 / kUnits) {
      const u32 r = i + lane / kUnits;
      const u32 unit = lane % kUnits;
      const U32x4 vector = ptx::ld_shared16(row_address(staging, r, unit));
      if (row + r < p.m) store_streaming(out + (row + r) * stride + column + unit * (kChunk / kUnits), vector);
    }
  }

  // The same of a chunk that may reach past the last column. vectors: rows start at multiples of 16 bytes.
  INGOT_DEVICE void write_rows(Out* out, i64 stride, bool vectors, u32 row, u32 column, u32 staging) const {
    if (vectors && column + kChunk <= p.n) return write_whole_rows(out, stride, row, column, staging);
    INGOT_UNROLL_BY(1)
    for (u32 r = 0; r < 16 && row + r < p.m; ++r) {
      INGOT_UNROLL_BY(1)
      for (u32 c = lane; c < kChunk && column + c < p.n; c += 32) {
        const u32 byte = c * static_cast<u32>(sizeof(Out));
        const u32 from = staging + r * kRowBytes + swizzle(r, byte / 16) * 16 + byte % 16;
        Out* const to = out + (row + r) * stride + column + c;
        if constexpr (sizeof(Out) == 4) {
          *to = float_from_bits(ptx::ld_shared4(from));
        } else if constexpr (kCodes) {
          *to = Out{static_cast<u8>(ptx::ld_shared2(from & ~1U) >> (from % 2 * 8))};
        } else {
          *to = Out{ptx::ld_shared2(from)};
        }
      }
    }
  }

  // Prefetches what the epilogue will read of other matrices, while the sums are computed.
  INGOT_DEVICE void prefetch(const Sm90TileIndex& first) const {
    constexpr u32 kAcross = kN / 32;
    INGOT_UNROLL
    for (u32 wave = 0; wave < kWaves; ++wave) {
      INGOT_UNROLL
      for (u32 i = 0; i < 16 * kAcross; i += 32) {
        const u32 row = first.m + wave_row(wave) + (i + lane) / kAcross;
        const u32 column = first.n + (i + lane) % kAcross * 32;
        if (row < p.m && column < p.n) Epi::prefetch(p.epilogue, row, column);
      }
    }
  }

  // A kernel without an epilogue (it may record an amax) has the code of each chunk once, one behind the other, which
  // is up to 3 % faster than a loop. With an epilogue, only what touches the sums is there once for each chunk, since
  // they are in registers; the rest is a loop over the chunks. Else it would take most of the time to compile the
  // kernel.
  static constexpr bool kRolled = !Epi::kNothing;

  // The factors of two rows. In a loop they are hidden from the compiler, which would otherwise multiply all sums in
  // front of it, and have no registers for the products.
  struct RowFactors {
    float of[2];
  };
  INGOT_DEVICE static RowFactors hidden_factors(const float (&rows)[2]) {
    RowFactors factors{{rows[0], rows[1]}};
    if constexpr (kRolled) ptx::wgmma_settle(factors.of);
    return factors;
  }

  // Writes a tile, a chunk of columns at a time.
  INGOT_DEVICE void write(float (&d)[kWaves][kSums], const float (&rows)[kWaves][2], const Sm90TileIndex& first) {
    constexpr u32 kAcross = kN / kChunk;
    const typename Epi::Vectors vectors = Epi::vectors(p.epilogue);
    const u32 staging = block.staging + (group * 4 + thread / 32) * kSm90StagingBytes;
    // The copy engine writes 16 bytes at a time, even past the last column.
    const bool by_engine = kStoredByEngine && p.whole_vectors != 0 && p.n % (16 / static_cast<u32>(sizeof(Out))) == 0;
    INGOT_UNROLL_BY(kRolled ? 1 : kWaves * kAcross)
    for (u32 chunk = 0; chunk < kWaves * kAcross; ++chunk) {
      const u32 row = first.m + wave_row(chunk / kAcross);
      const u32 column = first.n + chunk % kAcross * kChunk;
      [[maybe_unused]] const u32 matrices = matrices_address(staging);
      if (by_engine) {
        if (lane == 0) ptx::bulk_wait_read();  // the chunk before
        __syncwarp();
      }
      if constexpr (kPreactivationByRows) {
        INGOT_UNROLL
        for (u32 i = 0; i < kWaves * kAcross; ++i) {
          if (i == chunk)
            stage_preactivation(d[i / kAcross], hidden_factors(rows[i / kAcross]).of, i % kAcross, matrices);
        }
        __syncwarp();
        Out* const out = static_cast<Out*>(p.epilogue.preactivation);
        const i64 stride = p.epilogue.preactivation_stride;
        write_rows(out, stride, rows_aligned<Out>(out, stride, 16), row, column, staging);
        __syncwarp();
      }
      if constexpr (kFirstByRows) {
        if (Epi::reads_first(p.epilogue)) bring_first(row, column, staging);
      }
      INGOT_UNROLL
      for (u32 i = 0; i < kWaves * kAcross; ++i) {
        if (i != chunk) continue;
        const RowFactors factors = hidden_factors(rows[i / kAcross]);
        stage_columns(d[i / kAcross], factors.of, i % kAcross, staging, matrices, row, column, vectors);
      }
      if (by_engine) {
        ptx::fence_proxy_async();
        __syncwarp();
        if (lane == 0 && row < p.m && column < p.n) {
          ptx::tma_store(&p.out_map, staging, static_cast<i32>(column), static_cast<i32>(row));
          ptx::bulk_commit();
        }
      } else {
        __syncwarp();
        write_rows(static_cast<Out*>(p.out), p.out_stride, p.whole_vectors != 0, row, column, staging);
        __syncwarp();
      }
    }
  }

  INGOT_DEVICE void sum(float (&d)[kWaves][kSums], u64 tile_a, u64 tile_b, u32 begin, u32 steps,
                        const Sm90TileIndex& first) {
    if constexpr (kOverlapped && !C.fast_accumulation) {
      sum_overlapped(d, part_source(tile_a, tile_b, first), steps);
    } else if constexpr (kGrouped) {
      sum_scaled(d, tile_a, tile_b, begin, steps, first);
    } else if constexpr (C.fast_accumulation) {
      sum_fast(d, tile_a, tile_b, steps);
    } else {
      sum_promoted(d, tile_a, tile_b, steps);
    }
  }

  // Where this warpgroup's output of the tile begins.
  INGOT_DEVICE Sm90TileIndex own(const Sm90TileIndex& first) const {
    return {first.m, first.n + (sm90_shares_columns(T) ? group * kN : 0)};
  }

  INGOT_DEVICE void run_whole(u64 tile_a, u64 tile_b) {
    const u32 steps = sm90_steps(p.k, kFp8 ? kSm90Depth : kSm90Step16);
    Sm90Walk<T> walk(p);
    if constexpr (T.pingpong) {
      if (group == 1) {
        walk.index += walk.step;
        ring.advance(steps);
        pass_turn();  // the first turn belongs to the other warpgroup
      }
      walk.step *= kSm90Consumers;
    }
    INGOT_UNROLL_BY(1)
    for (; walk.more(); walk.advance()) {
      const Sm90TileIndex first = own(walk.first(block.rank));
      const Fetched fetched = fetch(first);
      if constexpr (Epi::kWords != 0) prefetch(first);
      float d[kWaves][kSums];
      wait_for_turn();
      sum(d, tile_a, tile_b, 0, steps, first);
      share(fetched);
      write(d, fetched.rows, first);
      if constexpr (T.pingpong) ring.advance(steps);  // skip the other warpgroup's stages
    }
  }

  // Stream-K (stream_k.cuh): this block sends its sums of another block's tile to that block, and adds to its own
  // tiles, before their last steps, what other blocks have summed.
  INGOT_DEVICE void run_cut(u64 tile_a, u64 tile_b) {
    const u32 warp = group * 4 + thread / 32;
    INGOT_UNROLL_BY(1)
    for (Sm90CutWalk<T> walk(p); walk.more(); walk.advance()) {
      const Sm90TileIndex first = own(walk.first());
      const StreamKSpan span = walk.span();
      // (With two sets of sums, no register is left to fetch a bias early.)
      Fetched fetched{};
      if (walk.owns()) {
        if constexpr (!kGrouped) fetched = fetch(first);
        if constexpr (Epi::kWords != 0) prefetch(first);
      }
      u32 stretch = walk.index() + 1;
      const bool adds = walk.owns() && walk.reaches(stretch);
      float d[kWaves][kSums];
      clear(d);
      const u32 pause = adds ? span.end - p.cut.split.spare : span.end;
      sum(d, tile_a, tile_b, span.begin, pause - span.begin, first);
      if (adds) {
        INGOT_UNROLL_BY(1)
        for (; walk.reaches(stretch); ++stretch)
          OthersPart(p.cut, stretch, warp, lane).template add_to<kPartVectors>(d, lane);
        sum(d, tile_a, tile_b, pause, span.end - pause, first);
      }
      if (walk.owns()) {
        if constexpr (kGrouped) fetched = fetch(first);
        share(fetched);
        write(d, fetched.rows, first);
      } else {
        OthersPart(p.cut, walk.index(), warp, lane).write(d, lane);
        // share() has this barrier too: past it, every warp has finished reading the factors of the last step.
        if constexpr (sm90_factors_of_rows(C)) ptx::named_barrier_sync(3 + group, 128);
      }
    }
  }

  // (64 rows of a tile have as many bytes whether they lie along K or across.)
  INGOT_DEVICE void run() {
    constexpr u32 kApart = kSm90Step16 * kSm90Depth;
    const u32 first_row = kOwnRows ? group * 64 : 0;
    const u32 first_column = own({0, 0}).n;
    const u64 tile_a =
        ptx::wgmma_descriptor(block.stages + first_row * kSm90Depth) | ptx::wgmma_across(C.across_a ? kApart : 0);
    const u64 tile_b = ptx::wgmma_descriptor(block.stages + (T.m + first_column) * kSm90Depth) |
                       ptx::wgmma_across(C.across_b ? kApart : 0);
    if constexpr (kCodes) scale = *p.epilogue.scale;
    if constexpr (T.stream_k) {
      run_cut(tile_a, tile_b);
    } else {
      run_whole(tile_a, tile_b);
    }
    if constexpr (kStoredByEngine) ptx::bulk_wait();
    if constexpr (Epi::kAmax) {
      if constexpr (sizeof(Out) == 2) largest = amax_bits_of_pairs<Out>(largest);
      raise_epilogue_amax(p.epilogue, largest);
    }
  }
};
#endif

// Requires K > 0 and M, N > 0.
template <class A, class B, class Out, GemmSm90Config C, class Epi = PlainEpilogue>
INGOT_KERNEL void INGOT_LAUNCH_BOUNDS(kSm90Threads, 1)
    gemm_sm90([[maybe_unused]] const __grid_constant__ Sm90GemmParams p) {
  constexpr Sm90Tiling T = C.tiling;
  static_assert(sm90_has_factors(C.scale_b), "gemm_sm90 has no factors of such a granularity");
  static_assert(sm90_shared_bytes(T) <= kSm90SharedLimit);
  static_assert(T.m % (T.pingpong ? 64 : 128) == 0 || sm90_shares_columns(T));
  static_assert(T.n <= 256 && sm90_columns(T) % 64 == 0);
  static_assert(sm90_cluster_size(T) <= 2);
  static_assert(!T.stream_k || (!T.pingpong && sm90_cluster_size(T) == 1));
  static_assert(!has_extents(C.scale_b) || (!C.fast_accumulation && sm90_columns(T) <= 128));
  static_assert(sizeof(A) == 1 ? !C.across_a && !C.across_b
                               : is_same<A, B> && C.fast_accumulation && is_tensorwise(C.scale_b));
#if INGOT_ON_DEVICE
  constexpr u32 kProducer = kSm90Consumers * 128;
  const auto block = Sm90Block<T>::make();
  const u32 warpgroup = __shfl_sync(0xffffffffU, threadIdx.x / 128, 0);
  if (threadIdx.x == 0) block.make_barriers();
  if (threadIdx.x == 128) {
    ptx::prefetch_tensormap(!C.across_a && p.m < T.m ? &p.tail_a : &p.a);
    ptx::prefetch_tensormap(!C.across_b && p.n < T.n ? &p.tail_b : &p.b);
  }
  __syncwarp();
  block.sync_all();
  // All of the above may overlap the end of the previous kernel.
  start_in_turn();
  write_output_factor<Out>(p.epilogue);
  if (warpgroup == kSm90Consumers) {
    ptx::setmaxnreg_dec<40>();
    if (threadIdx.x == kProducer) {
      if constexpr (sizeof(A) == 2) {
        Sm90Producer16<C>{p, block}.run();
      } else if constexpr (T.stream_k) {
        sm90_produce_cut<T>(p, block);
      } else {
        sm90_produce<T>(p, block);
      }
    }
  } else {
    ptx::setmaxnreg_inc<232>();
    Sm90Consumer<A, B, Out, C, Epi>(p, block, warpgroup).run();
  }
  // No block leaves while another may still send to it or arrive at its barriers.
  __syncwarp();
  block.sync_all();
#endif
}

}  // namespace ingot
