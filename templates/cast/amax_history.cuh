// Delayed scaling's update, for any number of slots in one launch. For each slot it shifts the history by one, puts the
// newest amax first, clears that amax where it came from, and computes the new scale. It reads and writes each history
// once.
//
// A warp takes a slot. It goes through the history in chunks, from the oldest end, so that it overwrites nothing
// unread: it loads all values of a chunk, each from the preceding position, before it stores the first.
#pragma once

#include "memory.cuh"
#include "platform.cuh"
#include "scaling.cuh"

namespace ingot {

struct AmaxHistoryParams {
  float* amax;     // [slots]
  float* history;  // [slots, length], the newest first
  i64 slots, length;
  i64 history_stride;
  float* scale;         // [slots]
  const float* limits;  // [slots]: FP8_MAX
  const float* pow2;    // [slots]: not 0 if the scale is rounded down to a power of two
  const float* known;   // [slots], or null: has_scale() of a value takes it for the scale
  bool most_recent;     // the scale comes from the newest amax, not from the largest
  bool finite;          // a newest amax of Inf or NaN counts as 0
};

struct AmaxHistoryLaunch {
  static constexpr u32 kThreads = 128;
  static constexpr u32 kSlots = kThreads / 32;  // per block
  static constexpr u32 kPerLane = 8;            // loads in flight
  static constexpr i64 kChunk = 32 * i64{kPerLane};
  INGOT_HOST_DEVICE static constexpr i64 grid(i64 slots) { return ceil_div(slots, i64{kSlots}); }
};

INGOT_KERNEL void INGOT_LAUNCH_BOUNDS(AmaxHistoryLaunch::kThreads, 8) amax_history(const AmaxHistoryParams p) {
  using Launch = AmaxHistoryLaunch;
  start_in_turn();
  const i64 slot = i64{blockIdx.x} * Launch::kSlots + threadIdx.x / 32;
  if (slot >= p.slots) return;
  const u32 lane = threadIdx.x % 32;
  float* const history = p.history + slot * p.history_stride;
  u32 newest = amax_bits(p.amax[slot]);
  if (p.finite && newest >= kF32Inf) newest = 0;
  u32 largest = newest;
  for (i64 first = (p.length - 1) / Launch::kChunk * Launch::kChunk; first >= 0; first -= Launch::kChunk) {
    float values[Launch::kPerLane];
    INGOT_UNROLL
    for (u32 i = 0; i < Launch::kPerLane; ++i) {
      const i64 at = first + i * 32 + lane;
      values[i] = at == 0 || at >= p.length ? amax_from_bits(newest) : history[at - 1];
    }
    __syncwarp();
    INGOT_UNROLL
    for (u32 i = 0; i < Launch::kPerLane; ++i) {
      const i64 at = first + i * 32 + lane;
      largest = max_of(largest, amax_bits(values[i]));
      if (at < p.length) history[at] = values[i];
    }
  }
  largest = __reduce_max_sync(0xffffffffU, largest);
  if (lane != 0) return;
  p.amax[slot] = 0.0F;
  if (p.known != nullptr && has_scale(p.known[slot])) {
    p.scale[slot] = p.known[slot];
    return;
  }
  if (p.most_recent) largest = newest;
  if (largest != 0) p.scale[slot] = scale_from_amax(amax_from_bits(largest), p.limits[slot], p.pow2[slot] != 0.0F);
}

}  // namespace ingot
