// PTX ISA 9.7.15 "wgmma": a warpgroup multiplies a 64 x 16 tile of bf16 or f16, in registers, by a 16 x N tile in
// shared memory, and adds the product to f32 accumulators. Warp w holds rows 16 w to 16 w + 15 of both the first tile
// and the product. a0 to a3 are operand A of mma.m16n8k16 (templates/gemm/warp_mma.cuh); the accumulators are laid out
// as in wgmma.cuh, which also has the fences. Device code only; sm_90a.
//
// An asm statement needs the names of all registers in its text; only macros can build that text. They are undefined at
// the end of this file.
#pragma once

#include "formats.cuh"
#include "platform.cuh"
#include "ptx/wgmma.cuh"

#if INGOT_ON_DEVICE
namespace ingot::ptx {

#define INGOT_D4(i) "+f"(d[i]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3])
#define INGOT_D8(i) INGOT_D4(i), INGOT_D4((i) + 4)
#define INGOT_D32(i) INGOT_D8(i), INGOT_D8((i) + 8), INGOT_D8((i) + 16), INGOT_D8((i) + 24)
#define INGOT_NAMES_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define INGOT_NAMES_12 INGOT_NAMES_8 ", %8, %9, %10, %11"
#define INGOT_NAMES_16 \
  INGOT_NAMES_8        \
  ", "                 \
  "%8, %9, %10, %11, %12, %13, %14, %15"
#define INGOT_NAMES_32 \
  INGOT_NAMES_16       \
  ", "                 \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define INGOT_NAMES_64                                                             \
  INGOT_NAMES_32                                                                   \
  ", "                                                                             \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47" \
  ", "                                                                             \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define INGOT_NAMES_96                                                             \
  INGOT_NAMES_64                                                                   \
  ", "                                                                             \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79" \
  ", "                                                                             \
  "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define INGOT_NAMES_128                                                                        \
  INGOT_NAMES_96                                                                               \
  ", "                                                                                         \
  "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111" \
  ", "                                                                                         \
  "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

// `a`, `b`, `p`: the names of the operands that follow the accumulators.
#define INGOT_WGMMA(n, type, names, a, b, p, ...)                                                         \
  asm volatile("{\n.reg .pred adds;\nsetp.ne.b32 adds, " p                                                \
               ", 0;\n"                                                                                   \
               "wgmma.mma_async.sync.aligned.m64n" n "k16.f32." type "." type " {" names "}, {" a "}, " b \
               ", adds, 1, 1, 0;\n}"                                                                      \
               : __VA_ARGS__                                                                              \
               : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(tile_b), "r"(adds))
#define INGOT_WGMMA_TYPES(...)           \
  if constexpr (is_same<T, bf16>) {      \
    INGOT_WGMMA_OF("bf16", __VA_ARGS__); \
  } else {                               \
    static_assert(is_same<T, f16>);      \
    INGOT_WGMMA_OF("f16", __VA_ARGS__);  \
  }
#define INGOT_WGMMA_OF(type, n, names, a, b, p, ...) INGOT_WGMMA(n, type, names, a, b, p, __VA_ARGS__)

// d = a b + d if `adds` is not 0, else d = a b. B is [N, 16], with rows along k.
template <class T, u32 N>
INGOT_DEVICE void wgmma_m64k16(float (&d)[N / 2], u32 a0, u32 a1, u32 a2, u32 a3, u64 tile_b, u32 adds) {
  static_assert(N == 16 || N == 24 || N == 32 || N == 64 || N == 128 || N == 256,
                "wgmma of no other width is written down here");
  if constexpr (N == 16) {
    INGOT_WGMMA_TYPES("16", INGOT_NAMES_8, "%8, %9, %10, %11", "%12", "%13", INGOT_D8(0))
  } else if constexpr (N == 24) {
    INGOT_WGMMA_TYPES("24", INGOT_NAMES_12, "%12, %13, %14, %15", "%16", "%17", INGOT_D8(0), INGOT_D4(8))
  } else if constexpr (N == 32) {
    INGOT_WGMMA_TYPES("32", INGOT_NAMES_16, "%16, %17, %18, %19", "%20", "%21", INGOT_D8(0), INGOT_D8(8))
  } else if constexpr (N == 64) {
    INGOT_WGMMA_TYPES("64", INGOT_NAMES_32, "%32, %33, %34, %35", "%36", "%37", INGOT_D32(0))
  } else if constexpr (N == 128) {
    INGOT_WGMMA_TYPES("128", INGOT_NAMES_64, "%64, %65, %66, %67", "%68", "%69", INGOT_D32(0), INGOT_D32(32))
  } else {
    INGOT_WGMMA_TYPES("256", INGOT_NAMES_128, "%128, %129, %130, %131", "%132", "%133", INGOT_D32(0), INGOT_D32(32),
                      INGOT_D32(64), INGOT_D32(96))
  }
}

#undef INGOT_WGMMA_OF
#undef INGOT_WGMMA_TYPES
#undef INGOT_WGMMA
#undef INGOT_NAMES_128
#undef INGOT_NAMES_96
#undef INGOT_NAMES_64
#undef INGOT_NAMES_32
#undef INGOT_NAMES_16
#undef INGOT_NAMES_12
#undef INGOT_NAMES_8
#undef INGOT_D32
#undef INGOT_D8
#undef INGOT_D4

}  // namespace ingot::ptx
#endif
