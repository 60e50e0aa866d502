// The scale_inv of groups in gemm_sm90. One warp of the producer warpgroup loads them into the stage to which they
// belong; the warpgroups that multiply read them from there. The warp loads them element by element and so with any
// strides; or one thread of it loads them by the copy engine, a step's of an operand with one instruction.
#pragma once

#include "gemm/gemm_sm90_along_k_walk.cuh"
#include "gemm/gemm_sm90_grouped_walk.cuh"
#include "gemm/gemm_sm90_position.cuh"
#include "gemm/gemm_sm90_producer.cuh"
#include "gemm/gemm_sm90_tiling.cuh"
#include "gemm/stage_ring.cuh"
#include "platform.cuh"
#include "ptx/bulk.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/mma.cuh"
#include "ptx/opaque.cuh"
#include "ptx/shared.cuh"

namespace ingot {

#if INGOT_ON_DEVICE
// The first of b's scale_inv; in a grouped GEMM, of the expert's.
template <GemmSm90Config C>
INGOT_DEVICE const float* sm90_group_factor_b(const Sm90GemmParams& p, const Sm90Expert& expert) {
  if constexpr (C.experts && !C.along_k) {
    return p.factor_b + i64{expert.index} * p.factor_b_expert_stride;
  } else {
    return p.factor_b;
  }
}

// How far the scale_inv of a tile's rows are shifted in shared memory.
template <GemmSm90Config C>
INGOT_DEVICE u32 sm90_factor_shift(const Sm90TileIndex& first) {
  return sm90_shifts_factors(C) ? first.m % 4 : 0;
}

// One thread loads scale_inv by the copy engine, but those of b's blocks itself: they are too few for it. What lies
// outside the output is not loaded, or is what a column inside it has; of a's rows of experts, a whole tile's are
// loaded, whosever they are.
template <GemmSm90Config C, Sm90Tiling T = C.tiling>
struct Sm90FactorEngine {
  static constexpr bool kOfRows = sm90_factors_of_rows(C);
  static constexpr u32 kBlocks = kOfRows ? 1 : sm90_factor_shares(T);  // or the first row
  static constexpr u32 kRows = sm90_factors_a(C);

  const Sm90GemmParams& p;
  const Sm90Block<C>& block;
  StageRing<T.stages> ring{};
  Sm90Expert expert{};  // in a grouped GEMM: whose tile is at hand

  // Steps `begin` to `end` of the tile that begins there.
  INGOT_DEVICE void load(const Sm90TileIndex& first, u32 begin, u32 end) {
    const u32 first_row = first.m - sm90_factor_shift<C>(first);
    const u32 bytes_a = 4 * min_of(p.m - min_of(first_row, p.m), kRows);
    const u32 bytes_b = kOfRows ? 4 * min_of(p.n - min_of(first.n, p.n), T.n) : 0;
    const float* a = p.factor_a + (i64{begin} * p.factor_a_group_stride + first_row);
    const float* b[kBlocks];
    INGOT_UNROLL
    for (u32 i = 0; i < kBlocks; ++i) {
      const u32 column = min_of(first.n + i * sm90_share_columns(T), p.n - 1);
      b[i] = sm90_group_factor_b<C>(p, expert) +
             (i64{begin} * p.factor_b_group_stride + i64{column / C.scale_b.rows} * p.factor_b_stride);
    }
    INGOT_UNROLL_BY(1)
    for (u32 step = begin; step < end; ++step) {
      const u32 full = block.full + 8 * ring.stage;
      const u32 to = block.factors + ring.stage * sm90_factor_bytes(C);
      ptx::mbarrier_wait(block.empty + 8 * ring.stage, ring.phase ^ 1);
      // Those of b's blocks first: with the other order, tiles of 128 x 128 had lost what the copy engine gains.
      if constexpr (!kOfRows) {
        INGOT_UNROLL
        for (u32 i = 0; i < kBlocks; ++i) ptx::cp_async<4>(to + 4 * (kRows + i), b[i], 4);
        ptx::cp_async_mbarrier_arrive(full);
      }
      ptx::mbarrier_arrive_expect_tx(full, bytes_a + bytes_b);
      if (bytes_a != 0) ptx::bulk_load(to, a, bytes_a, full);
      if (bytes_b != 0) ptx::bulk_load(to + 4 * kRows, b[0], bytes_b, full);
      a += p.factor_a_group_stride;
      INGOT_UNROLL
      for (u32 i = 0; i < kBlocks; ++i) b[i] += p.factor_b_group_stride;
      ring.advance();
    }
  }
};

// Two neighbouring lanes load a row's scale_inv of two steps, which share a sector if they are stored row by row. All
// lanes arrive at the barriers of both: the instruction takes one address for a warp.
template <GemmSm90Config C, Sm90Tiling T = C.tiling>
struct Sm90FactorLoader {
  static constexpr bool kOfRows = sm90_factors_of_rows(C);
  static constexpr u32 kColumns = sm90_share_columns(T);
  static constexpr u32 kSteps = T.stages >= 4 ? 2 : 1;  // at once; the ring has room for others
  static constexpr u32 kRows = kSm90FactorLoaders / kSteps;
  static_assert(!kOfRows || C.scale_b.rows == 1);

