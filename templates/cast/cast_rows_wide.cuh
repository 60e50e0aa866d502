// The dynamic rowwise cast (cast_rows.cuh) of rows that can be read and written 8 elements at a time and are wide
// enough for one block per row. It gives the same bits, and reads each input byte once.
//
// Until the scale is known, a row stays in the registers of its block, if they hold it; otherwise in shared memory, of
// one block or of a cluster's blocks. An expression's inputs are fetched ahead there, before the values in front of
// them are computed: the wait for memory and the instructions then overlap in every warp.
#pragma once

#include "cast/cast_rows.cuh"
#include "cast/source.cuh"
#include "cluster.cuh"
#include "memory.cuh"
#include "platform.cuh"
#include "reduce.cuh"
#include "scaling.cuh"
#include "shared.cuh"
#include "vec8.cuh"

namespace ingot {

// The rows of a cast, and what of the GPU decides how they are spread over blocks.
struct CastRowsWideCase {
  i64 rows, cols;
  u64 value_bytes;
  bool computed = false;     // by an expression
  bool many_inputs = false;  // more than one in addition to x: its kernel may take 128 registers (Source::kMany)
  u32 block_shared = 0;      // the most shared memory that one block can have
  u32 multiprocessors = 1;
  bool clusters = false;  // may blocks form them?
};
struct CastRowsWideShape {
  u32 blocks;   // that share a row; 0: rows have no room
  u32 threads;  // of a block
  u32 shared_bytes;
};

// The slots come after it and begin at a multiple of 128 bytes: copies to slots that did not took a tenth more time.
struct alignas(128) CastRowsWideShared {
  ClusterWords<kMaxClusterWarps> maxima;  // of warps
};

struct CastRowsWideLaunch {
  static constexpr u32 kMaxThreads = CastRowsLaunch::kMaxThreads;
  INGOT_HOST_DEVICE static constexpr i64 cols_of(u32 threads, u64 value_bytes) {
    return i64{threads} * CastRowsLaunch::vec8s(value_bytes) * kVec8;
  }
  // Narrower rows share blocks in cast_rows. From here on, only the last of a thread's vec8s in registers may be
  // outside the row.
  INGOT_HOST_DEVICE static constexpr i64 min_cols(u64 value_bytes) { return cols_of(96, value_bytes) + 1; }
  // The widest rows that stay in registers.
  INGOT_HOST_DEVICE static constexpr i64 kept_cols(u64 value_bytes) { return cols_of(kMaxThreads, value_bytes); }
  // The shared memory of a block that has a slot for each vec8 of its share of a row.
  INGOT_HOST_DEVICE static constexpr i64 shared_bytes(i64 cols, u32 blocks, u32 threads, u64 value_bytes) {
    const i64 steps = ceil_div(cols, i64{blocks} * threads * kVec8);
    return static_cast<i64>(sizeof(CastRowsWideShared)) + steps * threads * kVec8 * static_cast<i64>(value_bytes);
  }
  // A multiprocessor has room for four blocks, or three; two are enough for copies, and for an expression only where
  // clusters of more have no room either. Where there are fewer rows than multiprocessors, more blocks share one.
  INGOT_HOST_DEVICE static constexpr CastRowsWideShape shape(const CastRowsWideCase& of) {
    if (of.cols <= kept_cols(of.value_bytes)) {
      const u32 threads = static_cast<u32>(ceil_div(of.cols, cols_of(32, of.value_bytes))) * 32;
      return {1, threads, sizeof(CastRowsWideShared)};
    }
    const u32 most = of.clusters ? kMaxClusterBlocks : 1;
    u32 fewest = 1;
    while (fewest < most && of.rows * fewest * 2 <= of.multiprocessors) fewest *= 2;
    const u32 threads_of_three = of.many_inputs || of.value_bytes == 4 ? 256 : 384;  // as registers allow
    for (u32 least = of.computed ? 3 : 2; least >= 2; --least) {
      for (u32 blocks = fewest; blocks <= most; blocks *= 2) {
        for (u32 at_once = 4; at_once >= least; --at_once) {
          const u32 threads = at_once == 4 ? 256 : at_once == 3 ? threads_of_three : kMaxThreads;
          const i64 bytes = shared_bytes(of.cols, blocks, threads, of.value_bytes);
          if (bytes > dynamic_shared_room(of.block_shared, at_once)) continue;
          return {blocks, threads, static_cast<u32>(bytes)};
        }
      }
    }
    return {};
  }
};

template <class Source, Fp8Format Out, CastRowsConfig C>
struct CastRowsWide {
  using In = typename Source::In;
  using Value = typename Source::Value;
  static constexpr u32 kKept = CastRowsLaunch::vec8s(sizeof(Value));
  // How many vec8s' inputs a thread has fetched when it computes one.
  static constexpr u32 kAhead = 2;

  const CastRowsParams& p;

