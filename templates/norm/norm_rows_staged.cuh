// How norm_rows writes the values of rows of 16-bit elements that are too wide for its registers but not for shared
// memory, which can be read and written 8 elements at a time. (Codes alone are written faster by clusters,
// norm_rows_wide.cuh.)
//
// A block takes many rows, one after the other. Each thread has slots in shared memory for its part of two rows: it
// copies the next one while this one is reduced, and reads its elements from there again in each pass. So only the
// thread itself waits for what it has copied. The values take the place of the elements until they are encoded.
//
// The bits are those of rows in registers, whose 512 threads these are.
#pragma once

#include "memory.cuh"
#include "norm/norm.cuh"
#include "norm/norm_row.cuh"
#include "platform.cuh"
#include "reduce.cuh"
#include "shared.cuh"
#include "vec8.cuh"

namespace ingot {

struct NormRowsStagedLaunch {
  static constexpr u32 kThreads = NormRowsLaunch::kMaxThreads;
  static constexpr u32 kColsPerStep = kThreads * kVec8;  // from one vec8 of a thread to the next
  static constexpr u32 kStepBytes = kThreads * 16;       // from one of its slots to the next
  static constexpr i64 kMinCols = NormRowsLaunch::kMaxCols + 1;
  static constexpr i64 kMaxCols = 57344;
  static constexpr u32 kRows = 2;
  // The bytes of the slots for one row.
  INGOT_HOST_DEVICE static constexpr u32 row_bytes(i64 cols) {
    return static_cast<u32>(ceil_div(cols, i64{kColsPerStep})) * kStepBytes;
  }
  INGOT_HOST_DEVICE static constexpr u32 shared_bytes(i64 cols) { return kRows * row_bytes(cols); }
  // How many blocks share a multiprocessor, if one block can have this much shared memory.
  INGOT_HOST_DEVICE static constexpr u32 blocks(i64 cols, u32 block_shared) {
    const u32 bytes = shared_bytes(cols);
    return bytes <= dynamic_shared_room(block_shared, 2) ? 2 : bytes <= dynamic_shared_room(block_shared, 1) ? 1 : 0;
  }
  // Are they faster than clusters? Two are, and one is if the norm multiplies by no gamma.
  INGOT_HOST_DEVICE static constexpr bool holds(i64 cols, bool affine, u32 block_shared) {
    if (cols < kMinCols || cols > kMaxCols) return false;
    return blocks(cols, block_shared) >= (affine ? 2U : 1U);
  }
};

template <class In, class Kind, class Codes, NormRowsConfig C>
struct NormRowsStaged {
  using Row = NormRow<In, Kind, Codes, C>;
  using Launch = NormRowsStagedLaunch;

  const NormRowsParams& p;
  NormRowsShared& shared;

  // body(column, slot) for each vec8 of the thread; `slots`: its first slot.
  template <class Body>
  INGOT_DEVICE void for_each_vec8(u32 slots, const Body& body) const {
    INGOT_UNROLL_BY(4)
    for (u32 col = threadIdx.x * kVec8, slot = slots; col < static_cast<u32>(p.cols);
         col += Launch::kColsPerStep, slot += Launch::kStepBytes) {
      body(col, slot);
    }
  }
  INGOT_DEVICE static Vec8<In> load(u32 slot) { return {{{load_shared16(slot)}}}; }

  // Begins to copy the thread's part of a row, if there is one.
  INGOT_DEVICE void copy_row(i64 row, u32 slots) const {
    const In* const input = static_cast<const In*>(p.input) + row * p.input_stride;
    if (row < p.rows) for_each_vec8(slots, [&](u32 col, u32 slot) { copy_async<16>(slot, input + col, 16); });
    commit_copies();
  }

  INGOT_DEVICE void take_statistics(Row& r, u32 slots, float (&warp_sums)[2][kMaxWarps]) const {
    if constexpr (Row::kSubtractsMean) {
      float sum = 0.0F;
      for_each_vec8(slots, [&](u32, u32 slot) {
        float x[kVec8];
        unpack(load(slot), x);
        sum = sum + vec8_sum(x);
      });
      r.take_sum(group_sum(sum, Launch::kThreads, warp_sums[0]));
    }
    float squares = 0.0F;
    for_each_vec8(slots, [&](u32, u32 slot) {
      float x[kVec8];
      unpack(load(slot), x);
      squares = squares + r.sum_of_squares(x, kVec8);
    });
    r.take_squares(group_sum(squares, Launch::kThreads, warp_sums[1]));
  }

  INGOT_DEVICE void write(Row& r, u32 slots) const {
    Vec8sMaximum<In> maximum;
    for_each_vec8(slots, [&](u32 col, u32 slot) {
      float x[kVec8];
      unpack(load(slot), x);
      const Vec8<In> values = r.values(x, r.affine([&](const In* vector) { return load_vec8_again(vector + col); }));
      store_vec8(r.result() + col, values);
      if constexpr (Row::kWritesCodes) {
        maximum.take(values);
        store_shared16(slot, values.vectors[0].bits);
      }
    });
    if constexpr (Row::kWritesCodes) {
      r.take_maximum(group_max_once(maximum.bits(), Launch::kThreads, shared.warp_maxima));
      for_each_vec8(slots, [&](u32 col, u32 slot) { store_streaming(r.codes() + col, r.quantized(load(slot))); });
    }
  }

  // Block i of n takes every n-th row, beginning with row i.
  INGOT_DEVICE void all_rows() const {
    const u32 first = shared_memory() + threadIdx.x * 16;
    const u32 row_bytes = Launch::row_bytes(p.cols);
    copy_row(blockIdx.x, first);
    INGOT_UNROLL_BY(1)
    for (u32 turn = 0; i64{turn} * gridDim.x + blockIdx.x < p.rows; ++turn) {
      const i64 row = i64{turn} * gridDim.x + blockIdx.x;
      Row r{p, row, threadIdx.x, Launch::kThreads};
      const u32 slots = first + turn % 2 * row_bytes;
      wait_for_copies<0>();
      copy_row(row + gridDim.x, first + (turn + 1) % 2 * row_bytes);
      take_statistics(r, slots, shared.warp_sums[turn % 2]);
      write(r, slots);
    }
  }
};

}  // namespace ingot
