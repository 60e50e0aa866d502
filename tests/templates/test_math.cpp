// math.cuh on the host: compared with float64's libm for every bf16, every f16 and millions of f32, at every corner and
// end; and the bits of Reproducible's results, which must not differ between platforms. test_math_nightly.cpp checks
// all 2^32 inputs.
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tests/templates/math_checks.h"

BOOST_AUTO_TEST_SUITE(test_math)

using namespace ingot;
using checks::kFunctions;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// A normal number of variance 1: SplitMix64 makes four 16-bit fields, whose sum is about normal.
float random_normal(std::uint64_t index) {
  std::uint64_t x = (index + 1) * 0x9e3779b97f4a7c15U;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  x ^= x >> 31;
  const std::uint64_t sum = (x & 0xffffU) + ((x >> 16) & 0xffffU) + ((x >> 32) & 0xffffU) + (x >> 48);
  return (static_cast<float>(sum) - 131070.0F) / 37837.0F;
}

void check_relative(const char* what, const checks::Worst& worst, float bound) {
  BOOST_TEST_MESSAGE(what << ": " << worst.text());
  BOOST_TEST(worst.error <= static_cast<double>(bound), what << ": " << worst.text() << ", bound " << bound);
  BOOST_TEST(worst.count > 1000U, what);
}

template <class T>
void check_every_16_bit_input() {
  for (const auto& f : kFunctions) {
    checks::Worst worst;
    checks::Worst worst32;
    for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
      const float x = to_float(T{static_cast<u16>(bits)});
      const double exact = f.exact(static_cast<double>(x));
      checks::add_relative(worst, x, f.grade16(x), exact, f.low);
      checks::add_ulps(worst32, x, f.grade32(x), exact, f.low);
    }
    check_relative(f.name, worst, math::kRelativeErrors16.*f.bound);
    check_relative(f.name, worst32, math::kUlps32.*f.bound);
  }
}

// FNV-1a hash of the stored bits of the results for all bf16 inputs.
std::uint64_t hash(float (*f)(float)) {
  std::uint64_t result = 0xcbf29ce484222325U;
  for (std::uint32_t input = 0; input < 0x10000; ++input) {
    const std::uint32_t bits = checks::stored_bits(f(float_from_bits(input << 16)));
    for (int shift = 0; shift < 32; shift += 8) result = (result ^ ((bits >> shift) & 0xffU)) * 0x100000001b3U;
  }
  return result;
}

}  // namespace

BOOST_AUTO_TEST_CASE(every_bf16) { check_every_16_bit_input<bf16>(); }
BOOST_AUTO_TEST_CASE(every_f16) { check_every_16_bit_input<f16>(); }

BOOST_AUTO_TEST_CASE(f32_in_strides) {
  for (const auto& f : kFunctions) {
    checks::Worst relative;
    checks::Worst last_places;
    for (std::uint64_t bits = 0; bits < std::uint64_t{1} << 32; bits += 2003) {
      const float x = float_from_bits(static_cast<std::uint32_t>(bits));
      const double exact = f.exact(static_cast<double>(x));
      checks::add_relative(relative, x, f.grade16(x), exact, f.low);
      checks::add_ulps(last_places, x, f.grade32(x), exact, f.low);
    }
    check_relative(f.name, relative, math::kRelativeErrors16.*f.bound);
    check_relative(f.name, last_places, math::kUlps32.*f.bound);
  }
}

BOOST_AUTO_TEST_CASE(corners) {
  const std::vector<float> inputs = checks::corners();
  for (const auto& f : kFunctions) {
    checks::Worst relative;
    checks::Worst last_places;
    for (const float x : inputs) {
      const double exact = f.exact(static_cast<double>(x));
      checks::add_relative(relative, x, f.grade16(x), exact, f.low);
      checks::add_ulps(last_places, x, f.grade32(x), exact, f.low);
    }
    check_relative(f.name, relative, math::kRelativeErrors16.*f.bound);
    check_relative(f.name, last_places, math::kUlps32.*f.bound);
  }
}

