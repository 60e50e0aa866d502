// out[M, N] = scale_inv_a * scale_inv_b * sum_k a(m, k) b(n, k) + bias on Hopper's tensor cores (sm_90a), followed by
// the epilogue (gemm_epilogue.cuh). FP8 operands have rows along k; two of bf16 or of f16 have rows along or across k,
// and no scale_inv. Rows start at multiples of 16 bytes; any K; out has any pitch.
//
// Work: 2 M N K operations at 8192 per clock and SM (bf16, f16: 4096). Each operand byte comes from the L2 once per
// tile that needs it, half as often if two blocks of a cluster share it (multicast).
//
// Schedule: blocks are persistent and take tiles round-robin (gemm_sm90_tiling.cuh). One thread of the producer
// warpgroup keeps a ring of stages filled with tiles of A and B, 128 bytes deep, through the copy engine; it loads the
// next tile while the current one ends. Two consumer warpgroups multiply with wgmma from shared memory. They share each
// tile, half of its rows each (of 64 rows: half of its columns), or (ping-pong) have their own tiles, so that one
// multiplies while the other writes. With scale_inv of groups, three may share a tile of 192 rows, 64 each, and of 256
// columns each multiplies one half after the other. A stage's `full` barrier counts its bytes, and the threads that
// load scale_inv of groups; its `empty` barrier counts the consuming warps of all blocks to which it was sent.
// gemm_sm90_producer.cuh has the producer's half of this, gemm_sm90_sums.cuh a consumer's mainloop and
// gemm_sm90_output.cuh its epilogue store.
//
// Stream-K cuts tiles along K (stream_k.cuh); a block sends its sums of another block's tile to that block
// (stream_k_parts.cuh). It is for few rows, where whole tiles would not use the memory's full rate, and for incomplete
// last rounds. In fast mode, the sums of a tile are then the tensor cores' sums of each part, added in f32.
//
// Accumulation: fast mode leaves a tile's whole sum to the tensor cores, which keep fewer bits than f32. Otherwise the
// tensor cores sum each 128 of K, and each such part is added to a sum in f32; if registers allow, while the tensor
// cores compute the next part. bf16 and f16 are always summed as in fast mode: their sums keep f32's bits. scale_inv
// and bias are applied in f32, as in gemm_simt: ((sum * scale_inv_a) * scale_inv_b) + bias; one scale_inv of the whole
// b is first multiplied into scale_inv_a.
//
// scale_inv of groups (a: one per 128 of K in a row; b: likewise, or one per block of 128 x 128) are applied to each
// part: sum = sum + part * (scale_inv_a * scale_inv_b), one fused multiply-add. A second warp of the producer's loads
// them into the stages to which they belong (gemm_sm90_factors.cuh), through the copy engine where they are stored by
// group.
//
// Epilogue: what it reads of other matrices is requested a chunk of columns at a time, before the first of them is
// computed; one of those matrices is read in whole rows through the warp's shared memory, as the preactivation is
// written.
//
// Output: each warp works on its own. It rearranges 16 rows of 128 bytes in its own shared memory (stmatrix, swizzled)
// and waits for no other warp. From there the copy engine stores them (ping-pong), or the warp does, in whole rows of
// 128 bytes; or in single elements, if the output's rows do not start at multiples of 16 bytes. FP8 output goes in rows
// of 64 bytes, stored by the warp; that of tiles of 160 columns in such rows too.
#pragma once

#include "gemm/gemm_epilogue.cuh"
#include "gemm/gemm_sm90_along_k_walk.cuh"
#include "gemm/gemm_sm90_factors.cuh"
#include "gemm/gemm_sm90_grouped_walk.cuh"
#include "gemm/gemm_sm90_output.cuh"
#include "gemm/gemm_sm90_position.cuh"
#include "gemm/gemm_sm90_producer.cuh"
#include "gemm/gemm_sm90_producer16.cuh"
#include "gemm/gemm_sm90_split.cuh"
#include "gemm/gemm_sm90_sums.cuh"
#include "gemm/gemm_sm90_tiling.cuh"
#include "gemm/stream_k_parts.cuh"
#include "memory.cuh"
#include "platform.cuh"
#include "ptx/cluster.cuh"
#include "ptx/opaque.cuh"
#include "ptx/tma.cuh"
#include "ptx/wgmma.cuh"

