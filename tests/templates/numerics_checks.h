// Checks one input through every conversion to a format against the references, for the CI test and the nightly one.
#pragma once

// Must come before CUDA's headers, which silently define __shared__ and the like for every compiler.
// clang-format off
#include "numerics.cuh"
// clang-format on

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>

#include "tests/templates/fp8_oracle.h"

namespace ingot::checks {

// Does cuda_fp8.h have the format? It has the two OCP formats.
template <class F>
inline constexpr bool kInCuda = is_same<F, e4m3fn> || is_same<F, e5m2>;

template <class F>
inline constexpr __nv_fp8_interpretation_t kCudaFormat = is_same<F, e4m3fn> ? __NV_E4M3 : __NV_E5M2;

// The code that the contract gives NaN. cuda_fp8.h's choice is not compared: any of its NaN codes is accepted.
template <class F>
inline constexpr int kNan = oracle::kDefinition<F>.fnuz ? 0x80 : 0x7f;

template <class F>
int cuda_encode(float x) {
  const int code = __nv_cvt_float_to_fp8(x, __NV_SATFINITE, kCudaFormat<F>);
  return std::isnan(oracle::value_of(oracle::kDefinition<F>, static_cast<unsigned>(code))) ? kNan<F> : code;
}

inline int cuda_bf16(float x) { return __bfloat16_as_ushort(__float2bfloat16_rn(x)); }
inline int cuda_f16(float x) { return __half_as_ushort(__float2half_rn(x)); }

struct Mismatch {
  std::uint64_t index;
  std::string text;
};

inline std::string mismatch_text(const char* what, float x, int got, const char* reference, int expected) {
  return fmt::format("{} of {:#010x} ({:.9g}) gives {:#04x}, but {} gives {:#04x}", what,
                     std::bit_cast<std::uint32_t>(x), x, got, reference, expected);
}

// Empty if every way of encoding x agrees with the oracle and with cuda_fp8.h.
template <class F>
std::string encode_mismatch(float x, const oracle::FastOracle& oracle) {
  const int from_oracle = oracle.encode(x);
  const int expected = from_oracle < 0 ? kNan<F> : from_oracle;
  const int software = encode_software<F>(x).bits;
  const char* format = oracle::kDefinition<F>.name;
  if (software != expected) return mismatch_text(format, x, software, "the oracle", expected);
  if constexpr (kInCuda<F>) {
    const int cuda = cuda_encode<F>(x);
    if (software != cuda) return mismatch_text(format, x, software, "cuda_fp8.h", cuda);
  }
  return {};
}

// NaN in bf16 and f16: exactly the one that the hardware's cvt.rn gives, because kernels round with it and the CPU must
// give the same bits. A CUDA header's host function chooses its own NaN, which is not compared.
inline constexpr int kNan16 = 0x7fff;

// Empty if the two roundings to 16 bits agree with cuda_bf16.h and cuda_fp16.h.
inline std::string round_mismatch(float x) {
  const int to_bf16 = from_float<bf16>(x).bits;
  const int to_f16 = from_float<f16>(x).bits;
  const int expected_bf16 = std::isnan(x) ? kNan16 : cuda_bf16(x);
  const int expected_f16 = std::isnan(x) ? kNan16 : cuda_f16(x);
  if (to_bf16 != expected_bf16) return mismatch_text("bf16", x, to_bf16, "cuda_bf16.h", expected_bf16);
  if (to_f16 != expected_f16) return mismatch_text("f16", x, to_f16, "cuda_fp16.h", expected_f16);
  return {};
}

// Sends input(0) ... input(count - 1) through every check; each thread reports the mismatch of lowest index in its
// piece.
template <class Input>
std::optional<Mismatch> first_mismatch(unsigned threads, std::uint64_t count, const Input& input) {
  const oracle::FastOracle of_e4m3fn(oracle::kDefinition<e4m3fn>), of_e5m2(oracle::kDefinition<e5m2>);
  const oracle::FastOracle of_e4m3fnuz(oracle::kDefinition<e4m3fnuz>), of_e5m2fnuz(oracle::kDefinition<e5m2fnuz>);
  std::mutex mutex;
  std::optional<Mismatch> found;
  oracle::in_threads(threads, count, [&](unsigned, std::uint64_t begin, std::uint64_t end) {
    for (std::uint64_t i = begin; i < end; ++i) {
      const float x = input(i);
      std::string text = encode_mismatch<e4m3fn>(x, of_e4m3fn);
      if (text.empty()) text = encode_mismatch<e5m2>(x, of_e5m2);
      if (text.empty()) text = encode_mismatch<e4m3fnuz>(x, of_e4m3fnuz);
      if (text.empty()) text = encode_mismatch<e5m2fnuz>(x, of_e5m2fnuz);
      if (text.empty()) text = round_mismatch(x);
      if (text.empty()) continue;
      const std::lock_guard lock(mutex);
      if (!found || i < found->index) found = Mismatch{i, text};
      return;
    }
  });
  return found;
}

}  // namespace ingot::checks