  const Sm90GemmParams& p;
  const Sm90Block<C>& block;
  u32 step_of_lane, row_of_lane;
  StageRing<T.stages> ring{};
  Sm90Expert expert{};  // in a grouped GEMM: whose tile is at hand

  INGOT_DEVICE Sm90FactorLoader(const Sm90GemmParams& params, const Sm90Block<C>& b, u32 lane)
      : p(params), block(b), step_of_lane(lane % kSteps), row_of_lane(lane / kSteps) {}

  // This lane's scale_inv of a tile's rows of A, or of its rows or blocks of B.
  struct Run {
    const float* from;  // the first, in the step at hand
    i64 apart;
    u32 left;  // scale_inv beyond that many are not loaded: they would meet only sums that nobody stores
  };
  INGOT_DEVICE Run run_of(const float* factors, u32 group_stride, u32 step, u32 stride, u32 first, u32 end) const {
    const u32 at = first + row_of_lane;
    return {factors + (i64{step} * group_stride + i64{at} * stride), i64{kRows} * stride, end - min_of(at, end)};
  }

  INGOT_DEVICE u32 end_m() const { return C.along_k ? p.m : sm90_end_m<C>(p, expert); }
  INGOT_DEVICE const float* factor_b() const { return sm90_group_factor_b<C>(p, expert); }

  // Columns of one share have a block's scale_inv in common.
  INGOT_DEVICE Run of_shares(u32 step, u32 first) const {
    const u32 column = first + row_of_lane * kColumns;
    return {factor_b() + (i64{step} * p.factor_b_group_stride + i64{column / C.scale_b.rows} * p.factor_b_stride), 0,
            p.n - min_of(column, p.n)};
  }

  // Every kRows-th of Count rows, `apart` bytes from each other in shared memory.
  template <u32 Count>
  INGOT_DEVICE static void copy(u32 to, u32 apart, const Run& run) {
    const float* from = run.from;
    INGOT_UNROLL
    for (u32 i = 0; i < Count; i += kRows) {
      if (run.left > i) ptx::cp_async<4>(to, from, 4);
      to += apart;
      from += run.apart;
      ptx::opaque(from);  // or all addresses are computed ahead, for which a producer's warp has no registers
    }
  }

  INGOT_DEVICE void load_columns(u32 to, const Run& b) const {
    if constexpr (kOfRows) {
      copy<T.n>(to + 4 * row_of_lane, 4 * kRows, b);
    } else {
      if (row_of_lane < sm90_factor_shares(T) && b.left != 0) ptx::cp_async<4>(to + 4 * row_of_lane, b.from, 4);
    }
  }

