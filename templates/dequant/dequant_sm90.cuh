// out[M, N] = scale_inv[n] * sum_k x(m, k) w(n, k) + bias, followed by the epilogue of gemm_epilogue.cuh, on Hopper: x
// has 16 bits, w has codes of 8, 6 or 4 bits, which are decoded on their way into the tensor cores. Any M, N, K; rows
// of x start at multiples of 16 bytes.
//
// Work: for few tokens (rows of x), reading each code once, at the memory's rate; from about 64 tokens on, 2 M N K
// operations on the 16-bit tensor cores. Weights are operand A, from registers, and tokens are the columns, so the
// tensor cores compute out's transpose.
//
// Schedule: two warps keep a deep ring of stages filled. One thread of the first copies codes, packed in the order of
// the registers (dequant_layout.cuh), as runs of bytes; all its lanes copy the scale_inv that are multiplied into the
// codes, if there are any. One thread of the second copies tiles of x. If the weight is constant, its codes and those
// scale_inv are copied while the previous kernel in the stream ends. Each multiplying warpgroup has one or several
// times 64 rows. A warp reads its fragments, decodes them (dequant_fragment.cuh) and multiplies: by mma.sync, or by
// wgmma, in which case it decodes the next 32 or 64 k while the tensor cores multiply those before. Blocks of a cluster
// split a tile's k, so that all SMs have work, or load x for each other (multicast). Blocks are persistent: they take
// tiles round-robin, or (stream-K) equal stretches of all tiles' k, and send their sums of another block's tile to that
// block (stream_k.cuh). With experts, a block keeps a table of where their rows and tiles end, and looks up each tile's
// expert in it (dequant_experts.cuh). dequant_sm90_sums.cuh has the mainloop of a multiplying warp,
// dequant_sm90_output.cuh its epilogue store.
//
// Accumulation: the tensor cores sum in f32. With scale_inv of groups of k, each group has its own sum, which is
// multiplied by its scale_inv and added in f32, in ascending k; but e8m0 scale_inv are multiplied into codes of 6 and 4
// bits where the product is a bf16 (dequant_fragment.cuh). If blocks or warpgroups split k, all sums of a row go to one
// block (distributed shared memory), which adds them in a fixed order: every launch gives the same bits.
#pragma once

#include "dequant/dequant_factors.cuh"
#include "dequant/dequant_fragment.cuh"
#include "dequant/dequant_sm90_output.cuh"
#include "dequant/dequant_sm90_position.cuh"
#include "dequant/dequant_sm90_producer.cuh"
#include "dequant/dequant_sm90_sums.cuh"
#include "dequant/dequant_sm90_tiling.cuh"
#include "gemm/gemm_epilogue.cuh"
#include "gemm/stream_k_parts.cuh"
#include "memory.cuh"
#include "platform.cuh"
#include "ptx/cluster.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/tma.cuh"

namespace ingot {

#if INGOT_ON_DEVICE
// One of the warpgroups that multiply: it walks over its tiles, sums each and writes it.
template <CodeFormat W, DequantActivation X, HighPrecision Out, DequantSm90Config C, class Epi,
          DequantFactors Kind = C.factors, DequantSm90Tiling T = C.tiling>
struct DequantConsumer {
  using Sums = DequantSums<W, X, C>;
  using Output = DequantOutput<W, X, Out, C, Epi>;

  const DequantSm90Params& p;
  const DequantBlock<W, Kind, T>& block;
  DequantPosition<T> position;
  Sums sums;
  u32 round = 0;  // tiles so far
  Output output;

  INGOT_DEVICE DequantConsumer(const DequantSm90Params& params, const DequantBlock<W, Kind, T>& b, u32 warpgroup)
      : p(params), block(b), position(warpgroup), sums(params, b, position), output(params, b, position) {}

