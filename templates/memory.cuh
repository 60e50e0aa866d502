// 16-byte vectors of elements, and loads and stores that say how the caches should treat them. On the host they are
// plain copies: the kernels can then be run there, thread by thread, by a test.
#pragma once

#include "formats.cuh"
#include "numerics.cuh"
#include "platform.cuh"
#include "ptx/grid.cuh"
#include "ptx/memory.cuh"

namespace ingot {

// Elements in 16 bytes.
template <class T>
inline constexpr u32 kPerVector = 16 / static_cast<u32>(sizeof(T));

INGOT_HOST_DEVICE bool aligned(const void* pointer, u32 bytes) {
  return (reinterpret_cast<u64>(pointer) & (bytes - 1)) == 0;
}

// Does every row of a matrix start at a multiple of `bytes` (a power of two)?
template <class T>
INGOT_HOST_DEVICE bool rows_aligned(const void* data, i64 row_stride, u32 bytes) {
  return aligned(data, bytes) && (static_cast<u64>(row_stride) * sizeof(T) & (bytes - 1)) == 0;
}

template <class T>
INGOT_HOST_DEVICE bool vector_aligned(const void* data, i64 row_stride) {
  return rows_aligned<T>(data, row_stride, 16);
}

template <HighPrecision T>
struct Vector {
  U32x4 bits{};

  // `i` must be a constant after unrolling: the words are registers.
  INGOT_HOST_DEVICE u32 word(u32 i) const { return i == 0 ? bits.x : i == 1 ? bits.y : i == 2 ? bits.z : bits.w; }
};

// The two elements of a word of 16-bit elements.
INGOT_HOST_DEVICE float low_element(u32 word, bf16) { return float_from_bits(word << 16); }
INGOT_HOST_DEVICE float high_element(u32 word, bf16) { return float_from_bits(word & 0xffff0000U); }
INGOT_HOST_DEVICE float low_element(u32 word, f16) { return to_float(f16{static_cast<u16>(word)}); }
INGOT_HOST_DEVICE float high_element(u32 word, f16) { return to_float(f16{static_cast<u16>(word >> 16)}); }

template <HighPrecision T>
INGOT_HOST_DEVICE void unpack(const Vector<T>& values, float (&x)[kPerVector<T>]) {
  INGOT_UNROLL
  for (u32 i = 0; i < 4; ++i) {
    if constexpr (sizeof(T) == 4) {
      x[i] = float_from_bits(values.word(i));
    } else {
      x[2 * i] = low_element(values.word(i), T{});
      x[2 * i + 1] = high_element(values.word(i), T{});
    }
  }
}

// The L2's usual policy, said aloud: casts in tiles ran faster than with loads that name none (docs/kernels.md).
INGOT_DEVICE U32x4 load16(const void* source) {
#if INGOT_ON_DEVICE
  return ptx::ld_global_nc(source, ptx::createpolicy_evict_normal());
#else
  return *static_cast<const U32x4*>(source);
#endif
}

INGOT_DEVICE U32x4 load16_once(const void* source) {
#if INGOT_ON_DEVICE
  return ptx::ld_global_nc_once(source, ptx::createpolicy_evict_normal());
#else
  return *static_cast<const U32x4*>(source);
#endif
}

// Those of memory that the thread itself may write afterwards.
INGOT_DEVICE U32x4 load16_in_place(const void* source) {
#if INGOT_ON_DEVICE
  return ptx::ld_global(source, ptx::createpolicy_evict_normal());
#else
  return *static_cast<const U32x4*>(source);
#endif
}
INGOT_DEVICE U32x4 load16_once_in_place(const void* source) {
#if INGOT_ON_DEVICE
  return ptx::ld_global_once(source, ptx::createpolicy_evict_normal());
#else
  return *static_cast<const U32x4*>(source);
#endif
}

template <HighPrecision T>
INGOT_DEVICE Vector<T> load_vector(const T* source) {
  return {load16_once(source)};
}

// The line of 128 bytes at `source` into the L2, where it does not go stale: allowed before wait_for_predecessor().
INGOT_DEVICE void prefetch_line([[maybe_unused]] const void* source) {
#if INGOT_ON_DEVICE
  ptx::prefetch_global_l2(source);
#endif
}

// Programmatic dependent launch (ptx/grid.cuh); on the host kernels run one after the other anyway. The library
// launches every kernel so that it may begin before the one ahead of it has ended. So every kernel first waits, reads
// and writes no global memory before, and only then lets the next one begin: whatever ran two kernels ago has then
// ended. Exceptions: a kernel that follows a pass of its own, which waited before it; what was there before any launch
// (a list's table, a weight of dequant_sm90 that the caller calls constant); and prefetches into the L2.
INGOT_DEVICE void let_dependents_start() {
#if INGOT_ON_DEVICE
  ptx::griddepcontrol_launch_dependents();
#endif
}
INGOT_DEVICE void wait_for_predecessor() {
#if INGOT_ON_DEVICE
  ptx::griddepcontrol_wait();
#endif
}
INGOT_DEVICE void start_in_turn() {
  wait_for_predecessor();
  let_dependents_start();
}

// A word that other blocks raise. What they did before that is then seen.
INGOT_DEVICE u32 load_acquire(const u32* source) {
#if INGOT_ON_DEVICE
  return ptx::ld_acquire(source);
#else
  return *static_cast<const volatile u32*>(source);
#endif
}

template <class T>
INGOT_DEVICE void store_streaming(void* target, T value) {
#if INGOT_ON_DEVICE
  ptx::st_global_cs(target, value);
#else
  *static_cast<T*>(target) = value;
#endif
}

}  // namespace ingot
