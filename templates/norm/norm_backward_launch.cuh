// The parameters of norm_backward.cuh, and how it divides rows among blocks, threads and shared memory: constant
// arithmetic shared by the kernel and its launch.
#pragma once

#include "norm/norm.cuh"
#include "platform.cuh"
#include "shared.cuh"
#include "vec8.cuh"

namespace ingot {

// How norm_backward shares out rows. The host computes it, so that the kernel needs no division before its first load.
struct NormBackwardDivision {
  u32 threads_log2;    // of the threads that share a row
  u32 groups_log2;     // of the groups of threads in a block, each of which takes a row at a time
  i64 rows_per_block;  // (norm_backward_wide finds its rows itself)
};

struct NormBackwardParams {
  const void* grad_output;  // In[rows, cols]
  const void* input;        // In[rows, cols]
  const void* gamma;        // In[cols], if affine
  const float* mean;        // [rows], if LayerNorm
  const float* rstd;        // [rows]
  void* grad_input;         // In[rows, cols]
  float* partials;          // if affine: [chunks, sums * cols], the sums for gamma, then (LayerNorm) those for beta
  i64 rows, cols;
  i64 grad_output_stride, input_stride, grad_input_stride;  // elements
  float inverse_cols;
  NormBackwardDivision division;
  bool one_row;   // has each group one row, whose columns can be read in vectors? (NormBackwardLaunch::one_row)
  u32 slot_rows;  // of more than 8192 columns: how many rows a block holds in shared memory; 0: none
};

struct NormBackwardLaunch {
  static constexpr u32 kThreadsLog2 = 9;
  static constexpr u32 kThreads = 1U << kThreadsLog2;
  static constexpr u32 kVec8s = 2;  // groups of 8 columns that a thread keeps in registers
  static constexpr i64 kMaxChunks = 132;
  static constexpr i64 kRowsPerBatch = 4;                           // for long rows
  static constexpr u32 kMinThreadsLog2 = 7;                         // in a block, without sums over rows
  static constexpr i64 kThreadsAtOnce = kMaxChunks * 2 * kThreads;  // without sums over rows
  INGOT_HOST_DEVICE static constexpr u32 threads_log2(i64 cols) { return norm_threads_log2(cols, kVec8s); }
  INGOT_HOST_DEVICE static constexpr u32 threads_per_row(i64 cols) { return 1U << threads_log2(cols); }
  INGOT_HOST_DEVICE static constexpr i64 groups(i64 cols) { return kThreads / threads_per_row(cols); }
  INGOT_HOST_DEVICE static constexpr i64 rows_per_chunk(i64 rows, i64 cols) {
    return groups(cols) * max_of(i64{1}, ceil_div(rows, kMaxChunks * groups(cols)));
  }
  INGOT_HOST_DEVICE static constexpr i64 chunks(i64 rows, i64 cols) {
    return ceil_div(rows, rows_per_chunk(rows, cols));
  }
  // Each thread copies its part of later rows to shared memory. Of rows that fit the registers, it copies this many
  // ahead; of f32 none, since shared memory has no room for two rows.
  INGOT_HOST_DEVICE static constexpr u32 rows_ahead(bool affine, u32 element_bytes) {
    return element_bytes != 2 ? 0 : affine ? 2 : 1;
  }
  // Longer rows stay in shared memory, if a multiprocessor has room for two. This is how many each block holds then,
  // and otherwise 0. Without sums over rows, two blocks share a multiprocessor. The rows have to be readable in
  // vectors. `block_shared`: the most shared memory that one block can have.
  INGOT_HOST_DEVICE static constexpr u32 slot_rows(i64 cols, bool affine, bool centred, u32 element_bytes,
                                                   u32 block_shared) {
    constexpr i64 kColsPerStep = i64{kThreads} * kVec8;
    if (element_bytes != 2 || cols <= kColsPerStep * kVec8s || cols > kColsPerStep * slot_vec8s(centred, affine)) {
      return 0;
    }
    const u32 rows = min_of(kMaxSlotRows, dynamic_shared_room(block_shared, affine ? 1 : 2) / slot_row_bytes(cols));
    return affine && rows < 2 ? 0 : rows;
  }
  static constexpr u32 kMaxSlotRows = 2;
  INGOT_HOST_DEVICE static constexpr u32 slot_row_bytes(i64 cols) { return static_cast<u32>(cols) * 4; }
  // The most groups of 8 columns of such a row that a thread takes. With sums over rows, its registers hold no more.
  INGOT_HOST_DEVICE static constexpr u32 slot_vec8s(bool centred, bool affine) { return !affine ? 8 : centred ? 4 : 7; }
  // The dynamic shared memory of a block: slots, or the sums over rows that the groups of a chunk pass on to each
  // other.
  INGOT_HOST_DEVICE static constexpr u32 shared_bytes(i64 cols, bool affine, bool centred, u32 element_bytes,
                                                      u32 slot_rows) {
    if (slot_rows != 0) return slot_rows * slot_row_bytes(cols);
    if (threads_per_row(cols) * kVec8s * kVec8 < cols) return 0;
    const u32 slots = rows_ahead(affine, element_bytes) * threads(cols, affine) * 2 * kVec8s * 16;
    return max_of(slots, affine && groups(cols) > 1 ? (centred ? 2 : 1) * kColumnSums * 4 : 0U);
  }
  static constexpr u32 kColumnSums = kThreads / 2 * kVec8s * kVec8;
  INGOT_HOST_DEVICE static constexpr u32 block_log2(i64 cols, bool affine) {
    return max_of(affine ? kThreadsLog2 : kMinThreadsLog2, threads_log2(cols));
  }
  INGOT_HOST_DEVICE static constexpr u32 threads(i64 cols, bool affine) { return 1U << block_log2(cols, affine); }
  INGOT_HOST_DEVICE static constexpr i64 rows_per_block(i64 rows, i64 cols, bool affine) {
    if (affine) return rows_per_chunk(rows, cols);
    const i64 at_once = i64{1} << (block_log2(cols, affine) - threads_log2(cols));
    return at_once * max_of(i64{1}, ceil_div(rows * threads_per_row(cols), kThreadsAtOnce));
  }
  // Has each group of threads one row? Then the kernel has a short way for it: if the row fits the registers, there are
  // no sums over rows, and `vectors` says that its columns can be read 8 at a time.
  INGOT_HOST_DEVICE static constexpr bool one_row(const NormBackwardDivision& division, i64 cols, bool affine,
                                                  u32 element_bytes, bool vectors) {
    return vectors && !affine && element_bytes == 2 && cols <= i64{kVec8s * kVec8} << division.threads_log2 &&
           division.rows_per_block == i64{1} << division.groups_log2;
  }
  INGOT_HOST_DEVICE static constexpr NormBackwardDivision division(i64 rows, i64 cols, bool affine) {
    return {.threads_log2 = threads_log2(cols),
            .groups_log2 = block_log2(cols, affine) - threads_log2(cols),
            .rows_per_block = rows_per_block(rows, cols, affine)};
  }
  INGOT_HOST_DEVICE static constexpr i64 grid(i64 rows, i64 cols, bool affine) {
    return ceil_div(rows, rows_per_block(rows, cols, affine));
  }
};

// The kernel's template arguments that are not types.
struct NormBackwardConfig {
  bool affine = false;        // the norm multiplies by gamma; LayerNorm also adds beta
  bool zero_centred = false;  // ... by gamma + 1
};

}  // namespace ingot
