// The scales that follow from maxima (scaling.cuh), for casts with given scales. A thread makes one; maxima may be
// replaced by their scales in place.
#pragma once

#include "memory.cuh"
#include "platform.cuh"
#include "scaling.cuh"

namespace ingot {

struct AmaxScalesParams {
  const float* amax;  // [count]
  float* scale;       // [count]
  i64 count;
  float fp8_max;
  float largest_scale;  // that of an amax of 0
  bool pow2;
};

struct AmaxScalesLaunch {
  static constexpr u32 kThreads = 256;
  INGOT_HOST_DEVICE static constexpr i64 grid(i64 count) { return ceil_div(count, i64{kThreads}); }
};

INGOT_KERNEL void INGOT_LAUNCH_BOUNDS(AmaxScalesLaunch::kThreads, 4)
    amax_scales(const __grid_constant__ AmaxScalesParams p) {
  start_in_turn();
  const i64 i = i64{blockIdx.x} * AmaxScalesLaunch::kThreads + threadIdx.x;
  if (i >= p.count) return;
  p.scale[i] = scale_from_amax(amax_from_bits(amax_bits(p.amax[i])), p.fp8_max, p.largest_scale, p.pow2);
}

}  // namespace ingot
