// The cast to FP8 in tiles: codes[r, c] = encode(saturate(value[r, c] * scale)) and the same transposed, each with its
// own scales or both with the same; factors = 1 / scale; on demand the values themselves and their column sums.
//
// It reads each input byte once and writes each output byte once. Scales of whole rows, columns or the tensor come from
// an earlier pass (amax.cuh, cast_rows.cuh) or from the caller; scales of groups and blocks are computed from the tile
// itself. With given scales, the kernel records the maxima from which they should have been computed.
//
// A block takes a tile of 128 x 128, or of 64 x 128 if the matrix is small (CastTilesLaunch::rows_log2()), the last
// tile first, because the L2 still holds what the earlier pass read last; tiles follow each other along the rows, or
// down the columns (first_tile_down()). A thread holds 8 rows x 8 columns in registers, encodes them and stores the
// codes 8 bytes at a time. It transposes bytes in registers and puts 8 bytes of each of its columns in shared memory,
// from where the transposed tile is stored 16 bytes at a time. Codes are stored with a streaming hint, because the
// input makes better use of the L2. A tile whose rows cannot be read 16 bytes at a time is loaded through shared
// memory, element by element; threads skip what is past the matrix's edges.
//
// Kernels with CastConfig::unaligned are for matrices whose rows, or whose transposed rows, do not start at multiples
// of 16 bytes. They load such rows element by element into registers, all of a batch at once, and store transposed rows
// wherever they start (staged_columns.cuh). A tile entirely inside the matrix takes fewer instructions there,
// and most tiles fewer barriers. cast_whole is such a kernel for every pitch.
//
// cast_tile_plan.cuh decides the order of the steps; cast_tile_values.cuh, cast_tile_scales.cuh, cast_tile_codes.cuh
// and cast_tile_results.cuh have them.
#pragma once

#include "cast/cast_output.cuh"
#include "cast/cast_tile_codes.cuh"
#include "cast/cast_tile_plan.cuh"
#include "cast/cast_tile_results.cuh"
#include "cast/cast_tile_scales.cuh"
#include "cast/cast_tile_shared.cuh"
#include "cast/cast_tile_values.cuh"
#include "cast/source.cuh"
#include "cast/staged_columns.cuh"
#include "granularity.cuh"
#include "memory.cuh"
#include "platform.cuh"
#include "vec8.cuh"

