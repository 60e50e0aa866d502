// sum[e][j] = sum over the rows r of expert e of x[r, j]: the gradients of experts' biases. Rows are those of expert 0,
// then of expert 1, and so on; device memory says where each expert's end. An index may say which row of x each is.
//
// The order of summation is fixed, so that the CPU reference gives the same bits: an expert's blocks of 128 rows, which
// begin with its first row, each sum their rows in ascending order in f32, starting from 0; the blocks' sums are added
// in ascending order in f32, starting from 0; from_float<Out> rounds the total once.
//
// It takes two launches, as column_sum.cuh: a block of the first sums the rows of a slot (expert_slots.cuh), of a strip
// of columns; a thread of the second adds up a column of an expert's slots.
#pragma once

#include "cast/column_sum.cuh"
#include "cast/expert_rows.cuh"
#include "expert_slots.cuh"
#include "memory.cuh"
#include "numerics.cuh"
#include "platform.cuh"

namespace ingot {

struct ColumnSumExpertsParams {
  const void* input;  // In[input_rows, cols]
  i64 cols;
  i64 input_stride;  // elements
  const i32* index;  // null, or [experts.rows]
  i64 last_row;      // of the input: rows beyond are this one
  ExpertRowsParams experts;
  float* partials;  // [slots, cols], dense
};

struct ColumnSumExpertsFinishParams {
  const float* partials;
  i64 cols;
  ExpertRowsParams experts;
  void* sum;  // Out[experts, cols], dense
};

struct ColumnSumExpertsLaunch {
  static constexpr u32 kThreads = ColumnSumPartialsLaunch::kThreads;
  static constexpr u32 kFinishThreads = 128;
  INGOT_HOST_DEVICE static constexpr i64 grid(i64 rows, i64 cols, i64 experts, i64 input_bytes) {
    return ColumnSumPartialsLaunch::strips(cols, input_bytes) * ExpertSlots::count(rows, experts);
  }
  INGOT_HOST_DEVICE static constexpr i64 finish_grid(i64 cols, i64 experts) {
    return ceil_div(cols, i64{kFinishThreads}) * experts;
  }
};

template <HighPrecision In>
INGOT_KERNEL void INGOT_LAUNCH_BOUNDS(ColumnSumExpertsLaunch::kThreads, 8)
    column_sum_experts_partials(const __grid_constant__ ColumnSumExpertsParams p) {
  using Launch = ColumnSumPartialsLaunch;
  constexpr u32 kWidth = kPerVector<In>;
  __shared__ SlotRows at;
  start_in_turn();
  const u32 strips = static_cast<u32>(Launch::strips(p.cols, sizeof(In)));
  const i64 slot = blockIdx.x / strips;
  find_slot_rows(p.experts, slot, ColumnSumExpertsLaunch::kThreads, at);
  if (at.expert >= p.experts.experts) return;
  const auto row_at = [&](u32 row) {
    const i64 of = at.first + row;
    return static_cast<const In*>(p.input) +
           (p.index == nullptr ? of : min_of(i64{static_cast<u32>(p.index[of])}, p.last_row)) * p.input_stride;
  };
  const i64 first_col = blockIdx.x % strips * Launch::cols_per_block(sizeof(In));
  float* const partials = p.partials + slot * p.cols;
  const i64 col = first_col + i64{threadIdx.x} * kWidth;
  if (vector_aligned<In>(p.input, p.input_stride) && first_col + Launch::cols_per_block(sizeof(In)) <= p.cols) {
    float sums[kWidth] = {};
    INGOT_UNROLL_BY(8)
    for (u32 row = 0; row < at.count; ++row) {
      float values[kWidth];
      unpack(load_vector(row_at(row) + col), values);
      INGOT_UNROLL
      for (u32 i = 0; i < kWidth; ++i) sums[i] = sums[i] + values[i];
    }
    INGOT_UNROLL
    for (u32 i = 0; i < kWidth; ++i) partials[col + i] = sums[i];
    return;
  }
  INGOT_UNROLL_BY(1)
  for (i64 c = first_col + threadIdx.x; c < min_of(p.cols, first_col + Launch::cols_per_block(sizeof(In)));
       c += ColumnSumExpertsLaunch::kThreads) {
    float sum = 0.0F;
    INGOT_UNROLL_BY(8)
    for (u32 row = 0; row < at.count; ++row) sum = sum + to_float(row_at(row)[c]);
    partials[c] = sum;
  }
}

template <HighPrecision Out>
INGOT_KERNEL void INGOT_LAUNCH_BOUNDS(ColumnSumExpertsLaunch::kFinishThreads, 8)
    column_sum_experts_finish(const __grid_constant__ ColumnSumExpertsFinishParams p) {
  start_in_turn();
  const u32 strips = static_cast<u32>(ceil_div(p.cols, i64{ColumnSumExpertsLaunch::kFinishThreads}));
  const u32 expert = blockIdx.x / strips;
  const i64 col = i64{blockIdx.x % strips} * ColumnSumExpertsLaunch::kFinishThreads + threadIdx.x;
  if (col >= p.cols) return;
  const ExpertRows own = ExpertRows::of(p.experts, expert);
  const i64 slots = own.begin == own.end ? 0 : own.slots(true);
  const float* source = p.partials + ExpertSlots::first(own.begin, expert) * p.cols + col;
  float total = 0.0F;
  INGOT_UNROLL_BY(8)
  for (i64 i = 0; i < slots; ++i, source += p.cols) total = total + *source;
  static_cast<Out*>(p.sum)[i64{expert} * p.cols + col] = from_float<Out>(total);
}

}  // namespace ingot