  // Steps `begin` to `end` of the tile that begins there.
  INGOT_DEVICE void load(const Sm90TileIndex& first, u32 begin, u32 end) {
    u32 step = begin + step_of_lane;
    Run a = run_of(p.factor_a, p.factor_a_group_stride, step, p.factor_a_stride, first.m, end_m());
    Run b = kOfRows ? run_of(factor_b(), p.factor_b_group_stride, step, p.factor_b_stride, first.n, p.n)
                    : of_shares(step, first.n);
    INGOT_UNROLL_BY(1)
    for (u32 at = begin; at < end; at += kSteps, step += kSteps) {
      u32 full[kSteps];
      u32 own = 0;
      INGOT_UNROLL
      for (u32 i = 0; i < kSteps; ++i) {
        full[i] = block.full + 8 * ring.stage;
        if (at + i < end) {
          ptx::mbarrier_wait(block.empty + 8 * ring.stage, ring.phase ^ 1);
          if (i == step_of_lane) own = ring.stage;
          ring.advance();
        }
      }
      if (step < end) {
        const u32 to = block.factors + own * sm90_factor_bytes(C);
        copy<T.m>(to + 4 * (sm90_factor_shift<C>(first) + row_of_lane), 4 * kRows, a);
        load_columns(to + 4 * sm90_factors_a(C), b);
      }
      a.from += i64{kSteps} * p.factor_a_group_stride;
      b.from += i64{kSteps} * p.factor_b_group_stride;
      INGOT_UNROLL
      for (u32 i = 0; i < kSteps; ++i) {
        if (at + i < end) ptx::cp_async_mbarrier_arrive(full[i]);
      }
    }
  }
};

// Those of all tiles of this block, by one of the two.
template <GemmSm90Config C, class Loader>
INGOT_DEVICE void sm90_load_factors_by(const Sm90GemmParams& p, const Sm90Block<C>& block, Loader loader) {
  if constexpr (C.along_k) {
    INGOT_UNROLL_BY(1)
    for (Sm90AlongKWalk<C, kSm90Depth> walk(p, block); walk.more(); walk.advance()) {
      const Sm90Stretch<kSm90Depth> stretch = walk.stretch();
      loader.load(walk.first(), stretch.begin / kSm90Depth, stretch.end / kSm90Depth);
    }
  } else if constexpr (C.experts) {
    INGOT_UNROLL_BY(1)
    for (auto walk = sm90_walk<C>(p, block); walk.more(); walk.advance()) {
      loader.expert = walk.find();
      loader.load(walk.first(block.rank), 0, sm90_steps(p.k));
    }
  } else {
    sm90_load_tiles<C>(p, block, sm90_steps(p.k), loader);
  }
}

// One warp runs it, while another thread loads the operands.
template <GemmSm90Config C>
INGOT_DEVICE void sm90_load_factors(const Sm90GemmParams& p, const Sm90Block<C>& block) {
  const u32 lane = threadIdx.x % 32;
  if (Sm90Block<C>::factors_by_engine(p)) {
    if (lane == 0) sm90_load_factors_by<C>(p, block, Sm90FactorEngine<C>{p, block});
    return;
  }
  sm90_load_factors_by<C>(p, block, Sm90FactorLoader<C>(p, block, lane));
}

// The scale_inv of a stage that a multiplying thread reads.
template <GemmSm90Config C, Sm90Tiling T = C.tiling>
struct Sm90StageFactors {
  static constexpr bool kOfRows = sm90_factors_of_rows(C);

  u32 of_rows, of_columns;  // shared memory: of this thread's first row, and of its columns

  INGOT_DEVICE Sm90StageFactors(const Sm90Block<C>& block, const Sm90Position<T>& position, u32 stage, u32 shift) {
    const u32 all = block.factors + stage * sm90_factor_bytes(C);
    const u32 column = position.own({0, 0}).n;
    const u32 place = kOfRows ? column + position.lane % 4 * 2 : column / sm90_share_columns(T);
    of_rows = all + 4 * (position.wave_row(0) + position.lane / 4 + shift);
    of_columns = all + 4 * (sm90_factors_a(C) + place);
  }

  // The scale_inv of this thread's two rows of a wave, times that of b's block if the columns of a share have one.
  INGOT_DEVICE void rows(float (&of)[2], u32 wave, u32 share = 0) const {
    const u32 from = of_rows + 4 * wave * Sm90Position<T>::kWaveRows;
    of[0] = float_from_bits(ptx::ld_shared4(from));
    of[1] = float_from_bits(ptx::ld_shared4(from + 32));
    if constexpr (!kOfRows) {
      const float whole = float_from_bits(ptx::ld_shared4(of_columns + 4 * share));
      of[0] = of[0] * whole;
      of[1] = of[1] * whole;
    }
  }

  // The scale_inv of this thread's two columns in the `eight`-th eight.
  INGOT_DEVICE void columns(float (&of)[2], u32 eight) const {
    ptx::ld_shared_floats(of_columns + 32 * eight, of[0], of[1]);
  }
};
#endif

}  // namespace ingot
