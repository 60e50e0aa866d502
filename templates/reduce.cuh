// Reductions among the threads of a warp or a block: maxima (amax) and sums in a fixed order.
#pragma once

#include "memory.cuh"
#include "platform.cuh"
#include "ptx/integer.cuh"
#include "scaling.cuh"

namespace ingot {

inline constexpr u32 kMaxWarps = 32;

// Raises a maximum in global memory to `bits` (scaling.cuh), atomically: many threads may call it.
INGOT_DEVICE void raise_maximum(u32* amax, u32 bits) { atomicMax(amax, float_bits(amax_from_bits(bits))); }

// The maximum over each group of `threads` neighbouring threads (a power of two >= 32, the same for the whole block).
// All threads of the block call it and get their group's maximum. It has only one barrier, so `warp_maxima` is free
// again after the block's next one.
INGOT_DEVICE u32 group_max_once(u32 value, u32 threads, u32 (&warp_maxima)[kMaxWarps]) {
  value = __reduce_max_sync(0xffffffffU, value);
  if (threads == 32) return value;
  const u32 warp = threadIdx.x / 32;
  const u32 warps = threads / 32;
  if (threadIdx.x % 32 == 0) warp_maxima[warp] = value;
  __syncthreads();
  return __reduce_max_sync(0xffffffffU, warp_maxima[(warp & ~(warps - 1)) + (threadIdx.x & (warps - 1))]);
}
// The same; `warp_maxima` is free again on return.
INGOT_DEVICE u32 group_max(u32 value, u32 threads, u32 (&warp_maxima)[kMaxWarps]) {
  value = group_max_once(value, threads, warp_maxima);
  if (threads != 32) __syncthreads();
  return value;
}

// The maximum over all threads of a block of any number of warps, for all of them. `warp_maxima` serves no other
// reduction before the block's next barrier.
template <u32 Count>
INGOT_DEVICE u32 block_max(u32 value, u32 (&warp_maxima)[Count]) {
  value = __reduce_max_sync(0xffffffffU, value);
  if (threadIdx.x % 32 == 0) warp_maxima[threadIdx.x / 32] = value;
  __syncthreads();
  return __reduce_max_sync(0xffffffffU, threadIdx.x % 32 < blockDim.x / 32 ? warp_maxima[threadIdx.x % 32] : 0);
}

// Maxima of Count values (a power of two up to 16), each spread over 16 neighbouring threads: every thread ends with
// the maximum of value index_of_lane(). Each step halves the number of values for which a thread is responsible.
template <u32 Count>
struct SharedMaxima {
  static constexpr u32 kLanes = 16 / Count;  // lanes that end with the same maximum
  INGOT_HOST_DEVICE static constexpr u32 index_of_lane(u32 lane) { return lane / kLanes % Count; }
  INGOT_HOST_DEVICE static constexpr u32 lane_of_index(u32 lane, u32 index) { return (lane & 16U) | (index * kLanes); }
  INGOT_HOST_DEVICE static constexpr bool answers(u32 lane) { return lane % kLanes == 0; }

