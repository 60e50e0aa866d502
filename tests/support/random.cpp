#include "support/random.h"

namespace ingot::test {

std::uint64_t random_bits(std::uint64_t seed, std::uint64_t index) {
  std::uint64_t z = seed * 0xd1342543de82ef95U + (index + 1) * 0x9e3779b97f4a7c15U;
  z = (z ^ (z >> 30U)) * 0xbf58476d1ce4e5b9U;
  z = (z ^ (z >> 27U)) * 0x94d049bb133111ebU;
  return z ^ (z >> 31U);
}

double random_unit(std::uint64_t seed, std::uint64_t index) {
  return static_cast<double>(random_bits(seed, index) >> 11U) * 0x1p-53;
}

float random_normal(std::uint64_t seed, std::uint64_t index) {
  const std::uint64_t bits = random_bits(seed, index);
  double sum = 0;
  for (unsigned i = 0; i < 4; ++i) sum += static_cast<double>((bits >> (16U * i)) & 0xffffU);
  return static_cast<float>((sum / 65535.0 - 2.0) * 1.7320508);
}

float random_value(Input input, Dtype dtype, std::uint64_t seed, std::uint64_t index) {
  const std::uint64_t bits = random_bits(seed + 1000, index);
  const float sign = (bits & 1U) != 0 ? -1.0F : 1.0F;
  switch (input) {
    case Input::normal: return random_normal(seed, index);
    case Input::nan: return bits % 997 == 5 ? std::numeric_limits<float>::quiet_NaN() : random_normal(seed, index);
    case Input::inf:
      return bits % 997 == 5 ? sign * std::numeric_limits<float>::infinity() : random_normal(seed, index);
    case Input::zeros: return sign * 0.0F;
    case Input::equal: return 0.3F;
    case Input::spread: {
      // f16: from its smallest subnormal to its last binade but one; the others: as far as their sums stay within f32.
      const int lowest = dtype == Dtype::f16 ? -24 : -126;
      const int highest = dtype == Dtype::f16 ? 14 : 120;
      const int exponent = lowest + static_cast<int>((bits >> 8U) % static_cast<unsigned>(highest - lowest + 1));
      return sign * static_cast<float>(std::ldexp(1.0 + random_unit(seed, index), exponent));
    }
    case Input::subnormal:
      return sign *
             static_cast<float>(std::ldexp(static_cast<double>((bits >> 8U) % 128), dtype == Dtype::f16 ? -24 : -133));
    case Input::integers: return static_cast<float>(static_cast<int>((bits >> 8U) % 5) - 2);
  }
  return 0.0F;
}

std::uint32_t encode_input(Dtype dtype, float x) {
  switch (dtype) {
    case Dtype::f32: return float_bits(x);
    case Dtype::bf16: return from_float<bf16>(x).bits;
    case Dtype::f16: return from_float<f16>(x).bits;
    default: return encode_reference(dtype, x);
  }
}

void fill(GuardedMatrix& matrix, Input input, std::uint64_t seed, ThreadPool& pool) {
  pool.parallel_for(matrix.rows(), 65536 / (matrix.cols() + 1) + 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      for (std::int64_t c = 0; c < matrix.cols(); ++c) {
        const auto index = static_cast<std::uint64_t>(r * matrix.cols() + c);
        matrix.set_bits(r, c, encode_input(matrix.dtype(), random_value(input, matrix.dtype(), seed, index)));
      }
    }
  });
  if (input == Input::normal && matrix.rows() != 0 && matrix.cols() != 0) {
    matrix.set_bits(matrix.rows() - 1, matrix.cols() - 1, encode_input(matrix.dtype(), kLastOfNormal));
  }
}

}  // namespace ingot::test