  INGOT_DEVICE u32 cols() const { return static_cast<u32>(p.source.cols); }
  INGOT_DEVICE static ClusterPlace place() {
    if constexpr (kHasClusters) {
      return ClusterPlace::here();
    } else {
      return {blockIdx.x, 1, 0};
    }
  }
  INGOT_DEVICE static CastRowsWideShared& shared() { return dynamic_shared_as<CastRowsWideShared>(); }

  // The largest of all threads' maxima.
  INGOT_DEVICE static u32 block_maximum(u32 maximum) { return block_max(maximum, shared().maxima.words); }
  INGOT_DEVICE static u32 row_maximum(u32 maximum) {
    if constexpr (kHasClusters) {
      if (place().blocks > 1) {
        __syncwarp();
        cluster_started();
        return cluster_max(maximum, shared().maxima, 0);
      }
    }
    return block_maximum(maximum);
  }

  // The row's scale. One thread writes its factor.
  INGOT_DEVICE float scale(u32 maximum) const {
    const float scale = scale_from_amax<Out>(amax_from_bits(maximum), p.pow2);
    const ClusterPlace at = place();
    if (at.thread() == 0) {
      p.factors[at.index] = factor_from_dynamic_scale(scale);
      if (p.maxima != nullptr) p.maxima[at.index] = amax_from_bits(maximum);
    }
    return scale;
  }

  INGOT_DEVICE void store(i64 row, u32 col, const Vec8<Value>& values, U32x2 codes) const {
    store_streaming(static_cast<Out*>(p.codes) + row * p.codes_stride + col, codes);
    if constexpr (C.result) store_vec8<In>(static_cast<In*>(p.result) + row * p.result_stride + col, values);
  }

  // The inputs of a vec8.
  struct Inputs {
    typename Source::Raw raw;
    typename Source::RawColumns columns;

    INGOT_DEVICE static Inputs of(const SourceParams& p, const typename Source::Pointers& from, u32 col) {
      return {Source::fetch(p, from, 0, col), Source::fetch_columns(from, col)};
    }
    INGOT_DEVICE Vec8<Value> values() const { return Source::values(raw, columns); }
  };

  INGOT_DEVICE void row_in_registers() const {
    // How many are fetched before the first is computed. There are not enough registers for all of an expression's.
    constexpr u32 kMost = Source::kFused && kDeviceArch != 900 ? min_of(3U, kKept) : kKept;
    constexpr u32 kWindow = min_of(kMost, vec8s_in_flight<Source>(Source::kMatrices + Source::kColumns));
    constexpr u32 kLast = kKept - 1;
    const auto col_of = [](u32 i) { return (i * blockDim.x + threadIdx.x) * kVec8; };
    const auto is_inside = [&](u32 i) { return i != kLast || col_of(i) < cols(); };
    Vec8<Value> values[kKept];
    u32 maximum = 0;
    {
      const typename Source::Pointers from = Source::pointers_at(p.source, place().index, 0);
      Inputs inputs[kKept];
      // Without an expression the last comes first, so that the maximum is not taken before its branch.
      constexpr u32 kFirst = Source::kFused ? 0 : kLast;
      const auto in_turn = [](u32 i) { return (i + kFirst) % kKept; };
      INGOT_UNROLL
      for (u32 i = 0; i < kKept + kWindow; ++i) {
        const u32 ready = in_turn(i - min_of(i, kWindow));
        if (i >= kWindow && is_inside(ready)) {
          values[ready] = inputs[ready].values();
          maximum = max_of(maximum, amax_bits(values[ready]));
        }
        const u32 next = in_turn(i);
        if (i < kKept && is_inside(next)) inputs[next] = Inputs::of(p.source, from, col_of(next));
      }
    }
    const float s = scale(block_maximum(maximum));
    const i64 row = place().index;
    INGOT_UNROLL
    for (u32 i = 0; i < kKept; ++i) {
      if (is_inside(i)) store(row, col_of(i), values[i], quantize<Out>(values[i], [&](u32) { return s; }));
    }
  }

  // A thread's slots in shared memory: one for each of its vec8s, the next slot_step() further on.
  static constexpr u32 kVectors = Vec8<Value>::kVectors;
  INGOT_DEVICE static u32 first_slot() {
    return shared_memory() + static_cast<u32>(sizeof(CastRowsWideShared)) + threadIdx.x * 16;
  }
  INGOT_DEVICE static u32 slot_step() { return blockDim.x * 16 * kVectors; }
  INGOT_DEVICE static u32 slot_vector(u32 slot, u32 v) { return slot + v * blockDim.x * 16; }
  INGOT_DEVICE static void put(u32 slot, const Vec8<Value>& values) {
    INGOT_UNROLL
    for (u32 v = 0; v < kVectors; ++v) store_shared16(slot_vector(slot, v), values.vectors[v].bits);
  }
  INGOT_DEVICE static Vec8<Value> get(u32 slot) {
    Vec8<Value> values;
    INGOT_UNROLL
    for (u32 v = 0; v < kVectors; ++v) values.vectors[v].bits = load_shared16(slot_vector(slot, v));
    return values;
  }

