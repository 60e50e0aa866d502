// A warp's tensor-core multiplication on sm_80 and up, and the loads from shared memory (shared.cuh) that feed it. On a
// GPU each function is one instruction; on the host it does what the PTX ISA says of that instruction, so that a test
// can run a kernel made of them thread by thread (tests/templates/emulator.h).
#pragma once

#include "memory.cuh"
#include "numerics.cuh"
#include "platform.cuh"
#include "ptx/mma.cuh"
#include "ptx/shared.cuh"
#include "shared.cuh"

namespace ingot {

// Loads four 8 x 8 matrices of 16-bit elements: of each, lane l gets elements 2 (l % 4) and 2 (l % 4) + 1 of row l / 4;
// it passes the address of row l % 8 of matrix l / 8.
INGOT_DEVICE void load_matrices(u32 address, u32 (&matrices)[4]) {
#if INGOT_ON_DEVICE
  ptx::ldmatrix_x4(address, matrices);
#else
  u32 rows[32];
  gather_warp(address, rows);
  const u32 lane = threadIdx.x % 32;
  for (u32 i = 0; i < 4; ++i) {
    const U32x4 row = load_shared16(rows[8 * i + lane / 4]);
    const u32 words[4] = {row.x, row.y, row.z, row.w};
    matrices[i] = words[lane % 4];
  }
#endif
}

#if !INGOT_ON_DEVICE
// One lane's part of the two operands: pairs of elements, the first in the low half.
struct HostFragments {
  u32 a[4], b[2];
};

template <class T>
float host_element(u32 pair, u32 index) {
  return index % 2 == 0 ? low_element(pair, T{}) : high_element(pair, T{});
}
#endif

// d = a b + d, where a has 16 rows and 16 of k, and b has 8 columns and 16 of k; T is f16 or bf16. With g = lane / 4
// and t = lane % 4: a[0] holds k = 2 t and 2 t + 1 of row g, a[1] those of row g + 8; a[2] and a[3] hold the same at k
// + 8. b[0] holds k = 2 t and 2 t + 1 of column g, b[1] the same at k + 8. d[0] and d[1] hold columns 2 t and 2 t + 1
// of row g, d[2] and d[3] those of row g + 8.
template <class T>
INGOT_DEVICE void multiply_add(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
#if INGOT_ON_DEVICE
  ptx::mma_m16n8k16<T>(d, a, b);
#else
  HostFragments lanes[32];
  gather_warp(HostFragments{{a[0], a[1], a[2], a[3]}, {b[0], b[1]}}, lanes);
  const u32 lane = threadIdx.x % 32;
  for (u32 i = 0; i < 4; ++i) {
    const u32 row = lane / 4 + i / 2 * 8;
    const u32 column = lane % 4 * 2 + i % 2;
    for (u32 k = 0; k < 16; ++k) {
      const HostFragments& of_a = lanes[row % 8 * 4 + k % 8 / 2];
      const HostFragments& of_b = lanes[column * 4 + k % 8 / 2];
      const float x = host_element<T>(of_a.a[row / 8 + k / 8 * 2], k);
      const float y = host_element<T>(of_b.b[k / 8], k);
      d[i] = fused_multiply_add(x, y, d[i]);
    }
  }
#endif
}

}  // namespace ingot
