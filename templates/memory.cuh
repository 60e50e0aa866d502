// How kernels read and write global memory: 16-byte vectors of elements, loads and stores with cache hints, and the
// wait of each kernel for the one before it (programmatic dependent launch). On the host the loads and stores are plain
// copies and the wait does nothing, so that a test can run kernels there, thread by thread.
#pragma once

#include "formats.cuh"
#include "numerics.cuh"
#include "platform.cuh"
#include "ptx/grid.cuh"
#include "ptx/memory.cuh"

namespace ingot {

// How many elements fill 16 bytes.
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

  // Word i. `i` must be a constant after unrolling, because the words are registers.
  INGOT_HOST_DEVICE u32 word(u32 i) const { return i == 0 ? bits.x : i == 1 ? bits.y : i == 2 ? bits.z : bits.w; }
};

// The two elements of a word that holds two 16-bit elements.
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

// Names the L2's default policy explicitly: tiled casts ran faster than with loads that name none
// (docs/notes/casts.md).
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

// The same loads for memory that the thread itself may write afterwards.
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

// Prefetches the 128-byte line at `source` into the L2. The L2 never holds stale data, so this is allowed before
// wait_for_predecessor().
INGOT_DEVICE void prefetch_line([[maybe_unused]] const void* source) {
#if INGOT_ON_DEVICE
  ptx::prefetch_global_l2(source);
#endif
}

// Programmatic dependent launch (ptx/grid.cuh); on the host, kernels run one after the other anyway. The library
// launches every kernel so that it may begin before the previous one has ended. Therefore every kernel first waits,
// touches no global memory before that, and only then lets the next kernel begin: by then the kernel before the
// previous one has ended. Three things are exempt from waiting: a kernel that follows an earlier pass of the same
// operation, because that pass waited (but not for what that pass itself wrote; a cast in tiles without its first
// pass is launched without overlap, CastPlan::waits_for_end); reads of memory that was written before any launch (a
// list's table, a weight of dequant_sm90 that the caller calls constant); and prefetches into the L2.
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

// Reads a flag that other blocks write; what they wrote before the flag is then visible.
INGOT_DEVICE u32 load_acquire(const u32* source) {
#if INGOT_ON_DEVICE
  return ptx::ld_acquire(source);
#else
  return *static_cast<const volatile u32*>(source);
#endif
}

// To global memory, also where the compiler does not see that the target is there.
INGOT_DEVICE void store_global(u8* target, u8 value) {
#if INGOT_ON_DEVICE
  ptx::st_global(target, value);
#else
  *target = value;
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