  INGOT_DEVICE static u32 of(u32 (&values)[Count]) {
    INGOT_UNROLL
    for (u32 half = Count / 2; half != 0; half /= 2) {
      const bool upper = (threadIdx.x & (half * kLanes)) != 0;
      INGOT_UNROLL
      for (u32 i = 0; i < half; ++i) {
        const u32 sent = upper ? values[i] : values[i + half];
        const u32 kept = upper ? values[i + half] : values[i];
        values[i] = max_of(kept, __shfl_xor_sync(0xffffffffU, sent, half * kLanes));
      }
    }
    u32 maximum = values[0];
    INGOT_UNROLL
    for (u32 step = kLanes / 2; step != 0; step /= 2) {
      maximum = max_of(maximum, __shfl_xor_sync(0xffffffffU, maximum, step));
    }
    return maximum;
  }
};

// Adds the lanes that are 16, 8, 4, 2 and 1 apart, in this order. All lanes get the sum, with the same bits.
INGOT_DEVICE float warp_sum(float value) {
  INGOT_UNROLL
  for (u32 step = 16; step != 0; step /= 2) {
    value = value + float_from_bits(__shfl_xor_sync(0xffffffffU, float_bits(value), step));
  }
  return value;
}

// The sum over each group of `threads` neighbouring threads (as in group_max()): warp_sum() of each warp, then the
// group's warps in ascending order. It has only one barrier, so `warp_sums` is free again after the block's next one.
template <u32 Count>
INGOT_DEVICE void group_sums(float (&values)[Count], u32 threads, float (&warp_sums)[kMaxWarps][Count]) {
  INGOT_UNROLL
  for (float& value : values) value = warp_sum(value);
  if (threads == 32) return;
  const u32 warp = threadIdx.x / 32;
  const u32 first = warp & ~(threads / 32 - 1);
  if (threadIdx.x % 32 == 0) {
    INGOT_UNROLL
    for (u32 i = 0; i < Count; ++i) warp_sums[warp][i] = values[i];
  }
  __syncthreads();
  // Reads four at a time, so that no read waits for an addition.
  const u32 warps = threads / 32;
  INGOT_UNROLL
  for (u32 i = 0; i < Count; ++i) values[i] = warp_sums[first][i];
  INGOT_UNROLL_BY(1)
  for (u32 begin = 0; begin < warps; begin += 4) {
    float parts[4][Count];
    INGOT_UNROLL
    for (u32 w = 0; w < 4; ++w) {
      INGOT_UNROLL
      for (u32 i = 0; i < Count; ++i) parts[w][i] = warp_sums[(first + begin + w) % kMaxWarps][i];
    }
    INGOT_UNROLL
    for (u32 w = 0; w < 4; ++w) {
      if (begin + w == 0 || begin + w >= warps) continue;
      INGOT_UNROLL
      for (u32 i = 0; i < Count; ++i) values[i] = values[i] + parts[w][i];
    }
  }
}

// The same for one value and groups of at most 16 warps; `warp_sums` begins at a multiple of 16 bytes, and its elements
// are read four at a time.
INGOT_DEVICE float group_sum(float value, u32 threads, float (&warp_sums)[kMaxWarps]) {
  value = warp_sum(value);
  if (threads == 32) return value;
  const u32 warp = threadIdx.x / 32;
  const u32 warps = threads / 32;
  if (threadIdx.x % 32 == 0) warp_sums[warp] = value;
  __syncthreads();
  const float* const group = warp_sums + (warp & ~(warps - 1));
  if (warps == 2) return group[0] + group[1];
  float total = 0.0F;
  INGOT_UNROLL
  for (u32 begin = 0; begin < 16; begin += 4) {
    if (begin >= warps) break;
    const U32x4 four = *reinterpret_cast<const U32x4*>(group + begin);
    total = begin == 0 ? float_from_bits(four.x) : total + float_from_bits(four.x);
    total = total + float_from_bits(four.y);
    total = total + float_from_bits(four.z);
    total = total + float_from_bits(four.w);
  }
  return total;
}

// The larger of a and b in each 16-bit half. The top bit of each half must be clear.
INGOT_HOST_DEVICE u32 max_u16x2(u32 a, u32 b) {
#if INGOT_ON_DEVICE
  if constexpr (kDeviceArch >= 900) return ptx::max_u16x2(a, b);
#endif
  const u32 high = max_of(a, b) & 0xffff0000U;
  return high | max_of(a & 0xffffU, b & 0xffffU);
}

// amax_bits() of the largest element. As integers, 16-bit patterns order as their values do, with NaN on top, like
// f32's; so two are compared at a time.
template <HighPrecision T>
INGOT_HOST_DEVICE u32 amax_bits(const Vector<T>& values) {
  const U32x4 v = values.bits;
  if constexpr (sizeof(T) == 4) {
    constexpr u32 kMagnitude = 0x7fffffffU;
    return max_of(max_of(v.x & kMagnitude, v.y & kMagnitude), max_of(v.z & kMagnitude, v.w & kMagnitude));
  } else {
    constexpr u32 kMagnitudes = 0x7fff7fffU;
    const u32 both =
        max_u16x2(max_u16x2(v.x & kMagnitudes, v.y & kMagnitudes), max_u16x2(v.z & kMagnitudes, v.w & kMagnitudes));
    return float_bits(high_element(max_of(both, both << 16), T{}));
  }
}

}  // namespace ingot