namespace ingot {

#if INGOT_ON_DEVICE
// One of the warpgroups that multiply: it walks over its tiles, sums each and writes it.
template <class A, class B, class Out, GemmSm90Config C, class Epi, Sm90Tiling T = C.tiling>
struct Sm90Consumer {
  using Sums = Sm90Sums<A, B, C>;
  using Output = Sm90Output<A, B, Out, C, Epi>;
  using OthersPart = StreamKPart<kSm90Warps, sm90_part_bytes(T)>;
  static constexpr u32 kWaves = Sums::kWaves;
  static constexpr u32 kSums = Sums::kSums;
  static constexpr u32 kPartVectors = kWaves * kSums <= 64 ? kSums / 4 : 8;

  const Sm90GemmParams& p;
  const Sm90Block<C>& block;
  Sm90Position<T> position;
  Output output;
  Sums sums;

  INGOT_DEVICE Sm90Consumer(const Sm90GemmParams& params, const Sm90Block<C>& b, u32 warpgroup)
      : p(params), block(b), position(warpgroup), output(params, b, warpgroup), sums(params, b, warpgroup) {}

  // The first row and column, of the output, of the walk's current tile along K.
  template <class Walk>
  INGOT_DEVICE Sm90TileIndex turn_to(const Walk& walk) {
    output.expert.index = walk.expert();
    const Sm90TileIndex first = position.own(walk.first());
    return {first.m + output.expert.index * p.m, first.n};
  }

  // Along K, where each expert's tiles have their own number of steps.
  INGOT_DEVICE void run_along_k(u64 tile_a, u64 tile_b) {
    Sm90AlongKWalk<C, Sums::kFp8 ? kSm90Depth : kSm90Step16> walk(p, block);
    if constexpr (T.pingpong) {
      if (position.group == 1) {
        sums.ring.advance(walk.stretch().steps());
        sums.pass_turn();  // the first tile belongs to the other warpgroup
        walk.advance();
      }
    }
    INGOT_UNROLL_BY(1)
    for (; walk.more(); walk.advance()) {
      const auto stretch = walk.stretch();
      typename Output::Fetched fetched{};  // a sum of nothing is 0, whatever scale_inv the expert has
      const Sm90TileIndex ahead = turn_to(walk);
      if (!stretch.is_empty()) fetched = output.fetch(ahead);
      if constexpr (Epi::kWords != 0) output.prefetch(ahead);
      float d[kWaves][kSums];
      sums.wait_for_turn();
      sums.sum(d, tile_a, tile_b, stretch.steps());
      ptx::opaque(walk.index);  // there are no registers to keep the tile's coordinates in during the mainloop
      const Sm90TileIndex first = turn_to(walk);
      output.share(fetched);
      output.write(d, fetched.rows, first);
      if constexpr (T.pingpong) {
        walk.advance();  // the other warpgroup's tile
        if (walk.more()) sums.ring.advance(walk.stretch().steps());
      }
    }
  }

  INGOT_DEVICE void run_whole(u64 tile_a, u64 tile_b) {
    const u32 steps = sm90_steps(p.k, Sums::kFp8 ? kSm90Depth : kSm90Step16);
    auto walk = sm90_walk<C>(p, block);
    if constexpr (T.pingpong) {
      if (position.group == 1) {
        walk.index += walk.step;
        sums.ring.advance(steps);
        sums.pass_turn();  // the first tile belongs to the other warpgroup
      }
      walk.step *= sm90_consumers(T);
    }
    INGOT_UNROLL_BY(1)
    for (; walk.more(); walk.advance()) {
      if constexpr (C.experts) output.expert = walk.find();
      const Sm90TileIndex first = position.own(walk.first(block.rank));
      const typename Output::Fetched fetched = output.fetch(first);
      if constexpr (Epi::kWords != 0) output.prefetch(first);
      float d[kWaves][kSums];
      sums.wait_for_turn();
      sums.shift = sm90_factor_shift<C>(first);
      sums.sum(d, tile_a, tile_b, steps);
      output.share(fetched);
      output.write(d, fetched.rows, first);
      if constexpr (T.pingpong) sums.ring.advance(steps);  // skip the other warpgroup's stages
    }
  }