  // body(column, slot) for each of the thread's vec8s in the row, which are `step` columns apart.
  template <class Body>
  INGOT_DEVICE void for_each_vec8(u32 step, const Body& body) const {
    u32 slot = first_slot();
    INGOT_UNROLL_BY(4)
    for (u32 col = place().thread() * kVec8; col < cols(); col += step, slot += slot_step()) body(col, slot);
  }

  // copy_elements() and compute_values() put the row's values into the slots, and return the maximum of the thread's
  // own. Elements are copied all at once. An expression's inputs are fetched while the values before them are computed.
  INGOT_DEVICE u32 copy_elements() const {
    const u32 step = place().threads() * kVec8;
    {
      const i64 from = Source::row_of(p.source, place().index);
      const In* const row = static_cast<const In*>(p.source.input) + from * p.source.input_stride;
      for_each_vec8(step, [&](u32 col, u32 slot) {
        INGOT_UNROLL
        for (u32 v = 0; v < kVectors; ++v) copy_async<16>(slot_vector(slot, v), row + col + v * kPerVector<In>, 16);
      });
    }
    commit_copies();
    wait_for_copies<0>();
    u32 maximum = 0;
    for_each_vec8(step, [&](u32, u32 slot) { maximum = max_of(maximum, amax_bits(get(slot))); });
    return maximum;
  }
  INGOT_DEVICE u32 compute_values() const {
    const u32 step = place().threads() * kVec8;
    const typename Source::Pointers from = Source::pointers_at(p.source, place().index, 0);
    const auto fetch = [&](u32 col, Inputs& inputs) {
      if (col < cols()) inputs = Inputs::of(p.source, from, col);
    };
    u32 maximum = 0;
    u32 slot = first_slot();
    Inputs ring[kAhead];
    u32 col = place().thread() * kVec8;
    INGOT_UNROLL
    for (u32 i = 0; i < kAhead; ++i) fetch(col + i * step, ring[i]);
    INGOT_UNROLL_BY(1)
    while (true) {
      INGOT_UNROLL
      for (u32 i = 0; i < kAhead; ++i, col += step, slot += slot_step()) {
        if (col >= cols()) return maximum;
        const Vec8<Value> values = ring[i].values();
        fetch(col + kAhead * step, ring[i]);
        maximum = max_of(maximum, amax_bits(values));
        put(slot, values);
      }
    }
  }

  INGOT_DEVICE void row_in_shared_memory() const {
    u32 maximum = 0;
    if constexpr (Source::kFused) {
      maximum = compute_values();
    } else {
      maximum = copy_elements();
    }
    const u32 step = place().threads() * kVec8;
    const float s = scale(row_maximum(maximum));
    const i64 row = place().index;
    for_each_vec8(step, [&](u32 col, u32 slot) {
      const Vec8<Value> values = get(slot);
      store(row, col, values, quantize<Out>(values, [&](u32) { return s; }));
    });
  }
};

// What the kernel asks ptxas for: 40 registers per thread for 16-bit elements, 48 for an expression of them (56 on
// targets where ptxas spilled), 128 if Source::kMany, and 64 for everything else. No block is launched with more than
// 512 threads; kThreads is larger only because 640 x 2 and 576 x 2 threads per SM leave 48 and 56 registers to each.
template <class Source, Fp8Format Out>
struct CastRowsWideBounds {
  static constexpr bool kFewRegisters =
      !Source::kMany && sizeof(typename Source::Value) == 2 && has_hardware_encode<Out>();
  static constexpr u32 kThreads =
      kFewRegisters && Source::kFused ? (kDeviceArch == 900 ? 640 : 576) : CastRowsWideLaunch::kMaxThreads;
  static constexpr u32 kBlocks = Source::kMany ? 1 : kFewRegisters && !Source::kFused ? 3 : 2;
};

// Params as for cast_rows; threads_log2 is not read. Block or cluster i of the grid takes row i.
template <class Source, Fp8Format Out, CastRowsConfig C>
INGOT_KERNEL void INGOT_LAUNCH_BOUNDS((CastRowsWideBounds<Source, Out>::kThreads),
                                      (CastRowsWideBounds<Source, Out>::kBlocks))
    cast_rows_wide(const __grid_constant__ CastRowsParams p) {
  const CastRowsWide<Source, Out, C> row{p};
  if constexpr (kHasClusters) {
    if (row.place().blocks > 1) cluster_start_with(row.shared().maxima);
  }
  start_in_turn();
  if (p.source.cols <= CastRowsWideLaunch::kept_cols(sizeof(typename Source::Value))) {
    row.row_in_registers();
  } else {
    row.row_in_shared_memory();
  }
}

}  // namespace ingot
