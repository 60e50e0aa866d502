// How the parts of a tile that is cut along K (stream_k.cuh) get from the block that has summed them to the tile's
// owner: through the L2, warp by warp. A warp writes its sums as its threads hold them; the same threads of the owner
// read them, and only a flag of that warp says when they may. The owner clears the flag, so that the next launch finds
// it as this one did.
//
// The stores ask the L2 to keep a part until it has been read: meanwhile more data streams through it than it holds.
#pragma once

#include "gemm/stream_k.cuh"
#include "numerics.cuh"
#include "platform.cuh"
#include "ptx/memory.cuh"

#if INGOT_ON_DEVICE
namespace ingot {

// The memory of one stretch's part, `Bytes` long, as seen by one of a block's `Warps` multiplying warps.
template <u32 Warps, u64 Bytes>
struct StreamKPart {
  U32x4* sums;
  u32* flag;

  INGOT_DEVICE StreamKPart(const StreamKParams& p, u32 stretch, u32 warp, u32 lane)
      : sums(reinterpret_cast<U32x4*>(reinterpret_cast<u8*>(p.parts) + stretch * Bytes) + warp * 32 + lane),
        flag(p.flags + stretch * Warps + warp) {}
  static constexpr u32 kStride = 32 * Warps;  // from one of a thread's vectors to the next

  template <u32 Waves, u32 Sums>
  INGOT_DEVICE void write(const float (&d)[Waves][Sums], u32 lane) const {
    const u64 policy = ptx::createpolicy_evict_last();
    INGOT_UNROLL
    for (u32 wave = 0; wave < Waves; ++wave) {
      INGOT_UNROLL
      for (u32 i = 0; i < Sums / 4; ++i) {
        const float* const x = d[wave] + 4 * i;
        ptx::st_global(sums + (wave * (Sums / 4) + i) * kStride,
                       U32x4{float_bits(x[0]), float_bits(x[1]), float_bits(x[2]), float_bits(x[3])}, policy);
      }
    }
    __syncwarp();
    if (lane == 0) ptx::st_release(flag, 1);
  }

  // d = d + part, AtOnce vectors at a time: as many as there are registers for.
  template <u32 AtOnce, u32 Waves, u32 Sums>
  INGOT_DEVICE void add_to(float (&d)[Waves][Sums], u32 lane) const {
    if (lane == 0) {
      while (ptx::ld_acquire(flag) == 0) {}
      ptx::st_relaxed(flag, 0);
    }
    __syncwarp();
    static_assert(Sums / 4 % AtOnce == 0);
    const u64 policy = ptx::createpolicy_evict_first();
    INGOT_UNROLL
    for (u32 wave = 0; wave < Waves; ++wave) {
      INGOT_UNROLL
      for (u32 first = 0; first < Sums / 4; first += AtOnce) {
        U32x4 part[AtOnce];
        if (wave != 0 || first != 0) ptx::fence_block();  // otherwise ptxas loads all of them before it adds the first
        INGOT_UNROLL
        for (u32 i = 0; i < AtOnce; ++i) {
          part[i] = ptx::ld_global_cg(sums + (wave * (Sums / 4) + first + i) * kStride, policy);
        }
        INGOT_UNROLL
        for (u32 i = 0; i < AtOnce; ++i) {
          float* const x = d[wave] + 4 * (first + i);
          x[0] = x[0] + float_from_bits(part[i].x);
          x[1] = x[1] + float_from_bits(part[i].y);
          x[2] = x[2] + float_from_bits(part[i].z);
          x[3] = x[3] + float_from_bits(part[i].w);
        }
      }
    }
  }
};

}  // namespace ingot
#endif
