// Factors of groups of k in dequant_sm90: how they come to the threads that multiply, as k ascends.
#pragma once

#include "dequant_factors.cuh"
#include "dequant_fragment.cuh"
#include "dequant_sm90_producer.cuh"
#include "dequant_sm90_tiling.cuh"
#include "memory.cuh"
#include "platform.cuh"

namespace ingot {

#if INGOT_ON_DEVICE
// The factors of a thread's rows, as k ascends. The four lanes that have the same rows hold those of four groups.
template <DequantFactors Kind, u32 Waves>
struct DequantGroups {
  static constexpr u32 kGroup = dequant_group(Kind);
  const DequantSm90Params& p;
  u32 row;  // of this lane's first
  u32 lane;
  u32 last;  // group
  u32 four = 0;
  float now[Waves][2] = {};
  float next[Waves][2] = {};

  INGOT_DEVICE DequantGroups(const DequantSm90Params& params, u32 first_row, u32 own_lane)
      : p(params), row(first_row), lane(own_lane), last((params.k - 1) / max_of(kGroup, 1U)) {}

  INGOT_DEVICE void fetch(float (&into)[Waves][2], u32 of) const {
    const u32 group = min_of(4 * of + lane % 4, last);
    INGOT_UNROLL
    for (u32 wave = 0; wave < Waves; ++wave) {
      INGOT_UNROLL
      for (u32 half = 0; half < 2; ++half) {
        into[wave][half] =
            group_factor<Kind>(p.factors, p.factor_stride, min_of(row + wave * 64 + half * 8, p.n - 1), group);
      }
    }
  }
  INGOT_DEVICE void begin(u32 k) {
    four = k / kGroup / 4;
    fetch(now, four);
    fetch(next, four + 1);
  }
  // For all groups up to the one of k.
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

// Factors of e8m0 that are multiplied into the codes, a byte each 32 k. The four lanes that have the same rows hold
// four words of four factors: those of 512 k.
template <u32 Waves>
struct DequantMxWords {
  using Words = u32[Waves][2];

  const DequantSm90Params& p;
  u32 row;  // of this lane's first
  u32 lane;
  u32 last;  // factor of a row
  bool aligned;
  u32 window = 0;
  Words now = {};
  Words next = {};

  INGOT_DEVICE DequantMxWords(const DequantSm90Params& params, u32 first_row, u32 own_lane)
      : p(params),
        row(first_row),
        lane(own_lane),
        last((params.k - 1) / 32),
        aligned(params.factor_stride % 4 == 0 && reinterpret_cast<u64>(params.factors) % 4 == 0) {}

  INGOT_DEVICE void fetch(Words& into, u32 of) const {
    const u32 first = min_of(16 * of + 4 * (lane % 4), last & ~3U);
    INGOT_UNROLL
    for (u32 wave = 0; wave < Waves; ++wave) {
      INGOT_UNROLL
      for (u32 half = 0; half < 2; ++half) {
        const u8* const from = static_cast<const u8*>(p.factors) +
                               u64{min_of(row + wave * 64 + half * 8, p.n - 1)} * p.factor_stride + first;
        if (aligned) {
          // Not to be touched here: whoever looks at it waits for the memory.
          into[wave][half] = *reinterpret_cast<const u32*>(from);
        } else {
          into[wave][half] = from[0];
          INGOT_UNROLL
          for (u32 i = 1; i < 4; ++i) {
            if (first + i <= last) into[wave][half] |= u32{from[i]} << 8 * i;
          }
        }
      }
    }
  }
  INGOT_DEVICE void begin(u32 k) {
    window = k / 512;
    fetch(now, window);
    fetch(next, window + 1);
  }
  // Those of k, a multiple of 32, and of what follows up to a multiple of 128, the first in the lowest bits.
  INGOT_DEVICE void words(u32 k, Words& of) {
    if (k / 512 != window) {
      if (k / 512 == window + 1) {
        INGOT_UNROLL
        for (u32 wave = 0; wave < Waves; ++wave) {
          now[wave][0] = next[wave][0];
          now[wave][1] = next[wave][1];
        }
      } else {
        fetch(now, k / 512);
      }
      window = k / 512;
      fetch(next, window + 1);
    }
    // What is behind a row's last factor may be anything, also NaN.
    const u32 here = min_of(last - min_of(k / 32, last), 3U);
    INGOT_UNROLL
    for (u32 wave = 0; wave < Waves; ++wave) {
      INGOT_UNROLL
      for (u32 half = 0; half < 2; ++half) {
        const u32 four = __shfl_sync(0xffffffffU, now[wave][half], (lane & ~3U) | (k / 128 % 4));
        of[wave][half] = four >> k / 32 % 4 * 8 & 0xffffffffU >> 8 * (3 - here);
      }
    }
  }
};
#endif

}  // namespace ingot
