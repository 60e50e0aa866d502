// Decodes FP8 codes to f16, four at a time, in a few integer instructions. f16 represents every value of all FP8
// formats, so nothing is rounded; NaN and Inf stay what they are. The result is the value divided by a power of two
// that depends only on the format, because moving a code's bits to where f16 has them gives just that. The kernel
// (gemm_mma.cuh) multiplies the sum of the products by that power of two, once and exactly.
#pragma once

#include "formats.cuh"
#include "numerics.cuh"
#include "platform.cuh"
#include "ptx/cvt.cuh"
#include "ptx/integer.cuh"

namespace ingot {

// cvt.rn.f16x2.e4m3x2 exists from sm_89 on.
template <Fp8Format F>
INGOT_HOST_DEVICE constexpr bool has_hardware_decode() {
  return kDeviceArch >= 890 && is_same<F, e4m3fn>;
}

// value = f16 * 2^decode_exponent<F>(). It is the difference of the biases where f16's exponent is longer, and 0 for
// 5-bit exponents: e5m2 is the upper half of an f16, and decode_four() corrects e5m2fnuz's exponent.
template <Fp8Format F>
INGOT_HOST_DEVICE constexpr int decode_exponent() {
  return has_hardware_decode<F>() || F::kExponentBits == 5 ? 0 : 15 - F::kBias;
}

// Byte i of the result follows hexadecimal digit i of Selector: 0 to 3 select that byte of the word, 4 gives zeros, 8
// to b give the sign of byte 0 to 3 in all eight bits.
template <u32 Selector>
INGOT_HOST_DEVICE u32 permute_bytes(u32 word) {
#if INGOT_ON_DEVICE
  return ptx::prmt<Selector>(word, 0);
#else
  u32 result = 0;
  for (u32 i = 0; i < 4; ++i) {
    const u32 digit = Selector >> (4 * i) & 0xfU;
    const u32 byte = (digit & 4U) != 0 ? 0 : word >> (8 * (digit & 3U)) & 0xffU;
    result |= ((digit & 8U) == 0 ? byte : (byte & 0x80U) != 0 ? 0xffU : 0U) << (8 * i);
  }
  return result;
#endif
}

// Decodes four codes, the first in the lowest byte, to pairs[0] and pairs[1], the first of each pair in the low half.
template <Fp8Format F>
INGOT_HOST_DEVICE void decode_four(u32 codes, u32 (&pairs)[2]) {
#if INGOT_ON_DEVICE
  if constexpr (has_hardware_decode<F>()) {
    ptx::cvt_f16x2_e4m3x4(codes, pairs[0], pairs[1]);
    return;
  }
#endif
  constexpr u32 kSigns = 0x80008000U;
  // Each code in the upper half of its f16.
  const u32 wide[2] = {permute_bytes<0x1404>(codes), permute_bytes<0x3424>(codes)};
  const u32 magnitudes = codes & 0x7f7f7f7fU;
  // The top bit of each byte says whether the code is NaN.
  const u32 nan = F::kFnuz ? codes & ~(magnitudes + 0x7f7f7f7fU) : magnitudes + 0x01010101U;
  const u32 nans[2] = {permute_bytes<0x9988>(nan), permute_bytes<0xbbaa>(nan)};
  // Likewise whether its exponent is at least 2.
  const u32 large = magnitudes + 0x78787878U;
  const u32 larges[2] = {permute_bytes<0x9988>(large), permute_bytes<0xbbaa>(large)};
  INGOT_UNROLL
  for (u32 i = 0; i < 2; ++i) {
    const u32 shifted = (wide[i] & ~kSigns) >> 1;
    if constexpr (is_same<F, e5m2>) {
      pairs[i] = wide[i];
    } else if constexpr (is_same<F, e5m2fnuz>) {
      // Lowers the exponent by one; a code that becomes subnormal moves its mantissa down, with the leading one. The
      // top bit keeps the subtraction within its half.
      const u32 lowered = (wide[i] | kSigns) - 0x04000400U;
      const u32 magnitude = (lowered & larges[i]) | (shifted & ~larges[i]);
      pairs[i] = (magnitude & ~kSigns) | (wide[i] & kSigns) | nans[i];
    } else {
      static_assert(F::kExponentBits == 4 && (F::kFnuz || F::kMaxCode == 0x7e), "decode_four() lacks this format");
      pairs[i] = shifted | (wide[i] & kSigns) | nans[i];
    }
  }
}

// Converts decode_four()'s results to bf16, exactly: codes have few bits, and bf16 has every exponent that they have as
// f16.
INGOT_HOST_DEVICE void to_bf16_pairs(u32 (&pairs)[2]) {
  INGOT_UNROLL
  for (u32 i = 0; i < 2; ++i) {
    pairs[i] = from_float_pair<bf16>(to_float(f16{static_cast<u16>(pairs[i])}),
                                     to_float(f16{static_cast<u16>(pairs[i] >> 16)}));
  }
}

}  // namespace ingot