namespace ingot {

// For a cast that waits for no other block: its scales come from an earlier pass, or it needs none.
struct NoBarrier {};

// Casts one tile; all threads of the block call it. After an earlier pass that did not write them itself, but only
// then, the elements may be read before that pass has ended, because it waited for whoever wrote them; a launch
// without that pass may not overlap (CastPlan::waits_for_end). With a Barrier, the tiles themselves are that pass:
// each raises the maxima, arrives at the barrier, and waits for the others. If not kStores, the transposed codes of
// an `unaligned` kernel stay staged in shared.bytes.
template <class Source, Fp8Format Out, CastConfig C, class Barrier = NoBarrier, bool kStores = true>
INGOT_DEVICE void cast_tile(const CastTilesParams& p, u32 tile, CastTilesShared& shared,
                            [[maybe_unused]] Barrier barrier = {}) {
  using Value = typename Source::Value;
  static_assert(has_cast_scales(C), "cast_tile() has no scales of such a granularity");
  constexpr bool kSyncs = !is_same<Barrier, NoBarrier>;
  constexpr CastTilePlan kPlan = cast_tile_plan<Source, Out, C, kSyncs, kStores>();
  static_assert(kStores || !kPlan.sums_apart, "a block's two tiles would share these sums");
  static_assert(!(kPlan.stores_each_row && kPlan.maximum_apart), "the maximum is not known with the codes of each row");
  constexpr bool kCodes = C.codes.written;
  constexpr bool kTransposed = C.transposed.written;
  constexpr bool kGiven = C.given_scales;
  constexpr bool kTwo = has_two_scales(C);
  constexpr Granularity kScale = first_output(C).scale;
  constexpr Granularity kTransposedScale = C.transposed.scale;
  const CastOutput& output = kCodes ? p.codes : p.transposed;
  const u32 rows_log2 = rows_log2_of<C, kSyncs>(p);
  const TilePosition at = TilePosition::of(p.source, tile, rows_log2, kPlan.skips_idle);

  // The values, and given scales.
  Vec8<Value> values[kRowsPerRun] = {};
  const auto load = [&] {
    if constexpr (C.unaligned) {
      load_tile_anywhere<Source, kPlan.rows_in_flight, kPlan.skips_idle>(p.source, at, values);
    } else {
      load_tile<Source, kPlan.by_halves>(p.source, at, shared, values);
    }
  };
  if constexpr (kPlan.after_pass && !kSyncs && !C.kept) {
    load();
    start_in_turn();
  } else {
    if constexpr (kCodes && kTransposed && !Source::kFused && !Source::kGathered && !C.kept) {
      C.unaligned ? prefetch_tile_by_line<Source>(p.source, at) : prefetch_tile<Source>(p.source, at);
    }
    start_in_turn();
  }
  ThreadScales<kScale> scales;
  [[maybe_unused]] ThreadScales<kTransposedScale> transposed_scales;
  if constexpr (kGiven) scales = given_scales<kScale>(output, p.source, at);
  if constexpr (kGiven && kTwo) {
    transposed_scales = given_scales<kTransposedScale>(p.transposed, p.source, at);
  }
  if constexpr (!kPlan.after_pass || kSyncs || C.kept) load();

  // What needs the values alone.
  if constexpr (kSyncs) {
    if constexpr (from_pass(first_output(C))) {
      record(output, p.source, at, PendingMaxima<kScale, Value>::of(values), shared);
    }
    if constexpr (kTwo && from_pass(C.transposed)) {
      record(p.transposed, p.source, at, PendingMaxima<kTransposedScale, Value>::of(values), shared);
    }
    barrier.arrive();
  }
  if constexpr (C.result) store_result<typename Source::In>(p, at, values);
  if constexpr (C.sum && !kPlan.sums_apart) sum_columns(p, at, shared, values);
  if constexpr (kSyncs) barrier.wait();

  // Codes with the first scales.
  if constexpr (!kGiven) {
    constexpr bool kLast = C.unaligned && !kTwo;
    scales = dynamic_scales<Source, kScale, Out, kLast, kPlan.lanes_anew>(output, p, at, values, shared);
  }
  [[maybe_unused]] PendingMaxima<kScale, Value> maxima;
  U32x2 codes[kRowsPerRun] = {};
  const bool idle = kPlan.skips_idle && at.idle();
  [[maybe_unused]] u32 largest = 0;
  [[maybe_unused]] float sums[kVec8] = {};
  if constexpr (C.unaligned) {
    if constexpr (kGiven && !kPlan.stores_each_row) largest = thread_maximum_of_words(values);
    if constexpr (kPlan.forgets && !kTwo) forget_values(values);
    if constexpr (kGiven && !kPlan.maximum_apart) maxima = PendingMaxima<kScale, Value>::of(values);
    if constexpr (kPlan.stores_each_row) {
      if (!idle) quantize_tile<Out, kCodes, kGiven>(p.codes, at, values, scales, codes);
      INGOT_UNROLL
      for (u32 r = 0; kPlan.sums_apart && r < kRowsPerRun; ++r) add_row(values[r], sums);
    } else {
      if (!idle) quantize_and_sum<Out, kGiven, kPlan.sums_apart>(values, largest, scales, codes, sums);
      if (kCodes && !idle) store_codes<kPlan.stores_words>(p.codes, at, codes);
    }
  } else {
    if constexpr (kGiven) maxima = PendingMaxima<kScale, Value>::of(values);
    if (!idle) quantize_tile<Out, kCodes, kGiven>(p.codes, at, values, scales, codes);
  }
  if constexpr (kGiven && !kPlan.maximum_apart) record(output, p.source, at, maxima, shared);

  // Transposed codes with separate scales.
  if constexpr (kTwo) {
    if constexpr (kPlan.forgets) forget_values(values);
    if constexpr (kGiven) {
      record(p.transposed, p.source, at, PendingMaxima<kTransposedScale, Value>::of(values), shared);
    } else {
      transposed_scales =
          dynamic_scales<Source, kTransposedScale, Out, C.unaligned>(p.transposed, p, at, values, shared);
    }
    if constexpr (C.unaligned && !(kPlan.stores_each_row && kGiven)) {
      [[maybe_unused]] float no_sums[kVec8];
      if (!idle) quantize_and_sum<Out, kGiven, false>(values, largest, transposed_scales, codes, no_sums);
    } else {
      if (!idle) quantize_tile<Out, false, kGiven>(p.transposed, at, values, transposed_scales, codes);
    }
  }

  if constexpr (C.slots) {
    INGOT_UNROLL
    for (u32 r = 0; r < kRowsPerRun; ++r) {
      if (at.row + r >= at.rows) codes[r] = {};
    }
  }

  // Warp 0 asks about the maxima of the first scales and clears them, warp 1 those of the second.
  [[maybe_unused]] bool last = false;
  if ((kPlan.reads_first && output.readers != nullptr) || (kPlan.reads_second && p.transposed.readers != nullptr)) {
    __syncthreads();
    if constexpr (kPlan.reads_first) {
      if (threadIdx.x == 0) last = is_last_reader<kScale>(output, p.source, at);
    }
    if constexpr (kPlan.reads_second) {
      if (threadIdx.x == 32) last = is_last_reader<kTransposedScale>(p.transposed, p.source, at);
    }
  }

  // What goes through shared memory on its way out.
  if constexpr (kPlan.maximum_apart) put_warp_maximum(largest, shared);
  [[maybe_unused]] const RunSums runs = RunSums::apart<kPlan.sums_apart>();
  if constexpr (kPlan.sums_apart) runs.put(at, sums);
  if constexpr (kTransposed && C.unaligned) stage_transposed<true>(at, codes, shared);
  if constexpr (kPlan.sums_apart) {
    if constexpr (!kTransposed) __syncthreads();
    runs.store_totals(p, at);
  }
  if constexpr (kPlan.maximum_apart && kPlan.place_anew) {
    u32 same_tile = tile;
    hide(same_tile);
    record_warp_maxima<kScale>(output, p.source, TilePosition::of(p.source, same_tile, rows_log2), shared);
  } else if constexpr (kPlan.maximum_apart) {
    record_warp_maxima<kScale>(output, p.source, at, shared);
  }
  if constexpr (kTransposed && C.unaligned) {
    if constexpr (kStores) StagedColumns::of(p.transposed, at, at.rows, &shared).store();
  }
  if constexpr (kTransposed && C.slots) {
    TilePosition slot = at;
    slot.rows = static_cast<u32>(CastTilesLaunch::kTile);
    store_transposed(p.transposed, slot, codes, shared);
  } else if constexpr (kTransposed && !C.unaligned) {
    store_transposed(p.transposed, at, codes, shared);
  }
  if constexpr (kPlan.reads_first) {
    if (threadIdx.x / 32 == 0) clear_if_last<kScale>(output, p.source, at, last);
  }
  if constexpr (kPlan.reads_second) {
    if (threadIdx.x / 32 == 1) clear_if_last<kTransposedScale>(p.transposed, p.source, at, last);
  }
}

// The first tile of a block whose transposed rows may start anywhere. From sm_90 on (earlier, ptxas has no registers
// left for it) such blocks follow each other down the columns: where the transposed codes of two blocks meet within a
// sector of 32 bytes, both run at the same time, and the L2 has the whole sector before it goes to memory.
INGOT_DEVICE u32 first_tile_down(u32 block, u32 tiles_per_block, u32 across) {
  if constexpr (kDeviceArch != 0 && kDeviceArch < 900)
    return block / across * tiles_per_block * across + block % across;
  const u32 blocks_down = gridDim.x / across;
  return block % blocks_down * tiles_per_block * across + block / blocks_down;
}

template <class Source, Fp8Format Out, CastConfig C>
INGOT_KERNEL void INGOT_LAUNCH_BOUNDS(CastTilesLaunch::kThreads, (cast_tiles_residency<Source, Out, C>()))
    cast_tiles(const __grid_constant__ CastTilesParams p) {
  const u32 block = gridDim.x - 1 - blockIdx.x;
  const u32 across = static_cast<u32>(CastTilesLaunch::tiles_along(p.source.cols));
  if constexpr (CastTilesLaunch::takes_two(Source::kFused, C.unaligned && C.transposed.written, C.kept && C.sum)) {
    __shared__ CastTilesShared shared[CastTilesLaunch::kMaxTilesPerBlock];
    u32 first = first_tile_down(block, p.tiles_per_block, across);
    const u32 rows_log2 = rows_log2_of<C>(p);
    TilePosition at = TilePosition::of(p.source, first, rows_log2);
    const u32 rows = static_cast<u32>(min_of(i64{p.tiles_per_block} << rows_log2, p.source.rows - at.first_row));
    INGOT_UNROLL_BY(1)
    for (u32 i = 0; i < p.tiles_per_block && (i == 0 || rows > CastTilesLaunch::kTile); ++i) {
      cast_tile<Source, Out, C, NoBarrier, false>(p, first + i * across, shared[i]);
    }
    if constexpr (finds_first_tile_anew<Source, Out, C>()) {
      hide(first);
      at = TilePosition::of(p.source, first, rows_log2);
    }
    StagedColumns::of(p.transposed, at, rows, shared).store();
  } else {
    __shared__ CastTilesShared shared;
    u32 tile = block;
    if constexpr (C.unaligned && C.transposed.written) {
      tile = first_tile_down(block, 1, across);
      if constexpr (kDeviceArch >= 900) hide(tile);  // ptxas has no registers left for what it was computed from
    }
    cast_tile<Source, Out, C>(p, tile, shared);
  }
}

}  // namespace ingot
