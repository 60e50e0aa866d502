// The only file that knows which compiler reads the templates: NVRTC, nvcc's two passes, or a host C++ compiler.
//
// On the host, the functions marked INGOT_HOST_DEVICE are ordinary functions, which the CPU reference calls. Kernels
// are compiled there only for their types and for warnings: the stand-ins below let them parse and are never called. A
// test that does run kernels on the host, one host thread per CUDA thread, defines INGOT_EMULATED and provides its own
// (tests/templates/emulator.h).
#pragma once

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#define INGOT_HOST_DEVICE __host__ __device__ inline
#define INGOT_DEVICE __device__ inline
#define INGOT_KERNEL __global__
#define INGOT_LAUNCH_BOUNDS(threads, blocks_per_sm) __launch_bounds__(threads, blocks_per_sm)
#define INGOT_PRAGMA(text) _Pragma(#text)
#define INGOT_UNROLL INGOT_PRAGMA(unroll)
#define INGOT_UNROLL_BY(count) INGOT_PRAGMA(unroll count)
#define INGOT_MAY_ALIAS
#else
#define INGOT_HOST_DEVICE inline
#define INGOT_DEVICE inline
#define INGOT_KERNEL inline
#define INGOT_LAUNCH_BOUNDS(threads, blocks_per_sm)
#define INGOT_UNROLL
#define INGOT_UNROLL_BY(count)
#define INGOT_MAY_ALIAS [[gnu::may_alias]]
#define __shared__ static
#define __grid_constant__
#endif

// 1 in the pass that makes device code.
#if defined(__CUDA_ARCH__)
#define INGOT_ON_DEVICE 1
#else
#define INGOT_ON_DEVICE 0
#endif

namespace ingot {

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i32 = int;
using i64 = long long;

static_assert(sizeof(u16) == 2 && sizeof(u32) == 4 && sizeof(u64) == 8);

// The target's compute capability, as in __CUDA_ARCH__ (900 = sm_90); 0 on the host.
#if INGOT_ON_DEVICE
inline constexpr int kDeviceArch = __CUDA_ARCH__;
#else
inline constexpr int kDeviceArch = 0;
#endif

// Kernels read and write memory of any type through these two types.
struct alignas(8) INGOT_MAY_ALIAS U32x2 {
  u32 x, y;
};
struct alignas(16) INGOT_MAY_ALIAS U32x4 {
  u32 x, y, z, w;
};

INGOT_HOST_DEVICE u32 float_bits(float value) { return __builtin_bit_cast(u32, value); }
INGOT_HOST_DEVICE float float_from_bits(u32 bits) { return __builtin_bit_cast(float, bits); }

// a * b + c, rounded once.
INGOT_HOST_DEVICE float fused_multiply_add(float a, float b, float c) {
#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
  return fmaf(a, b, c);
#else
  return __builtin_fmaf(a, b, c);
#endif
}

template <class T>
INGOT_HOST_DEVICE constexpr T min_of(T a, T b) {
  return b < a ? b : a;
}
template <class T>
INGOT_HOST_DEVICE constexpr T max_of(T a, T b) {
  return a < b ? b : a;
}
template <class T>
INGOT_HOST_DEVICE constexpr T ceil_div(T a, T b) {
  return (a + b - 1) / b;
}

template <bool First, class A, class B>
struct Select {
  using Type = A;
};
template <class A, class B>
struct Select<false, A, B> {
  using Type = B;
};

template <class A, class B>
inline constexpr bool is_same = false;
template <class A>
inline constexpr bool is_same<A, A> = true;

}  // namespace ingot

#if !defined(__CUDACC__) && !defined(__CUDACC_RTC__) && !defined(INGOT_EMULATED)
namespace ingot {

struct HostIndex {
  unsigned x = 0, y = 0, z = 0;
};
inline constexpr HostIndex threadIdx{}, blockIdx{};
inline constexpr HostIndex blockDim{1, 1, 1}, gridDim{1, 1, 1};
inline void __syncthreads() {}
inline void __syncwarp(unsigned = 0xffffffffU) {}
inline unsigned __reduce_max_sync(unsigned, unsigned value) { return value; }
inline unsigned __byte_perm(unsigned, unsigned, unsigned) { return 0; }
inline unsigned __shfl_sync(unsigned, unsigned value, unsigned) { return value; }
inline unsigned __shfl_xor_sync(unsigned, unsigned value, unsigned) { return value; }
inline unsigned __shfl_up_sync(unsigned, unsigned value, unsigned) { return value; }
inline void __threadfence() {}
inline unsigned atomicInc(unsigned* target, unsigned last) {
  const unsigned value = *target;
  *target = value >= last ? 0 : value + 1;
  return value;
}
inline unsigned atomicAdd(unsigned* target, unsigned value) { return (*target += value) - value; }
inline unsigned atomicMin(unsigned* target, unsigned value) { return *target > value ? *target = value : *target; }
inline unsigned atomicMax(unsigned* target, unsigned value) { return *target < value ? *target = value : *target; }
inline unsigned char* host_shared_memory() { return nullptr; }
inline unsigned char* host_shared_memory(unsigned) { return nullptr; }
inline unsigned host_cluster_blocks() { return 1; }
inline void host_cluster_wait() {}
inline void host_check(bool, const char*) {}
template <class T>
void gather_warp(const T& mine, T (&lanes)[32]) {
  for (T& lane : lanes) lane = mine;
}

}  // namespace ingot
#endif
