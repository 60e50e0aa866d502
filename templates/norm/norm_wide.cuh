// How the four blocks of a cluster sum a row in the order of 512 threads (norm.cuh), for gradients of rows that are too
// wide for one block's registers. The last step, the sum of the 16 summing warps, is that of norm_rows_wide.cuh too.
// The sum is taken apart into units: one group of 8 columns of each of the 32 threads of one of 16 summing warps. Each
// warp of the cluster holds some units. The sums of 8 columns meet in the block's shared memory, and one warp adds
// those of a summing warp, for which the block holds all units, in ascending order of columns. Then every block gets
// the 16 warps' sums and adds them up.
#pragma once

#include "cluster.cuh"
#include "platform.cuh"
#include "reduce.cuh"

namespace ingot {

inline constexpr u32 kNormSummingWarps = 16;

// The sum of the 16 warps' sums, which are given as bits.
INGOT_DEVICE float norm_sum_of_warps(const u32* words) {
  float total = float_from_bits(words[0]);
  INGOT_UNROLL
  for (u32 w = 1; w < kNormSummingWarps; ++w) total = total + float_from_bits(words[w]);
  return total;
}

inline constexpr u32 kNormClusterBlocks = 4;
inline constexpr u32 kNormWarpsOfBlock = kNormSummingWarps / kNormClusterBlocks;  // that a block sums for
inline constexpr u32 kMaxNormUnits = 16;                                          // in a block

// For Count sums at a time.
template <u32 Count>
struct NormWideShared {
  using Words = ClusterWords<Count * kNormSummingWarps>;
  Words sums[2];  // of the summing warps, as bits
  float parts[Count][kMaxNormUnits * 32];
};

// The sum of every 4th of the block's first `units` units, beginning with the warp's own.
INGOT_DEVICE float norm_sum_of_units(const float (&parts)[kMaxNormUnits * 32], u32 units) {
  constexpr u32 kStride = kNormWarpsOfBlock * 32;
  float sum = 0.0F;
  INGOT_UNROLL_BY(1)
  for (u32 first = threadIdx.x; first < units * 32; first += 4 * kStride) {
    // Reads four at a time, so that no read waits for an addition. Adding 0 to a sum that began with 0 changes no bit.
    float four[4];
    INGOT_UNROLL
    for (u32 i = 0; i < 4; ++i) four[i] = first + i * kStride < units * 32 ? parts[first + i * kStride] : 0.0F;
    INGOT_UNROLL
    for (const float part : four) sum = sum + part;
  }
  return sum;
}

// The sums over the row, for all threads of the cluster. Unit u of the block belongs to the u / 4-th group of 4096
// columns and to warp w = u % 4 of those that the block sums for; number(w) tells which of all 16 that is. parts[i]:
// the thread's sums of 8 columns in unit first_unit + i, 0 past the end of the row. `words` are one of shared.sums,
// which alternate: this is the turn-th use.
template <u32 Vec8s, u32 Count, class Number>
INGOT_DEVICE void norm_wide_sums(const float (&parts)[Vec8s][Count], float (&totals)[Count], u32 first_unit, u32 units,
                                 const Number& number, NormWideShared<Count>& shared,
                                 typename NormWideShared<Count>::Words& words, u32 turn) {
  const u32 warp = threadIdx.x / 32;
  const u32 lane = threadIdx.x % 32;
  // Everyone has read the parts of the last sums, as their words say too, but compute-sanitizer does not follow these.
  __syncthreads();
  INGOT_UNROLL
  for (u32 i = 0; i < Vec8s; ++i) {
    INGOT_UNROLL
    for (u32 k = 0; k < Count; ++k) shared.parts[k][(first_unit + i) * 32 + lane] = parts[i][k];
  }
  __syncthreads();
  if (warp < kNormWarpsOfBlock) {
    INGOT_UNROLL
    for (u32 k = 0; k < Count; ++k) {
      const float sum = warp_sum(norm_sum_of_units(shared.parts[k], units));
      if (lane < kNormClusterBlocks) words.send(k * kNormSummingWarps + number(warp), lane, float_bits(sum));
    }
  }
  words.wait(Count * kNormSummingWarps, turn);
  INGOT_UNROLL
  for (u32 k = 0; k < Count; ++k) totals[k] = norm_sum_of_warps(words.words + k * kNormSummingWarps);
}

}  // namespace ingot
