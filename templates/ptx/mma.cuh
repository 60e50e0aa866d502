// PTX ISA 9.7.14.5 "mma" and "ldmatrix", 9.7.9.25 "cp.async": a warp's tensor-core multiplication, and the loads that
// bring its operands. Device code only; sm_80 and up. templates/gemm/warp_mma.cuh says which lane holds which element.
#pragma once

#include "formats.cuh"
#include "platform.cuh"

#if INGOT_ON_DEVICE
namespace ingot::ptx {

// Copies `size` bytes from `source` to shared memory and fills the rest of `Bytes` with zeros, as part of the thread's
// next group. Copies of 16 bytes bypass the L1.
template <u32 Bytes>
INGOT_DEVICE void cp_async(u32 target, const void* source, u32 size) {
  static_assert(Bytes == 4 || Bytes == 8 || Bytes == 16);
  if constexpr (Bytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(target), "l"(source), "r"(size) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %3, %2;" ::"r"(target), "l"(source), "r"(size), "n"(Bytes)
                 : "memory");
  }
}
// The same of 16 bytes, through the L1: for copies of which two share a sector.
INGOT_DEVICE void cp_async_cached(u32 target, const void* source, u32 size) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 16, %2;" ::"r"(target), "l"(source), "r"(size) : "memory");
}
INGOT_DEVICE void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until all of the thread's groups but the last `Pending` are complete and visible to the thread itself.
template <u32 Pending>
INGOT_DEVICE void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}

// Loads four 8 x 8 matrices of 16-bit elements; lane l passes the address of row l % 8 of matrix l / 8.
INGOT_DEVICE void ldmatrix_x4(u32 address, u32 (&matrices)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3])
               : "r"(address)
               : "memory");
}

// d = a b + d for a 16 x 16 tile a and a 16 x 8 tile b, summed in f32.
template <class T>
INGOT_DEVICE void mma_m16n8k16(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
  static_assert(is_same<T, f16> || is_same<T, bf16>);
  if constexpr (is_same<T, f16>) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
}

}  // namespace ingot::ptx
#endif