BOOST_AUTO_TEST_CASE(division) {
  checks::Worst relative;
  checks::Worst last_places;
  for (std::uint32_t i = 0; i < 2000000; ++i) {
    const float a = float_from_bits(i * 2654435761U);
    const float b = float_from_bits((i + 77U) * 2246822519U);
    const double exact = static_cast<double>(a) / static_cast<double>(b);
    checks::add_ulps(last_places, b, math::divide<math::Reproducible32>(a, b), exact);
    // The 16-bit grade multiplies by a reciprocal, which must itself be a normal number.
    if (std::fabs(b) >= 0x1p-126F && std::fabs(b) <= 0x1p125F) {
      checks::add_relative(relative, a, math::divide<math::Reproducible16>(a, b), exact);
    }
  }
  check_relative("divide", relative, math::kRelativeErrors16.divide);
  check_relative("divide", last_places, math::kUlps32.divide);

  for (const float a : {0.0F, -0.0F, 1.0F, -3.0F, 1e-40F, kInf, -kInf, kNaN}) {
    for (const float b : {0.0F, -0.0F, 2.0F, -0.5F, 1e-42F, kInf, -kInf, kNaN}) {
      const float expected = a / b;
      const float actual = math::divide<math::Reproducible32>(a, b);
      BOOST_TEST(checks::stored_bits(actual) == checks::stored_bits(expected), a << " / " << b << " = " << actual);
      if (b == 1e-42F || a == 1e-40F) continue;
      const float actual16 = math::divide<math::Reproducible16>(a, b);
      BOOST_TEST(checks::stored_bits(actual16) == checks::stored_bits(expected), a << " / " << b << " = " << actual16);
    }
  }
}

BOOST_AUTO_TEST_CASE(ends) {
  // For both grades: argument, result.
  const std::map<std::string, std::vector<std::pair<float, float>>> expected{
      {"exp",
       {{0.0F, 1.0F}, {-0.0F, 1.0F}, {kInf, kInf}, {-kInf, 0.0F}, {89.0F, kInf}, {-105.0F, 0.0F}, {3e38F, kInf}}},
      {"expm1", {{0.0F, 0.0F}, {-0.0F, -0.0F}, {kInf, kInf}, {-kInf, -1.0F}, {89.0F, kInf}, {-30.0F, -1.0F}}},
      {"log",
       {{1.0F, 0.0F}, {0.0F, -kInf}, {-0.0F, -kInf}, {kInf, kInf}, {-kInf, kNaN}, {-1.0F, kNaN}, {-1e-45F, kNaN}}},
      {"log1p", {{0.0F, 0.0F}, {-0.0F, -0.0F}, {-1.0F, -kInf}, {kInf, kInf}, {-kInf, kNaN}, {-1.5F, kNaN}}},
      {"tanh", {{0.0F, 0.0F}, {-0.0F, -0.0F}, {kInf, 1.0F}, {-kInf, -1.0F}, {10.0F, 1.0F}, {-3e38F, -1.0F}}},
      {"sigmoid", {{0.0F, 0.5F}, {-0.0F, 0.5F}, {kInf, 1.0F}, {-kInf, 0.0F}, {90.0F, 1.0F}, {-105.0F, 0.0F}}},
      {"erf", {{0.0F, 0.0F}, {-0.0F, -0.0F}, {kInf, 1.0F}, {-kInf, -1.0F}, {4.5F, 1.0F}, {-4.5F, -1.0F}}},
      {"normal_cdf", {{0.0F, 0.5F}, {-0.0F, 0.5F}, {kInf, 1.0F}, {-kInf, 0.0F}, {9.0F, 1.0F}, {-15.0F, 0.0F}}},
      {"sqrt", {{0.0F, 0.0F}, {-0.0F, -0.0F}, {kInf, kInf}, {-kInf, kNaN}, {-1.0F, kNaN}, {-1e-45F, kNaN}}},
      {"rsqrt", {{0.0F, kInf}, {-0.0F, -kInf}, {kInf, 0.0F}, {-kInf, kNaN}, {-1.0F, kNaN}}},
      {"reciprocal", {{0.0F, kInf}, {-0.0F, -kInf}, {kInf, 0.0F}, {-kInf, -0.0F}, {1.0F, 1.0F}, {-0.25F, -4.0F}}}};
  BOOST_TEST(expected.size() == kFunctions.size());
  for (const auto& f : kFunctions) {
    for (const auto& [x, result] : expected.at(f.name)) {
      for (const auto& [grade, function] : {std::pair{16, f.grade16}, std::pair{32, f.grade32}}) {
        BOOST_TEST(checks::stored_bits(function(x)) == checks::stored_bits(result),
                   f.name << grade << "(" << x << ") = " << function(x) << ", expected " << result);
      }
    }
    for (const std::uint32_t nan : {0x7f800001U, 0x7fc00000U, 0x7fffffffU, 0xff800001U, 0xffc00000U, 0xffffffffU}) {
      BOOST_TEST(std::isnan(f.grade16(float_from_bits(nan))), f.name);
      BOOST_TEST(std::isnan(f.grade32(float_from_bits(nan))), f.name);
    }
  }
}