  // Stream-K (stream_k.cuh): this block sends its sums of another block's tile to that block, and adds to its own
  // tiles, before their last steps, what other blocks have summed.
  INGOT_DEVICE void run_cut(u64 tile_a, u64 tile_b) {
    const u32 warp = position.group * 4 + position.thread / 32;
    INGOT_UNROLL_BY(1)
    for (Sm90CutWalk<T> walk(p); walk.more(); walk.advance()) {
      const Sm90TileIndex first = position.own(walk.first());
      const StreamKSpan span = walk.span();
      // (With two sets of sums, no register is left to fetch a bias early.)
      typename Output::Fetched fetched{};
      if (walk.owns()) {
        if constexpr (!Sums::kGrouped) fetched = output.fetch(first);
        if constexpr (Epi::kWords != 0) output.prefetch(first);
      }
      u32 stretch = walk.index() + 1;
      const bool adds = walk.owns() && walk.reaches(stretch);
      float d[kWaves][kSums];
      Sums::clear(d);
      const u32 pause = adds ? span.end - p.cut.split.spare : span.end;
      sums.sum(d, tile_a, tile_b, pause - span.begin);
      if (adds) {
        INGOT_UNROLL_BY(1)
        for (; walk.reaches(stretch); ++stretch)
          OthersPart(p.cut, stretch, warp, position.lane).template add_to<kPartVectors>(d, position.lane);
        sums.sum(d, tile_a, tile_b, span.end - pause);
      }
      if (walk.owns()) {
        if constexpr (Sums::kGrouped) fetched = output.fetch(first);
        output.share(fetched);
        output.write(d, fetched.rows, first);
      } else {
        OthersPart(p.cut, walk.index(), warp, position.lane).write(d, position.lane);
      }
    }
  }

