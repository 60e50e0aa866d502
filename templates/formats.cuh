// The number formats as data: each type holds one code and describes its format. numerics.cuh converts codes to and
// from f32.
//
// A new format needs its struct here, its place in `Formats`, and a line of kDtypeTable (src/codegen/types/dtype.h).
// Kernels read its constants; a static_assert refuses a format that they cannot take.
#pragma once

#include "platform.cuh"

namespace ingot {

using f32 = float;
struct alignas(2) bf16 {
  u16 bits;
};
struct alignas(2) f16 {
  u16 bits;
};

// OCP 8-bit floating point (OFP8 1.0). e4m3fn has no Inf and one NaN pattern per sign; e5m2 follows IEEE 754.
struct e4m3fn {
  u8 bits;
  static constexpr int kExponentBits = 4, kMantissaBits = 3, kBias = 7;
  static constexpr bool kFnuz = false, kHasInf = false;
  static constexpr u32 kMaxCode = 0x7e, kNanCode = 0x7f;
  static constexpr double kMax = 448.0;
};
struct e5m2 {
  u8 bits;
  static constexpr int kExponentBits = 5, kMantissaBits = 2, kBias = 15;
  static constexpr bool kFnuz = false, kHasInf = true;
  static constexpr u32 kMaxCode = 0x7b, kNanCode = 0x7f;
  static constexpr double kMax = 57344.0;
};
// "fn" means finite, "uz" unsigned zero: no Inf, no -0; the code that would be -0 is the only NaN. The bias is one
// more.
struct e4m3fnuz {
  u8 bits;
  static constexpr int kExponentBits = 4, kMantissaBits = 3, kBias = 8;
  static constexpr bool kFnuz = true, kHasInf = false;
  static constexpr u32 kMaxCode = 0x7f, kNanCode = 0x80;
  static constexpr double kMax = 240.0;
};
struct e5m2fnuz {
  u8 bits;
  static constexpr int kExponentBits = 5, kMantissaBits = 2, kBias = 16;
  static constexpr bool kFnuz = true, kHasInf = false;
  static constexpr u32 kMaxCode = 0x7f, kNanCode = 0x80;
  static constexpr double kMax = 57344.0;
};

// OCP microscaling elements (MX 1.0): every code is a finite number. A type holds one code, in the low bits of its
// byte.
struct e3m2fn {
  u8 bits;
  static constexpr int kExponentBits = 3, kMantissaBits = 2, kBias = 3;
  static constexpr bool kFnuz = false, kHasInf = false;
  static constexpr u32 kMaxCode = 0x1f;
  static constexpr double kMax = 28.0;
};
struct e2m3fn {
  u8 bits;
  static constexpr int kExponentBits = 2, kMantissaBits = 3, kBias = 1;
  static constexpr bool kFnuz = false, kHasInf = false;
  static constexpr u32 kMaxCode = 0x1f;
  static constexpr double kMax = 7.5;
};
struct e2m1fn {
  u8 bits;
  static constexpr int kExponentBits = 2, kMantissaBits = 1, kBias = 1;
  static constexpr bool kFnuz = false, kHasInf = false;
  static constexpr u32 kMaxCode = 0x7;
  static constexpr double kMax = 6.0;
};
// MX's scales: the power of two 2^(bits - 127); 255 is NaN. There is no sign and no zero.
struct e8m0fnu {
  u8 bits;
};

// Formats with a sign, an exponent and a mantissa, in at most eight bits. kOcp: FP8 tensor cores multiply the format,
// and the instruction cvt converts to it.
template <class T>
concept CodeFormat = requires {
  T::kExponentBits + T::kMantissaBits + T::kBias;
  T::kFnuz || T::kHasInf;
};

// The length of a code in bits.
template <CodeFormat F>
inline constexpr u32 kCodeBits = 1 + F::kExponentBits + F::kMantissaBits;

template <class T>
concept Fp8Format = CodeFormat<T> &&(kCodeBits<T> == 8);

// The OCP formats: FP8 tensor cores multiply them, and the instruction cvt converts to them.
template <class T>
concept OcpFormat = is_same<T, e4m3fn> || is_same<T, e5m2>;

// Formats whose codes are shorter than a byte.
template <class T>
concept SubByteFormat = CodeFormat<T> &&(kCodeBits<T> < 8);

template <class T>
concept HighPrecision = is_same<T, f32> || is_same<T, bf16> || is_same<T, f16>;

template <class... All>
struct FormatList {};
// All types of elements, in the order of codegen's Dtype. u8: bytes of any meaning.
using Formats = FormatList<f32, bf16, f16, e4m3fn, e5m2, e4m3fnuz, e5m2fnuz, e8m0fnu, e3m2fn, e2m3fn, e2m1fn, u8>;

}  // namespace ingot
