// output[r, c] = input[r, c] rounded to nearest even in a format of a sign, an exponent and a mantissa (any of up to
// eight bits), as a number of the input's own type: what a value becomes in that format, without its code. Past the
// largest value is that value; NaN stays NaN. In place, if wanted; elementwise.cuh moves the bytes.
#pragma once

#include "cast/elementwise.cuh"
#include "numerics.cuh"
#include "platform.cuh"

namespace ingot {

// Bias 2^(exponent_bits - 1) - 1; every code is a finite number, those of exponent 0 are subnormal. Kernels give
// constants, of which all but the rounding itself is computed at compile time.
INGOT_HOST_DEVICE float round_to_format(float x, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int dropped = 23 - mantissa_bits;
  const u32 min_normal = static_cast<u32>(127 + 1 - bias) << 23;
  const u32 bits = float_bits(x);
  const u32 magnitude = bits & 0x7fffffffU;
  const u32 sign = bits & 0x80000000U;
  if (magnitude > kF32Inf) return float_from_bits(kF32Nan);
  if (magnitude < min_normal) {
    // encode_software()'s step; the difference is exact.
    const float magic = float_from_bits(static_cast<u32>(127 + 1 - bias + dropped) << 23);
    return float_from_bits(sign | float_bits((float_from_bits(magnitude) + magic) - magic));
  }
  // Half of the dropped part minus one, plus the last kept bit. Without a mantissa that is the exponent's last bit,
  // which is the code's too but for an exponent of one bit, whose only normal is the largest value.
  const u32 rounded = magnitude + ((1U << (dropped - 1)) - 1U) + ((magnitude >> dropped) & 1U);
  // The code of all ones in f32's place.
  const u32 largest =
      (static_cast<u32>(127 + (1 << exponent_bits) - 1 - bias) << 23) | (((1U << mantissa_bits) - 1U) << dropped);
  return float_from_bits(sign | min_of(rounded & ~((1U << dropped) - 1U), largest));
}

// As an expression (pointwise.cuh).
template <int kExponentBits, int kMantissaBits>
struct FloatQuantizer {
  static_assert(kExponentBits >= 1 && kExponentBits <= 7 && kMantissaBits >= 0 && kExponentBits + kMantissaBits <= 7);
  static constexpr u32 kInputs = 0;
  static constexpr bool kUsesX = true;
  static constexpr InputKind kKinds[kMaxInputs] = {};
  INGOT_HOST_DEVICE static float apply(float x) { return round_to_format(x, kExponentBits, kMantissaBits); }
};

template <HighPrecision In, int kExponentBits, int kMantissaBits>
using FloatQuantizeSource = ValueSource<In, FloatQuantizer<kExponentBits, kMantissaBits>, false, true>;

template <HighPrecision In, int kExponentBits, int kMantissaBits>
INGOT_KERNEL void INGOT_LAUNCH_BOUNDS(ElementwiseLaunch::kThreads,
                                      (elementwise_residency<FloatQuantizeSource<In, kExponentBits, kMantissaBits>>()))
    float_quantize(const __grid_constant__ ElementwiseParams p) {
  using Rounded = FloatQuantizeSource<In, kExponentBits, kMantissaBits>;
  start_in_turn();
  elementwise_tiles<Rounded>(p);
}

}  // namespace ingot
