// PTX ISA 9.7.15 "wgmma": a warpgroup multiplies a 64 x 32 tile by a 32 x N tile of FP8 codes (of bf16 or f16: 64 x 16
// by 16 x N), both in shared memory, and adds the product to f32 accumulators. Warp w holds rows 16 w to 16 w + 15.
// Lane l holds row l / 4 in d[4 j] and d[4 j + 1], columns 8 j + 2 (l % 4) and the next; d[4 j + 2] and d[4 j + 3] hold
// the same columns of row l / 4 + 8. Device code only; sm_90a.
//
// An asm statement needs the names of all registers in its text; only macros can build that text. They are undefined at
// the end of this file.
#pragma once

#include "formats.cuh"
#include "platform.cuh"

#if INGOT_ON_DEVICE
namespace ingot::ptx {

// Makes registers written so far visible to the next wgmma, which runs asynchronously.
INGOT_DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
INGOT_DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits until all groups but the last `Pending` are complete.
template <u32 Pending>
INGOT_DEVICE void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
}

// Emits no instruction, but the compiler may not read the accumulators before this point, nor write them after it.
template <u32 Count>
INGOT_DEVICE void wgmma_settle(float (&d)[Count]) {
  INGOT_UNROLL
  for (u32 i = 0; i < Count; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// A descriptor gives the tensor cores a tile's address and layout: rows of 128 bytes in the 128-byte swizzle, the first
// at a multiple of 1024 bytes. Bits 0 to 13 hold the address in units of 16 bytes, to which an offset along the row may
// be added; bits 32 to 45 the distance between groups of 8 rows, in the same units; bits 62 and 63 the swizzle mode.
// wgmma_address_field() gives bits 0 to 13.
INGOT_DEVICE u32 wgmma_address_field(u32 address) { return (address & 0x3ffffU) >> 4; }
INGOT_DEVICE u64 wgmma_descriptor_of(u32 place) { return place | u64{1024 >> 4} << 32 | u64{1} << 62; }
INGOT_DEVICE u64 wgmma_descriptor(u32 address) { return wgmma_descriptor_of(wgmma_address_field(address)); }
// A tile of bf16 or f16 may also have rows across k: row k holds 64 neighbours along M or N. The next 64 of them are
// another such tile, `apart` bytes further, which these bits (16 to 29) of the descriptor say. An offset along k may be
// added, 128 bytes for each.
INGOT_HOST_DEVICE constexpr u64 wgmma_across(u32 apart) { return u64{apart >> 4} << 16; }

#define INGOT_D4(i) "+f"(d[i]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3])
#define INGOT_D16(i) INGOT_D4(i), INGOT_D4((i) + 4), INGOT_D4((i) + 8), INGOT_D4((i) + 12)
#define INGOT_D32(i) INGOT_D16(i), INGOT_D16((i) + 16)
#define INGOT_NAMES_0                                                      \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define INGOT_NAMES_32_TO_39 "%32, %33, %34, %35, %36, %37, %38, %39"
#define INGOT_NAMES_32_TO_47 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define INGOT_NAMES_32 \
  INGOT_NAMES_32_TO_47 \
  ", "                 \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define INGOT_NAMES_64_TO_79 "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define INGOT_NAMES_64 \
  INGOT_NAMES_64_TO_79 \
  ", "                 \
  "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define INGOT_NAMES_96                                                                           \
  "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
  "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

// `a`, `b`, `p`: the names of the operands that follow the accumulators.
#define INGOT_WGMMA(n, type_a, type_b, names, a, b, p, ...)                                                 \
  asm volatile("{\n.reg .pred adds;\nsetp.ne.b32 adds, " p                                                  \
               ", 0;\n"                                                                                     \
               "wgmma.mma_async.sync.aligned.m64n" n "k32.f32." type_a "." type_b " {" names "}, " a ", " b \
               ", adds, 1, 1;\n}"                                                                           \
               : __VA_ARGS__                                                                                \
               : "l"(tile_a), "l"(tile_b), "r"(adds))
#define INGOT_WGMMA_TYPES(...)                                   \
  if constexpr (is_same<A, e4m3fn> && is_same<B, e4m3fn>) {      \
    INGOT_WGMMA_OF("e4m3", "e4m3", __VA_ARGS__);                 \
  } else if constexpr (is_same<A, e4m3fn> && is_same<B, e5m2>) { \
    INGOT_WGMMA_OF("e4m3", "e5m2", __VA_ARGS__);                 \
  } else if constexpr (is_same<A, e5m2> && is_same<B, e4m3fn>) { \
    INGOT_WGMMA_OF("e5m2", "e4m3", __VA_ARGS__);                 \
  } else {                                                       \
    static_assert(is_same<A, e5m2> && is_same<B, e5m2>);         \
    INGOT_WGMMA_OF("e5m2", "e5m2", __VA_ARGS__);                 \
  }
#define INGOT_WGMMA_OF(type_a, type_b, n, names, a, b, p, ...) \
  INGOT_WGMMA(n, type_a, type_b, names, a, b, p, __VA_ARGS__)

// d = a b + d if `adds` is not 0, else d = a b. A is [64, 32] and B is [N, 32], both with rows along k.
template <class A, class B, u32 N>
INGOT_DEVICE void wgmma_m64k32(float (&d)[N / 2], u64 tile_a, u64 tile_b, u32 adds) {
  static_assert(N == 64 || N == 80 || N == 96 || N == 128 || N == 160 || N == 192 || N == 256,
                "wgmma of no other width is written down here");
  if constexpr (N == 64) {
    INGOT_WGMMA_TYPES("64", INGOT_NAMES_0, "%32", "%33", "%34", INGOT_D32(0))
  } else if constexpr (N == 80) {
    INGOT_WGMMA_TYPES("80", INGOT_NAMES_0 ", " INGOT_NAMES_32_TO_39, "%40", "%41", "%42", INGOT_D32(0), INGOT_D4(32),
                      INGOT_D4(36))
  } else if constexpr (N == 96) {
    INGOT_WGMMA_TYPES("96", INGOT_NAMES_0 ", " INGOT_NAMES_32_TO_47, "%48", "%49", "%50", INGOT_D32(0), INGOT_D16(32))
  } else if constexpr (N == 128) {
    INGOT_WGMMA_TYPES("128", INGOT_NAMES_0 ", " INGOT_NAMES_32, "%64", "%65", "%66", INGOT_D32(0), INGOT_D32(32))
  } else if constexpr (N == 160) {
    INGOT_WGMMA_TYPES("160", INGOT_NAMES_0 ", " INGOT_NAMES_32 ", " INGOT_NAMES_64_TO_79, "%80", "%81", "%82",
                      INGOT_D32(0), INGOT_D32(32), INGOT_D16(64))
  } else if constexpr (N == 192) {
    INGOT_WGMMA_TYPES("192", INGOT_NAMES_0 ", " INGOT_NAMES_32 ", " INGOT_NAMES_64, "%96", "%97", "%98", INGOT_D32(0),
                      INGOT_D32(32), INGOT_D32(64))
  } else {
    INGOT_WGMMA_TYPES("256", INGOT_NAMES_0 ", " INGOT_NAMES_32 ", " INGOT_NAMES_64 ", " INGOT_NAMES_96, "%128", "%129",
                      "%130", INGOT_D32(0), INGOT_D32(32), INGOT_D32(64), INGOT_D32(96))
  }
}

// `ta`, `tb`: the names of the operands that say which tiles have rows across k.
#define INGOT_WGMMA_16(n, type, names, a, b, p, ta, tb, ...)                                            \
  asm volatile("{\n.reg .pred adds;\nsetp.ne.b32 adds, " p                                              \
               ", 0;\n"                                                                                 \
               "wgmma.mma_async.sync.aligned.m64n" n "k16.f32." type "." type " {" names "}, " a ", " b \
               ", adds, 1, 1, " ta ", " tb ";\n}"                                                       \
               : __VA_ARGS__                                                                            \
               : "l"(tile_a), "l"(tile_b), "r"(adds), "n"(AcrossA ? 1 : 0), "n"(AcrossB ? 1 : 0))
#define INGOT_WGMMA_16_TYPES(...)           \
  if constexpr (is_same<T, bf16>) {         \
    INGOT_WGMMA_16_OF("bf16", __VA_ARGS__); \
  } else {                                  \
    static_assert(is_same<T, f16>);         \
    INGOT_WGMMA_16_OF("f16", __VA_ARGS__);  \
  }
#define INGOT_WGMMA_16_OF(type, n, names, a, b, p, ta, tb, ...) \
  INGOT_WGMMA_16(n, type, names, a, b, p, ta, tb, __VA_ARGS__)

// The same for bf16 or f16: A is [64, 16] and B is [N, 16], with rows along k; or [16, 64] and [16, N], with rows
// across k.
template <class T, bool AcrossA, bool AcrossB, u32 N>
INGOT_DEVICE void wgmma_m64k16_shared(float (&d)[N / 2], u64 tile_a, u64 tile_b, u32 adds) {
  static_assert(N == 64 || N == 128 || N == 160 || N == 192 || N == 256,
                "wgmma of no other width is written down here");
  if constexpr (N == 64) {
    INGOT_WGMMA_16_TYPES("64", INGOT_NAMES_0, "%32", "%33", "%34", "%35", "%36", INGOT_D32(0))
  } else if constexpr (N == 128) {
    INGOT_WGMMA_16_TYPES("128", INGOT_NAMES_0 ", " INGOT_NAMES_32, "%64", "%65", "%66", "%67", "%68", INGOT_D32(0),
                         INGOT_D32(32))
  } else if constexpr (N == 160) {
    INGOT_WGMMA_16_TYPES("160", INGOT_NAMES_0 ", " INGOT_NAMES_32 ", " INGOT_NAMES_64_TO_79, "%80", "%81", "%82", "%83",
                         "%84", INGOT_D32(0), INGOT_D32(32), INGOT_D16(64))
  } else if constexpr (N == 192) {
    INGOT_WGMMA_16_TYPES("192", INGOT_NAMES_0 ", " INGOT_NAMES_32 ", " INGOT_NAMES_64, "%96", "%97", "%98", "%99",
                         "%100", INGOT_D32(0), INGOT_D32(32), INGOT_D32(64))
  } else {
    INGOT_WGMMA_16_TYPES("256", INGOT_NAMES_0 ", " INGOT_NAMES_32 ", " INGOT_NAMES_64 ", " INGOT_NAMES_96, "%128",
                         "%129", "%130", "%131", "%132", INGOT_D32(0), INGOT_D32(32), INGOT_D32(64), INGOT_D32(96))
  }
}

#undef INGOT_WGMMA_16_OF
#undef INGOT_WGMMA_16_TYPES
#undef INGOT_WGMMA_16
#undef INGOT_WGMMA_OF
#undef INGOT_WGMMA_TYPES
#undef INGOT_WGMMA
#undef INGOT_NAMES_96
#undef INGOT_NAMES_64
#undef INGOT_NAMES_64_TO_79
#undef INGOT_NAMES_32
#undef INGOT_NAMES_32_TO_47
#undef INGOT_NAMES_32_TO_39
#undef INGOT_NAMES_0
#undef INGOT_D32
#undef INGOT_D16
#undef INGOT_D4

}  // namespace ingot::ptx
#endif