  // Computes whole tiles, or this block's share of each tile's k.
  INGOT_DEVICE void run_whole() {
    u32 late_row = 0;
    u32 late_token = 0;
    DequantExpert late_expert{};
    typename Output::RowValues late{};
    INGOT_UNROLL_BY(1)
    for (DequantWalk<T> walk(p, block); walk.more(); walk.advance()) {
      const DequantExpert expert = walk.find();
      const u32 row = walk.row();
      const u32 token = walk.token();
      typename Sums::TileSums d;
      [[maybe_unused]] typename Output::RowValues values[T.waves];
      if constexpr (Output::kShares == 1 && Output::kEarly) {
        INGOT_UNROLL
        for (u32 wave = 0; wave < T.waves; ++wave) values[wave] = output.row_values(expert, output.own_row(row, wave));
      }
      typename Output::RowValues early{};
      if constexpr (Output::kShares > 1 && Output::kEarlyShared)
        early = output.row_values(expert,
                                  output.shared_row(row, position.warp % Output::kOwnRowTiles) + position.lane / 8 * 4);
      sums.sum(d, walk.span(), row, token, expert);
      if constexpr (Output::kShares == 1) {
        output.write_own(d, row, token, expert, values);
      } else if constexpr (Output::kLate) {
        // The inbox of this tile was last used by the tile before the previous one.
        if (round > 0) output.finish(round - 1, late_row, late_token, late_expert, late);
        if (round > 1) ptx::mbarrier_wait(block.drained, round % 2);
        if (round > 0 && walk.more_after()) output.drain();
        output.send(d, round, token, expert);
        late_row = row;
        late_token = token;
        late_expert = expert;
        late = early;
      } else {
        if (round > 0) ptx::mbarrier_wait(block.drained, (round - 1) % 2);
        output.send(d, round, token, expert);
        output.finish(round, row, token, expert, early);
        if (walk.more_after()) output.drain();
      }
      ++round;
    }
    if constexpr (Output::kShares > 1 && Output::kLate) {
      if (round > 0) output.finish(round - 1, late_row, late_token, late_expert, late);
    }
  }

  // Stream-K (stream_k.cuh): this block sends its sums of another block's tile to that block, and adds to its own tiles
  // what other blocks have summed.
  INGOT_DEVICE void run_cut() {
    using Part = StreamKPart<Output::kWarps, dequant_sum_bytes(T)>;
    constexpr u32 kVectors = T.waves * Sums::kSums <= 32 ? Sums::kSums / 4 : 4;  // registers are scarce
    INGOT_UNROLL_BY(1)
    for (DequantWalk<T> walk(p, block); walk.more(); walk.advance()) {
      const StreamKStretch& stretch = walk.stretch;
      const u32 row = walk.row();
      typename Sums::TileSums d;
      [[maybe_unused]] typename Output::RowValues values[T.waves];
      if constexpr (Output::kEarly) {
        INGOT_UNROLL
        for (u32 wave = 0; wave < T.waves; ++wave) values[wave] = output.row_values({}, output.own_row(row, wave));
      }
      sums.sum(d, walk.span(), row, walk.token(), {});
      if (!stretch.owns()) {
        Part(p.cut, stretch.index(), position.warp, position.lane).write(d, position.lane);
        continue;
      }
      INGOT_UNROLL_BY(1)
      for (u32 other = stretch.index() + 1; stretch.reaches(other); ++other) {
        Part(p.cut, other, position.warp, position.lane).template add_to<kVectors>(d, position.lane);
      }
      output.write_own(d, row, walk.token(), {}, values);
    }
  }

  INGOT_DEVICE void run() {
    if constexpr (T.stream_k) {
      run_cut();
    } else {
      run_whole();
    }
    output.end();
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
  static_assert(!T.experts || Epi::kNothing, "a vector along the columns would be that of all experts");
  static_assert(dequant_sm90_exists<W>(T, Kind));
#if INGOT_ON_DEVICE
  constexpr u32 kProducer = 128 * T.groups;
  auto block = DequantBlock<W, Kind, T>::make();
  const u32 warp = __shfl_sync(0xffffffffU, threadIdx.x / 32, 0);
  if (threadIdx.x == kProducer) block.make_barriers();
  if (threadIdx.x == kProducer + 32) ptx::prefetch_tensormap(&p.x);
  __syncwarp();
  block.begin();
  // All of the above may overlap the end of the previous kernel; so may the copies of a constant weight, unless it is
  // not known yet whose they are.
  if constexpr (T.experts) {
    start_in_turn();
    block.find_experts(p);
  }
  if (warp >= 4 * T.groups) {
    if constexpr (dequant_moves_registers(T, Kind)) ptx::setmaxnreg_dec<dequant_registers(T, Kind).copies>();
    if (!T.experts && (warp != 4 * T.groups || p.constant_weight == 0)) {
      start_in_turn();
    }
    const u32 lane = threadIdx.x % 32;
    if (warp == 4 * T.groups && (lane == 0 || DequantBlock<W, Kind, T>::kFactors)) {
      DequantProducer<W, Kind, T>(p, block).run_codes(lane);
    }
    if (threadIdx.x == kProducer + 32) DequantProducer<W, Kind, T>(p, block).run_x();
  } else {
    if constexpr (dequant_moves_registers(T, Kind)) ptx::setmaxnreg_inc<dequant_registers(T, Kind).multiplies>();
    if constexpr (!T.experts) start_in_turn();
    DequantConsumer<W, X, Out, C, Epi>(p, block, warp / 4).run();
  }
  block.end();
#endif
}

}  // namespace ingot
