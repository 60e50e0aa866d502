// The building blocks of the examples' own operations (each example's ops.cuh), for the CPU and the GPU alike.
//
// An operation is a struct of plain values with kName, rows() and a call operator that computes one row with a group of
// lanes: a block of threads on the GPU (per_row, compiled by Ingot at run time like its own kernels), one lane on the
// CPU. The lanes divide the row's vectors of 8 elements among themselves; values that the whole row needs go through
// the group's sum() and max(). An operation whose CPU and GPU code differ has a call operator for each.
#pragma once

#include "memory.cuh"
#include "numerics.cuh"
#include "platform.cuh"

namespace examples {

using ingot::bf16;
using ingot::i64;
using ingot::u32;
using ingot::u64;
using ingot::u8;

inline constexpr i64 kVector = 8;           // elements that a lane handles at a time
inline constexpr i64 kRowOfVectors = 2048;  // elementwise operations: elements in a "row"
inline constexpr u32 kThreads = 256;
inline constexpr u32 kSharedFloats = 2304;  // of shared memory, through which a block's threads exchange values

// ---- Groups of lanes

struct OneLane {
  INGOT_HOST_DEVICE i64 lane() const { return 0; }
  INGOT_HOST_DEVICE i64 lanes() const { return 1; }
  INGOT_HOST_DEVICE float sum(float value) const { return value; }
  INGOT_HOST_DEVICE float max(float value) const { return value; }
};

#if INGOT_ON_DEVICE || defined(INGOT_EMULATED)
// The value of the lane in the warp whose number differs from this one's in the bits of `mask`.
INGOT_DEVICE float exchanged(float value, u32 mask) {
  return ingot::float_from_bits(__shfl_xor_sync(0xffffffffU, ingot::float_bits(value), static_cast<int>(mask)));
}

struct BlockOfThreads {
  float* shared;  // [kSharedFloats]

  INGOT_DEVICE i64 lane() const { return threadIdx.x; }
  INGOT_DEVICE i64 lanes() const { return kThreads; }
  INGOT_DEVICE float sum(float value) const {
    return reduce(value, [](float a, float b) { return a + b; });
  }
  INGOT_DEVICE float max(float value) const {
    return reduce(value, [](float a, float b) { return a < b ? b : a; });
  }

 private:
  template <class Combine>
  INGOT_DEVICE float reduce(float value, Combine combine) const {
    for (u32 offset = 16; offset > 0; offset /= 2) value = combine(value, exchanged(value, offset));
    __syncthreads();
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
    __syncthreads();
    value = shared[0];
    for (u32 warp = 1; warp < kThreads / 32; ++warp) value = combine(value, shared[warp]);
    return value;
  }
};

#if INGOT_ON_DEVICE
// Its launch may begin before the previous kernel has ended (templates/memory.cuh).
template <class Op>
INGOT_KERNEL void INGOT_LAUNCH_BOUNDS(kThreads, 1) per_row(const Op op) {
  __shared__ float shared[kSharedFloats];
  ingot::start_in_turn();
  for (i64 row = blockIdx.x; row < op.rows(); row += gridDim.x) op(BlockOfThreads{shared}, row);
}
#endif
#endif

// ---- Eight elements

struct Eight {
  float x[kVector];
};

INGOT_HOST_DEVICE Eight unpacked(const ingot::U32x4& bits) {
  Eight result;
  ingot::unpack(ingot::Vector<bf16>{bits}, result.x);
  return result;
}

INGOT_HOST_DEVICE Eight load(const bf16* source) { return unpacked(*reinterpret_cast<const ingot::U32x4*>(source)); }

INGOT_HOST_DEVICE Eight load(const float* source) {
  Eight result;
  for (i64 half = 0; half < 2; ++half) {
    const ingot::U32x4 v = reinterpret_cast<const ingot::U32x4*>(source)[half];
    result.x[4 * half] = ingot::float_from_bits(v.x);
    result.x[4 * half + 1] = ingot::float_from_bits(v.y);
    result.x[4 * half + 2] = ingot::float_from_bits(v.z);
    result.x[4 * half + 3] = ingot::float_from_bits(v.w);
  }
  return result;
}

INGOT_HOST_DEVICE void store(float* target, const Eight& v) {
  using ingot::float_bits;
  auto* halves = reinterpret_cast<ingot::U32x4*>(target);
  halves[0] = {float_bits(v.x[0]), float_bits(v.x[1]), float_bits(v.x[2]), float_bits(v.x[3])};
  halves[1] = {float_bits(v.x[4]), float_bits(v.x[5]), float_bits(v.x[6]), float_bits(v.x[7])};
}

INGOT_HOST_DEVICE u32 pair_of(float low, float high) {
  return ingot::from_float<bf16>(low).bits | static_cast<u32>(ingot::from_float<bf16>(high).bits) << 16;
}

INGOT_HOST_DEVICE ingot::U32x4 packed(const Eight& v) {
  return {pair_of(v.x[0], v.x[1]), pair_of(v.x[2], v.x[3]), pair_of(v.x[4], v.x[5]), pair_of(v.x[6], v.x[7])};
}

INGOT_HOST_DEVICE void store(bf16* target, const Eight& v) { *reinterpret_cast<ingot::U32x4*>(target) = packed(v); }

INGOT_HOST_DEVICE float round_to_bf16(float x) { return ingot::to_float(ingot::from_float<bf16>(x)); }

// Calls work(column) for each vector of a row that belongs to the lane.
template <class Group, class Work>
INGOT_HOST_DEVICE void for_each_vector(Group group, i64 width, Work work) {
  for (i64 col = group.lane() * kVector; col < width; col += group.lanes() * kVector) work(col);
}

// ---- Random numbers: a hashed counter (SplitMix64)

INGOT_HOST_DEVICE u64 hash_of(u64 x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

INGOT_HOST_DEVICE float uniform(u64 bits) { return (static_cast<float>(bits >> 40) + 0.5F) * 0x1p-24F; }

}  // namespace examples