BOOST_AUTO_TEST_CASE(bounded_functions_stay_in_bounds_and_saturate) {
  for (std::uint32_t bits = 0; bits<0x7f800000U; bits += bits> 0x3f000000U && bits < 0x43000000U ? 241 : 9973) {
    const float x = float_from_bits(bits);
    for (const auto& f : kFunctions) {
      const std::string name = f.name;
      if (name != "tanh" && name != "sigmoid" && name != "erf" && name != "normal_cdf") continue;
      for (const auto function : {f.grade16, f.grade32}) {
        const float up = function(x);
        const float down = function(-x);
        const bool odd = name == "tanh" || name == "erf";
        const bool fine = up <= 1.0F && (odd ? float_bits(down) == (float_bits(up) | 0x80000000U) : down >= 0.0F) &&
                          (x < 17.4F || up == 1.0F);
        if (!fine) BOOST_FAIL(name << "(+-" << x << ") = " << up << ", " << down);
      }
    }
  }
}

// Rounded to bf16, the results do not fall where the function rises.
BOOST_AUTO_TEST_CASE(monotonic_in_bf16) {
  for (const auto& f : kFunctions) {
    const std::string name = f.name;
    const float sense = name == "rsqrt" || name == "reciprocal" ? -1.0F : 1.0F;
    const bool positive_only = name == "log" || name == "sqrt" || name == "rsqrt" || name == "reciprocal";
    float last = -kInf;
    for (int i = positive_only ? 1 : -0x7f7f; i <= 0x7f7f; ++i) {  // ascending, by magnitude and sign
      const auto bits = static_cast<u16>(i < 0 ? 0x8000 - i : i);
      const float x = to_float(bf16{bits});
      if (name == "log1p" && x <= -1.0F) continue;
      if (name == "sqrt" && x < 0x1p-126F) continue;
      const float y = sense * to_float(from_float<bf16>(f.grade16(x)));
      BOOST_REQUIRE_MESSAGE(y >= last, name << "(" << x << ") = " << sense * y << " after " << sense * last);
      last = y;
    }
  }
}

// As a cast kernel uses them: at most 1 e4m3 code in 10^4 differs from float64's, of tanh 2.
BOOST_AUTO_TEST_CASE(codes_hardly_differ_from_float64) {
  constexpr int kCount = 1000000;
  const auto code = [](float value) { return encode<e4m3fn>(value * 37.3F).bits; };
  const auto code64 = [&](double value) { return code(static_cast<float>(value)); };
  int silu = 0;
  int gelu = 0;
  int tanh = 0;
  for (int i = 0; i < kCount; ++i) {
    const float x = 3.0F * random_normal(static_cast<std::uint64_t>(i));
    const auto exact = static_cast<double>(x);
    silu += code(x * math::sigmoid<math::Reproducible16>(x)) != code64(exact * checks::exact_sigmoid(exact));
    gelu += code(x * math::normal_cdf<math::Reproducible16>(x)) != code64(exact * checks::exact_normal_cdf(exact));
    tanh += code(math::tanh<math::Reproducible16>(x)) != code64(std::tanh(exact));
  }
  BOOST_TEST_MESSAGE("of a million codes differ: silu " << silu << ", gelu " << gelu << ", tanh " << tanh);
  BOOST_TEST(silu <= kCount / 10000);
  BOOST_TEST(gelu <= kCount / 10000);
  BOOST_TEST(tanh <= kCount / 5000);
}

