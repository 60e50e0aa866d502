// How the two blocks of a pair, a cluster of two, share the rows of a backward pass that have no room in one block's
// shared memory but do in that of two: each holds every other 2048 columns of a row, and works on them as one block
// would on a row of half the length (norm_backward_pair.cuh).
//
// The order of a row's sums stays that of 512 summing threads in 16 warps (norm.cuh). Block b has the groups of 8
// columns of summing threads 256 b .. 256 b + 255, and two threads for each: one has the first half of its groups, the
// other the second. The first adds its own, and then, in ascending order, those that the other left in shared memory.
// Each summing warp sends its word to both blocks, which add up all 16.
#pragma once

#include "cluster.cuh"
#include "norm/norm_wide.cuh"
#include "platform.cuh"
#include "reduce.cuh"
#include "vec8.cuh"

namespace ingot {

struct NormPairLaunch {
  static constexpr u32 kBlocks = 2;
  static constexpr u32 kSummingThreads = 256;                       // whose groups of columns a block has
  static constexpr u32 kColsPerStep = 2 * kSummingThreads * kVec8;  // from one group of a summing thread to the next
  static constexpr u32 kStepBytes = kSummingThreads * 16;           // of 16-bit elements, in one block
  static constexpr u32 kMaxVec8s = 7;                               // groups that a thread has
  // Shorter rows stay in one block's shared memory.
  static constexpr i64 kMinCols = 28673;
  static constexpr i64 kMaxCols = i64{2 * kMaxVec8s} * kColsPerStep;
  // The groups of a summing thread.
  INGOT_HOST_DEVICE static constexpr u32 steps(u32 cols) { return ceil_div(cols, kColsPerStep); }
  // What a block holds of one row of 16-bit elements.
  INGOT_HOST_DEVICE static constexpr u32 row_bytes(i64 cols) { return steps(static_cast<u32>(cols)) * kStepBytes; }
};
static_assert(NormPairLaunch::kMaxCols == 57344);

// For Count sums at a time.
template <u32 Count>
struct NormPairShared {
  using Words = ClusterWords<Count * kNormSummingWarps>;
  Words sums[2];                                                                    // of the summing warps, as bits
  float parts[Count][NormPairLaunch::kMaxVec8s * NormPairLaunch::kSummingThreads];  // of 8 columns, of second halves
};

// A thread's part of the rows, of `cols` 16-bit elements.
template <u32 Count>
struct NormPair {
  using Launch = NormPairLaunch;
  using Shared = NormPairShared<Count>;

  Shared& shared;
  u32 cols;

  INGOT_DEVICE static bool second() { return threadIdx.x >= Launch::kSummingThreads; }
  INGOT_DEVICE static u32 summing_thread() { return threadIdx.x % Launch::kSummingThreads; }  // of those of the block
  // Where the second half of a summing thread's groups begins, which has one more if their number is odd.
  INGOT_DEVICE u32 middle() const { return Launch::steps(cols) / 2; }
  INGOT_DEVICE u32 first_step() const { return second() ? middle() : 0; }
  // The first column of a summing thread's group.
  INGOT_DEVICE static u32 column_of(u32 step) {
    const u32 thread = ClusterPlace::here().rank * Launch::kSummingThreads + summing_thread();
    return step * Launch::kColsPerStep + thread * kVec8;
  }
  // The thread's groups begin kColsPerStep columns apart, from begin() on, and before end().
  INGOT_DEVICE u32 begin() const { return column_of(first_step()); }
  INGOT_DEVICE u32 end() const { return second() ? cols : middle() * Launch::kColsPerStep; }
  // The thread's first slot in what the block holds of a row; the next are kStepBytes apart.
  INGOT_DEVICE u32 first_slot() const { return first_step() * Launch::kStepBytes + summing_thread() * 16; }

  // Takes the sums over the thread's i-th group.
  INGOT_DEVICE void take(u32 i, const float (&part)[Count], float (&sums)[Count]) const {
    INGOT_UNROLL
    for (u32 k = 0; k < Count; ++k) {
      if (second()) {
        shared.parts[k][i * Launch::kSummingThreads + summing_thread()] = part[k];
      } else {
        sums[k] = sums[k] + part[k];
      }
    }
  }

  // Adds the groups of the other thread, in ascending order, to those of this one.
  INGOT_DEVICE void take_second_half(float (&sums)[Count]) const {
    const u32 other = column_of(middle());
    // Reads all before it adds. Adding 0 to a sum that began with 0 changes no bit.
    float parts[Count][Launch::kMaxVec8s];
    INGOT_UNROLL
    for (u32 i = 0; i < Launch::kMaxVec8s; ++i) {
      const bool inside = other + i * Launch::kColsPerStep < cols;
      INGOT_UNROLL
      for (u32 k = 0; k < Count; ++k) {
        parts[k][i] = inside ? shared.parts[k][i * Launch::kSummingThreads + threadIdx.x] : 0.0F;
      }
    }
    INGOT_UNROLL
    for (u32 k = 0; k < Count; ++k) {
      INGOT_UNROLL
      for (const float part : parts[k]) sums[k] = sums[k] + part;
    }
  }

  // The sums over the row, for all threads of the pair. `sums`: what take() has left there. `words` are one of
  // shared.sums, which serve in turn, for the turn-th time.
  INGOT_DEVICE void total(float (&sums)[Count], typename Shared::Words& words, u32 turn) const {
    __syncthreads();
    if (!second()) {
      take_second_half(sums);
      const ClusterPlace place = ClusterPlace::here();
      const u32 warp = place.rank * (Launch::kSummingThreads / 32) + threadIdx.x / 32;
      const u32 lane = threadIdx.x % 32;
      INGOT_UNROLL
      for (u32 k = 0; k < Count; ++k) {
        sums[k] = warp_sum(sums[k]);
        if (lane < Launch::kBlocks) words.send(k * kNormSummingWarps + warp, lane, float_bits(sums[k]));
      }
    }
    words.wait(Count * kNormSummingWarps, turn);
    INGOT_UNROLL
    for (u32 k = 0; k < Count; ++k) sums[k] = norm_sum_of_warps(words.words + k * kNormSummingWarps);
    // The parts have been read, as the words say too, but compute-sanitizer does not follow these.
    __syncthreads();
  }
};

}  // namespace ingot
