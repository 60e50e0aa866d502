// elementwise and elementwise_pair that also find the largest |value| that they write, so that a tensorwise cast of
// what they wrote needs no pass for it. The values are those after rounding, and NaN is kept.
//
// A block raises the maximum once, after its last tile: it must be zero before.
#pragma once

#include "cast/elementwise.cuh"
#include "cast/elementwise_pair.cuh"
#include "memory.cuh"
#include "numerics.cuh"
#include "platform.cuh"
#include "reduce.cuh"
#include "scaling.cuh"
#include "vec8.cuh"

namespace ingot {

template <class ValuesParams>
struct ElementwiseAmaxParams {
  ValuesParams values;  // of the kernel without the maximum
  u32* amax;            // raised to the largest |value|, as bits
};

// The largest |value| that a thread writes.
template <HighPrecision In>
struct ThreadMaximum {
  Vec8sMaximum<In> vec8s;
  u32 elements = 0;

  INGOT_DEVICE const Vec8<In>& take(const Vec8<In>& written) {
    vec8s.take(written);
    return written;
  }
  INGOT_DEVICE const In& take(const In& written) {
    elements = max_of(elements, amax_bits(to_float(written)));
    return written;
  }
  INGOT_DEVICE u32 bits() const { return max_of(vec8s.bits(), elements); }
};

// Output: ElementwiseOutput or ElementwisePairOutput.
template <class Output>
INGOT_KERNEL void INGOT_LAUNCH_BOUNDS(ElementwiseLaunch::kThreads, elementwise_residency<typename Output::Source>())
    elementwise_amax(const __grid_constant__ ElementwiseAmaxParams<typename Output::Params> p) {
  __shared__ u32 warp_maxima[ElementwiseLaunch::kThreads / 32];
  start_in_turn();
  ThreadMaximum<typename Output::In> maximum;
  elementwise_tiles<Output>(p.values, maximum);
  const u32 bits = block_max(maximum.bits(), warp_maxima);
  if (threadIdx.x == 0) raise_maximum(p.amax, bits);
}

}  // namespace ingot
