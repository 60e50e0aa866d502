// output[r, c] = input[r, c] rounded to nearest even to a number format with a sign bit, an exponent and a mantissa
// (any format of up to eight bits). The result has the input's dtype; no code is stored. Values beyond the format's
// largest become that largest value; NaN stays NaN. The output may be the input. elementwise.cuh reads and writes the
// matrices.
#pragma once

#include "cast/elementwise.cuh"
#include "numerics.cuh"
#include "platform.cuh"

namespace ingot {

// The format's bias is 2^(exponent_bits - 1) - 1; every code is a finite number, and the codes with exponent 0 are
// subnormal. Kernels pass constants for both bit counts, so the compiler computes everything but the rounding itself.
INGOT_HOST_DEVICE float round_to_format(float x, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int dropped = 23 - mantissa_bits;
  const u32 min_normal = static_cast<u32>(127 + 1 - bias) << 23;
  const u32 bits = float_bits(x);
  const u32 magnitude = bits & 0x7fffffffU;
  const u32 sign = bits & 0x80000000U;
  if (magnitude > kF32Inf) return float_from_bits(kF32Nan);
  if (magnitude < min_normal) {
    // The subnormal step of encode_software(); the subtraction is exact.
    const float magic = float_from_bits(static_cast<u32>(127 + 1 - bias + dropped) << 23);
    return float_from_bits(sign | float_bits((float_from_bits(magnitude) + magic) - magic));
  }
  // Adds half of the dropped part minus one, plus the last kept bit. In a format without mantissa that bit is the
  // exponent's last bit. It equals the code's last bit, except in a format with a one-bit exponent, whose only normal
  // number is the largest value.
  const u32 rounded = magnitude + ((1U << (dropped - 1)) - 1U) + ((magnitude >> dropped) & 1U);
  // The largest code, with its exponent and mantissa where f32 has them.
  const u32 largest =
      (static_cast<u32>(127 + (1 << exponent_bits) - 1 - bias) << 23) | (((1U << mantissa_bits) - 1U) << dropped);
  return float_from_bits(sign | min_of(rounded & ~((1U << dropped) - 1U), largest));
}

// The kernel's template arguments that are not types.
struct FloatQuantizeConfig {
  int exponent_bits = 0;
  int mantissa_bits = 0;
};

// The rounding as a pointwise expression (pointwise.cuh).
template <FloatQuantizeConfig C>
struct FloatQuantizer {
  static_assert(C.exponent_bits >= 1 && C.exponent_bits <= 7 && C.mantissa_bits >= 0 &&
                C.exponent_bits + C.mantissa_bits <= 7);
  static constexpr u32 kInputs = 0;
  static constexpr bool kUsesX = true;
  static constexpr InputKind kKinds[kMaxInputs] = {};
  INGOT_HOST_DEVICE static float apply(float x) { return round_to_format(x, C.exponent_bits, C.mantissa_bits); }
};

template <HighPrecision In, FloatQuantizeConfig C>
using FloatQuantizeSource = ValueSource<In, FloatQuantizer<C>, ValueConfig{.in_place = true}>;

template <HighPrecision In, FloatQuantizeConfig C>
INGOT_KERNEL void INGOT_LAUNCH_BOUNDS(ElementwiseLaunch::kThreads,
                                      (elementwise_residency<FloatQuantizeSource<In, C>>()))
    float_quantize(const __grid_constant__ ElementwiseParams p) {
  using Rounded = FloatQuantizeSource<In, C>;
  start_in_turn();
  elementwise_tiles<ElementwiseOutput<Rounded>>(p);
}

}  // namespace ingot
