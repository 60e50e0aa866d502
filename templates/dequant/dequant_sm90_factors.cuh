// How dequant_sm90 loads the scale_inv of groups of k: each thread that multiplies groups' sums fetches them ahead, as
// k ascends. A stage may go past the last k: its groups there have no codes, and so sums of 0, which Inf would make
// NaN. Their scale_inv are 0.
#pragma once

#include "dequant/dequant_factors.cuh"
#include "dequant/dequant_fragment.cuh"
#include "dequant/dequant_sm90_producer.cuh"
#include "dequant/dequant_sm90_tiling.cuh"
#include "memory.cuh"
#include "platform.cuh"

namespace ingot {

#if INGOT_ON_DEVICE
// The scale_inv of a thread's rows, as k ascends. The four lanes that have the same rows hold those of four groups.
template <DequantFactors Kind, DequantSm90Tiling T>
struct DequantGroups {
  static constexpr u32 kGroup = dequant_group(Kind);
  static constexpr u32 Waves = T.waves;
  const DequantSm90Params& p;
  DequantExpert expert;
  u32 row;  // the first of this lane's rows
  u32 lane;
  u32 last;  // the last group
  u32 four = 0;
  float now[Waves][2] = {};
  float next[Waves][2] = {};

  INGOT_DEVICE DequantGroups(const DequantSm90Params& params, const DequantExpert& of, u32 first_row, u32 own_lane)
      : p(params), expert(of), row(first_row), lane(own_lane), last((params.k - 1) / max_of(kGroup, 1U)) {}

  INGOT_DEVICE void fetch(float (&into)[Waves][2], u32 of) const {
    const u32 wanted = 4 * of + lane % 4;
    const u32 group = min_of(wanted, last);
    INGOT_UNROLL
    for (u32 wave = 0; wave < Waves; ++wave) {
      INGOT_UNROLL
      for (u32 half = 0; half < 2; ++half) {
        const u32 own = min_of(row + wave * 64 + half * 8, p.n - 1);
        const float factor = group_factor<Kind>(dequant_factors<T>(p, expert), p.factor_stride, own, group);
        into[wave][half] = wanted <= last ? factor : 0.0F;
      }
    }
  }
  INGOT_DEVICE void begin(u32 k) {
    four = k / kGroup / 4;
    fetch(now, four);
    fetch(next, four + 1);
  }
  // Makes the scale_inv of k's group available. k ascends from call to call.
  INGOT_DEVICE void advance(u32 k) {
    const u32 of = k / kGroup / 4;
    if (of == four) return;
    if (of == four + 1) {
      INGOT_UNROLL
      for (u32 wave = 0; wave < Waves; ++wave) {
        now[wave][0] = next[wave][0];
        now[wave][1] = next[wave][1];
      }
    } else {
      fetch(now, of);
    }
    four = of;
    fetch(next, four + 1);
  }
  INGOT_DEVICE float factor(u32 wave, u32 half, u32 k) const {
    const u32 from = (lane & ~3U) | (k / kGroup % 4);
    return float_from_bits(__shfl_sync(0xffffffffU, float_bits(now[wave][half]), from));
  }
};
#endif

}  // namespace ingot