BOOST_AUTO_TEST_CASE(exact_functions) {
  const auto bits = [](float x) { return checks::stored_bits(x); };
  BOOST_TEST(bits(math::maximum(-0.0F, 0.0F)) == bits(0.0F));
  BOOST_TEST(bits(math::maximum(0.0F, -0.0F)) == bits(0.0F));
  BOOST_TEST(bits(math::minimum(-0.0F, 0.0F)) == bits(-0.0F));
  BOOST_TEST(bits(math::minimum(0.0F, -0.0F)) == bits(-0.0F));
  for (const float x : {-kInf, -2.0F, -0.0F, 0.0F, 1e-45F, 3.0F, kInf}) {
    for (const float y : {-kInf, -1.0F, 2.0F, kInf}) {
      BOOST_TEST(math::maximum(x, y) == (x > y ? x : y));
      BOOST_TEST(math::minimum(x, y) == (x < y ? x : y));
    }
    BOOST_TEST(std::isnan(math::maximum(x, kNaN)));
    BOOST_TEST(std::isnan(math::maximum(kNaN, x)));
    BOOST_TEST(std::isnan(math::minimum(x, kNaN)));
    BOOST_TEST(std::isnan(math::minimum(kNaN, x)));
    BOOST_TEST(math::sign(x) == (x > 0 ? 1.0F : (x < 0 ? -1.0F : 0.0F)));
    BOOST_TEST(bits(math::step(x)) == bits(x > 0 ? 1.0F : 0.0F));
    BOOST_TEST(bits(math::absolute(x)) == bits(std::fabs(x)));
  }
  BOOST_TEST(std::isnan(math::sign(kNaN)));
  BOOST_TEST(std::isnan(math::step(kNaN)));
  BOOST_TEST(std::isnan(math::absolute(-kNaN)));
}

BOOST_AUTO_TEST_CASE(fast_is_grade_32_on_the_host) {
  for (const float x : {0.3F, 1.7F, 20.0F}) {
    BOOST_TEST(math::sigmoid<math::Fast>(x) == math::sigmoid<math::Reproducible32>(x));
    BOOST_TEST(math::divide<math::Fast>(x, 3.0F) == math::divide<math::Reproducible32>(x, 3.0F));
  }
}

// If only this test fails, the platform's arithmetic is not IEEE 754's, or a compiler contracts or reorders operations.
BOOST_AUTO_TEST_CASE(bits_are_pinned) {
  const std::map<std::string, std::pair<std::uint64_t, std::uint64_t>> pinned{
      {"exp", {0xe2048920577a093fU, 0xe849c7d9299c0264U}},
      {"expm1", {0xf0d1c395c1296f26U, 0xe05664d3fe19a2aaU}},
      {"log", {0xd7ec874d02b6a60fU, 0x1d2d78f316ce5f20U}},
      {"log1p", {0xffa9d01bc20d0c5dU, 0x8088a95586679303U}},
      {"tanh", {0xb30b2f21d389e359U, 0xbb27b16c9b361ec9U}},
      {"sigmoid", {0xef1b21903aad1178U, 0x7c23212b55246e11U}},
      {"erf", {0x1db517dbee5af3d9U, 0xb851ac847cdbf1b5U}},
      {"normal_cdf", {0x16a62dbe2c88f56U, 0x6d1601439a11f126U}},
      {"sqrt", {0x289d21f4c871ab5eU, 0x5947209b92fab9b5U}},
      {"rsqrt", {0x6d1fc6382a12d1b1U, 0x4ac196a5afde231bU}},
      {"reciprocal", {0xb739b2c9d1764cf5U, 0x53e18e119afa3a65U}},
  };
  for (const auto& f : kFunctions) {
    const std::pair actual{hash(f.grade16), hash(f.grade32)};
    BOOST_TEST((actual == pinned.at(f.name)),
               "{\"" << f.name << "\", {0x" << std::hex << actual.first << "U, 0x" << actual.second << "U}},");
  }
}

BOOST_AUTO_TEST_SUITE_END()