  // (64 rows of a tile have as many bytes whether they run along K or across.)
  INGOT_DEVICE void run() {
    constexpr u32 kApart = kSm90Step16 * kSm90Depth;
    const u32 first_row = Sm90Position<T>::kOwnRows ? position.group * 64 : 0;
    const u32 first_column = position.own({0, 0}).n;
    const u64 tile_a =
        ptx::wgmma_descriptor(block.stages + first_row * kSm90Depth) | ptx::wgmma_across(C.across_a ? kApart : 0);
    const u64 tile_b = ptx::wgmma_descriptor(block.stages + (T.m + first_column) * kSm90Depth) |
                       ptx::wgmma_across(C.across_b ? kApart : 0);
    if constexpr (T.stream_k) {
      run_cut(tile_a, tile_b);
    } else if constexpr (C.along_k) {
      run_along_k(tile_a, tile_b);
    } else {
      run_whole(tile_a, tile_b);
    }
    output.end();
  }
};

// The body of a block: it takes tiles from the blockIdx.x-th on, gridDim.x apart.
template <class A, class B, class Out, GemmSm90Config C, class Epi, Sm90Tiling T = C.tiling>
INGOT_DEVICE void sm90_run(const Sm90ParamsOf<C>& all) {
  constexpr u32 kConsumers = sm90_consumers(T);
  constexpr u32 kProducer = kConsumers * 128;
  [[maybe_unused]] constexpr u32 kStep = sizeof(A) == 2 ? kSm90Step16 : kSm90Depth;
  const Sm90GemmParams& p = sm90_gemm_params(all);
  auto block = Sm90Block<C>::make();
  const u32 warpgroup = __shfl_sync(0xffffffffU, threadIdx.x / 128, 0);
  if (threadIdx.x == 0) block.make_barriers(p);
  if (threadIdx.x == 128 && (!C.along_k || p.k != 0)) {
    ptx::prefetch_tensormap(!C.across_a && p.m < T.m ? &p.tail_a : &p.a);
    ptx::prefetch_tensormap(!C.across_b && p.n < T.n ? &p.tail_b : &p.b);
  }
  __syncwarp();
  block.sync_all();
  // All of the above may overlap the end of the previous kernel.
  start_in_turn();
  if constexpr (C.experts) block.experts = sm90_make_expert_table<C>(all);
  write_output_factor<Out>(p.epilogue);
  // Four warpgroups' or three's, these are a multiprocessor's 65536 registers.
  if (warpgroup == kConsumers) {
    ptx::setmaxnreg_dec<kConsumers == 3 ? 32 : 40>();
    if (threadIdx.x == kProducer) {
      if constexpr (C.along_k) {
        sm90_produce_along_k<C, kStep>(p, block);
      } else if constexpr (C.experts) {
        sm90_produce_grouped<C, kStep>(p, block);
      } else if constexpr (sizeof(A) == 2) {
        Sm90Producer16<C>{p, block}.run();
      } else if constexpr (T.stream_k) {
        sm90_produce_cut<C>(p, block);
      } else {
        sm90_produce<C>(p, block);
      }
    } else if constexpr (C.along_k && !has_extents(C.scale_b)) {
      if (threadIdx.x >= sm90_threads(T) - kSm90EdgeThreads) Sm90Edges<C, kStep>(p, block).run();
    } else if constexpr (has_extents(C.scale_b)) {
      if (threadIdx.x / 32 == kProducer / 32 + 1) sm90_load_factors<C>(p, block);
    }
  } else {
    ptx::setmaxnreg_inc<kConsumers == 3 ? 160 : 232>();
    Sm90Consumer<A, B, Out, C, Epi>(p, block, warpgroup).run();
  }
  // No block leaves while another may still send to it or arrive at its barriers.
  __syncwarp();
  block.sync_all();
}
#endif

// Checks the template arguments; a kernel asserts it also where it is compiled for the host.
template <class A, class B, GemmSm90Config C, Sm90Tiling T = C.tiling>
INGOT_HOST_DEVICE constexpr bool sm90_is_valid() {
  static_assert(sm90_has_factors(C.scale_b), "gemm_sm90 has no factors of such a granularity");
  static_assert(sm90_shared_bytes(C) <= kSm90SharedLimit);
  static_assert(T.m % (T.pingpong ? 64 : 128) == 0 || sm90_shares_columns(T) || sm90_consumers(T) == 3);
  static_assert(T.n <= 256 && (sm90_columns(T) % 64 == 0 || (T.n == 160 && !C.across_b && !C.experts && !T.stream_k)));
  static_assert(sm90_cluster_size(T) <= 2);
  static_assert(!T.stream_k || (!T.pingpong && sm90_cluster_size(T) == 1));
  static_assert(!C.experts || (!T.stream_k && !C.across_a && !C.across_b));
  static_assert(!C.along_k || (C.experts && !C.bias && (!has_extents(C.scale_b) || C.scale_b.rows == 1)));
  static_assert(!has_extents(C.scale_b) || (!C.fast_accumulation && sm90_part_columns(T, true) <= 128));
  static_assert(sm90_consumers(T) == 2 || sm90_has_three(C));
  static_assert(sizeof(A) == 1 ? !C.across_a && !C.across_b
                               : is_same<A, B> && C.fast_accumulation && is_tensorwise(C.scale_b));
  return true;
}

// Requires K > 0 and M, N > 0.
template <class A, class B, class Out, GemmSm90Config C, class Epi = PlainEpilogue>
INGOT_KERNEL void INGOT_LAUNCH_BOUNDS(kSm90ThreadsOf<C>, 1)
    gemm_sm90([[maybe_unused]] const __grid_constant__ Sm90GemmParams p) {
  static_assert(sm90_is_valid<A, B, C>());
#if INGOT_ON_DEVICE
  sm90_run<A, B, Out, C, Epi>(p);
#endif
}

}  // namespace ingot
