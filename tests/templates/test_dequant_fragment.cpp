// Packed fragments: every code of every format, at each of its 16 positions and with any neighbours, comes back from
// unpack_fragment(), and from decode_fragment() as the number that the format's definition gives in float64, for both
// activation dtypes. The layout itself is compared with the PTX ISA's picture of operand A, and sizes with numbers
// computed by hand.
#include <array>
#include <bit>
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <set>
#include <utility>

#include "dequant/dequant_fragment.cuh"

BOOST_AUTO_TEST_SUITE(test_dequant_fragment)

namespace {

using namespace ingot;

// The value by definition: sign, exponent, mantissa.
template <class W>
double value_of(u32 code) {
  constexpr int kMantissa = W::kMantissaBits;
  const u32 sign = code >> (W::kExponentBits + kMantissa) & 1U;
  const int exponent = static_cast<int>(code >> kMantissa & ((1U << W::kExponentBits) - 1U));
  const int mantissa = static_cast<int>(code & ((1U << kMantissa) - 1U));
  const double nan = std::numeric_limits<double>::quiet_NaN();
  if (W::kFnuz && code == 0x80) return nan;
  if (is_same<W, e4m3fn> && (code & 0x7fU) == 0x7f) return nan;
  if (is_same<W, e5m2> && exponent == 31) {
    if (mantissa != 0) return nan;
    return sign != 0 ? -std::numeric_limits<double>::infinity() : std::numeric_limits<double>::infinity();
  }
  const double fraction = std::ldexp(mantissa, -kMantissa) + (exponent == 0 ? 0.0 : 1.0);
  const double magnitude = std::ldexp(fraction, (exponent == 0 ? 1 : exponent) - W::kBias);
  return sign != 0 ? -magnitude : magnitude;
}

double value_of_register(u32 bits, bf16) { return static_cast<double>(to_float(bf16{static_cast<u16>(bits)})); }
double value_of_register(u32 bits, f16) { return static_cast<double>(to_float(f16{static_cast<u16>(bits)})); }

bool same_bits(double a, double b) { return std::memcmp(&a, &b, sizeof(a)) == 0; }

template <class W, class X, CodeLayout L>
void check_decoded(const u8 (&codes)[16], const u32 (&words)[Fragment<W>::kWords]) {
  u32 registers[8];
  decode_fragment<W, X, L>(words, registers);
  for (u32 i = 0; i < 16; ++i) {
    const double expected = value_of<W>(codes[i]);
    if (std::isnan(expected)) continue;  // kernels rely on the row's fault instead
    const u32 half = registers[i / 2] >> (16 * (i % 2)) & 0xffffU;
    const double got = std::ldexp(value_of_register(half, X{}), kDecodeShift<W, X, L>);
    if (!same_bits(got, expected)) {
      BOOST_FAIL("code " << int{codes[i]} << " at " << i << " is " << got << ", expected " << expected);
    }
  }
}

template <class W, CodeLayout L>
void check_fragment(const u8 (&codes)[16]) {
  u32 words[Fragment<W>::kWords];
  pack_fragment<W>(L, codes, words);
  u8 back[16];
  unpack_fragment<W>(L, words, back);
  BOOST_REQUIRE(std::memcmp(codes, back, 16) == 0);
  check_decoded<W, bf16, L>(codes, words);
  check_decoded<W, f16, L>(codes, words);
}

template <class W>
void check_format() {
  constexpr u32 kCount = 1U << kCodeBits<W>;
  std::mt19937 random(6);
  for (u32 code = 0; code < kCount; ++code) {
    for (u32 place = 0; place < 16; ++place) {
      // The neighbours have every bit that this code lacks, no bit at all, or random bits.
      for (u32 others = 0; others < 3; ++others) {
        u8 codes[16];
        for (u32 i = 0; i < 16; ++i) {
          const u32 other = others == 0 ? ~code : others == 1 ? 0U : static_cast<u32>(random());
          codes[i] = static_cast<u8>((i == place ? code : other) & (kCount - 1));
        }
        check_fragment<W, CodeLayout::packed>(codes);
        check_fragment<W, CodeLayout::packed_f16>(codes);
        check_fragment<W, CodeLayout::row_major>(codes);
      }
    }
  }
}

// For each register in a word, a mask of its first code's bits; the second code's bits are 16 positions higher,
// wrapping around from the highest to the lowest.
template <class W, std::size_t Count>
void check_places(CodeLayout layout, const std::array<u32, Count>& expected) {
  constexpr u8 kAll = static_cast<u8>((1U << kCodeBits<W>)-1);
  constexpr u32 kWords = 8 / Count;
  for (u32 reg = 0; reg < 8; ++reg) {
    for (u32 half = 0; half < 2; ++half) {
      u8 codes[16]{};
      codes[2 * reg + half] = kAll;
      u32 words[Fragment<W>::kWords];
      pack_fragment<W>(layout, codes, words);
      for (u32 word = 0; word < kWords; ++word) {
        const u32 bits = word == reg / Count ? std::rotl(expected[reg % Count], static_cast<int>(16 * half)) : 0U;
        BOOST_TEST(words[word] == bits);
      }
    }
  }
}

}  // namespace

BOOST_AUTO_TEST_CASE(fragments_of_e4m3fn) { check_format<e4m3fn>(); }
BOOST_AUTO_TEST_CASE(fragments_of_e5m2) { check_format<e5m2>(); }
BOOST_AUTO_TEST_CASE(fragments_of_e4m3fnuz) { check_format<e4m3fnuz>(); }
BOOST_AUTO_TEST_CASE(fragments_of_e5m2fnuz) { check_format<e5m2fnuz>(); }
BOOST_AUTO_TEST_CASE(fragments_of_e3m2fn) { check_format<e3m2fn>(); }
BOOST_AUTO_TEST_CASE(fragments_of_e2m3fn) { check_format<e2m3fn>(); }
BOOST_AUTO_TEST_CASE(fragments_of_e2m1fn) { check_format<e2m1fn>(); }

BOOST_AUTO_TEST_CASE(bits_of_fragments_are_in_the_agreed_order) {
  constexpr std::array kBytes{0xff00U, 0x00ffU};
  check_places<e4m3fn>(CodeLayout::packed, std::array{0x87f0U, 0x780fU});
  check_places<e4m3fnuz>(CodeLayout::packed, std::array{0x87f0U, 0x780fU});
  check_places<e5m2>(CodeLayout::packed, std::array{0x8fe0U, 0x6000'101fU});
  check_places<e5m2fnuz>(CodeLayout::packed, std::array{0x8fe0U, 0x6000'101fU});
  check_places<e4m3fn>(CodeLayout::packed_f16, kBytes);
  check_places<e4m3fnuz>(CodeLayout::packed_f16, std::array{0xbf80U, 0x407fU});
  check_places<e5m2>(CodeLayout::packed_f16, kBytes);
  check_places<e5m2fnuz>(CodeLayout::packed_f16, kBytes);
  check_places<e4m3fnuz>(CodeLayout::row_major, kBytes);
  for (const CodeLayout layout : {CodeLayout::packed, CodeLayout::packed_f16}) {
    check_places<e2m1fn>(layout, std::array{0x0000'81c0U, 0x0000'081cU, 0x0020'7000U, 0x0000'0603U});
  }
}

// For each word and register: the bits of the register's first code.
BOOST_AUTO_TEST_CASE(bits_of_fp6_fragments_are_in_the_agreed_order) {
  const auto check = [](auto format, const std::array<std::array<u32, 3>, 8>& expected) {
    for (u32 reg = 0; reg < 8; ++reg) {
      u8 codes[16]{};
      codes[2 * reg] = 0x3f;
      u32 words[3];
      pack_fragment<decltype(format)>(CodeLayout::packed, codes, words);
      for (u32 word = 0; word < 3; ++word) BOOST_TEST(words[word] == expected[reg][word]);
    }
  };
  check(e3m2fn{}, {{{0x83e0, 0, 0},
                    {0x041f, 0, 0},
                    {0, 0x83e0, 0},
                    {0, 0x041f, 0},
                    {0, 0, 0x83e0},
                    {0, 0, 0x041f},
                    {0x7800, 0, 0x6000},
                    {0, 0x7800, 0x1800}}});
  check(e2m3fn{}, {{{0x81f0, 0, 0},
                    {0x0a0f, 0, 0},
                    {0, 0x81f0, 0},
                    {0, 0x0a0f, 0},
                    {0, 0, 0x81f0},
                    {0, 0, 0x720c},
                    {0x7400, 0, 0x0401},
                    {0, 0x7400, 0x0802}}});
}

// Checks not only which bits are used, but which code bit each of them is.
BOOST_AUTO_TEST_CASE(single_bits_are_in_the_agreed_order) {
  const auto at = [](u8 code, u32 reg, auto format, CodeLayout layout) {
    u8 codes[16]{};
    codes[2 * reg] = code;
    u32 words[4];
    pack_fragment<decltype(format)>(layout, codes, words);
    return words[0];
  };
  constexpr std::array<u32, 8> kE4m3First{1U << 4, 1U << 5, 1U << 6, 1U << 7, 1U << 8, 1U << 9, 1U << 10, 1U << 15};
  constexpr std::array<u32, 8> kE4m3Second{1U << 0, 1U << 1, 1U << 2, 1U << 3, 1U << 12, 1U << 13, 1U << 14, 1U << 11};
  constexpr std::array<u32, 8> kE5m2Second{1U << 29, 1U << 30, 1U << 4, 1U << 0, 1U << 1, 1U << 2, 1U << 3, 1U << 12};
  constexpr std::array<u32, 8> kF16Second{1U << 0, 1U << 1, 1U << 2, 1U << 3, 1U << 4, 1U << 5, 1U << 6, 1U << 14};
  // Register 6 of e2m3fn, in words 0 and 2.
  constexpr std::array<std::pair<u32, u32>, 6> kE2m3Sixth{
      {{1U << 10, 0}, {0, 1U << 0}, {1U << 12, 0}, {1U << 13, 0}, {1U << 14, 0}, {0, 1U << 10}}};
  for (u32 bit = 0; bit < 6; ++bit) {
    u8 codes[16]{};
    codes[12] = static_cast<u8>(1U << bit);
    u32 words[3];
    pack_fragment<e2m3fn>(CodeLayout::packed, codes, words);
    BOOST_TEST(words[0] == kE2m3Sixth[bit].first);
    BOOST_TEST(words[2] == kE2m3Sixth[bit].second);
  }
  for (u32 bit = 0; bit < 8; ++bit) {
    const auto code = static_cast<u8>(1U << bit);
    BOOST_TEST(at(code, 0, e4m3fn{}, CodeLayout::packed) == kE4m3First[bit]);
    BOOST_TEST(at(code, 1, e4m3fn{}, CodeLayout::packed) == kE4m3Second[bit]);
    BOOST_TEST(at(code, 1, e5m2{}, CodeLayout::packed) == kE5m2Second[bit]);
    BOOST_TEST(at(code, 1, e4m3fnuz{}, CodeLayout::packed_f16) == kF16Second[bit]);
    BOOST_TEST(at(code, 1, e4m3fn{}, CodeLayout::packed_f16) == u32{code});
  }
}

// PTX ISA, "Matrix Fragments for mma.m16n8k16": a0 and a1 belong to row g, a2 and a3 to row g + 8; a4 to a7 are the
// same for columns + 8.
BOOST_AUTO_TEST_CASE(fragments_are_operand_a) {
  for (u32 lane = 0; lane < 32; ++lane) {
    for (u32 i = 0; i < 8; ++i) {
      const u32 row = i < 2 || (i >= 4 && i < 6) ? lane / 4 : lane / 4 + 8;
      const u32 column = lane % 4 * 2 + (i & 1U) + (i >= 4 ? 8 : 0);
      for (u32 step = 0; step < 2; ++step) {
        const FragmentPosition place = fragment_position(2, lane, 8 * step + i);
        BOOST_TEST(place.row == 32 + row);
        BOOST_TEST(place.k == 16 * step + column);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(fragments_of_a_tile_have_every_code_once) {
  std::set<u32> seen;
  for (u32 fragment = 0; fragment < kDequantFragments; ++fragment) {
    for (u32 i = 0; i < 16; ++i) {
      const FragmentPosition place = fragment_position(fragment / 32, fragment % 32, i);
      BOOST_TEST(place.row < 64);
      BOOST_TEST(place.k < 32);
      seen.insert(place.row * 32 + place.k);
    }
  }
  BOOST_TEST(seen.size() == 64U * 32U);
}

BOOST_AUTO_TEST_CASE(sizes_of_packed_weights) {
  BOOST_TEST(packed_code_bytes(64, 64, 8) == 4096U);
  BOOST_TEST(packed_code_bytes(65, 1, 8) == 8192U);
  BOOST_TEST(packed_code_bytes(100, 100, 6) == 128U * 128U * 6 / 8);
  BOOST_TEST(packed_code_bytes(0, 100, 4) == 0U);
  BOOST_TEST(packed_bytes(65, 1, 4) == 4096U + 4 * 128);
  BOOST_TEST(packed_code_bytes(1U << 17, 1U << 17, 8) == u64{1} << 34);
  BOOST_TEST(kDequantTileBytes<e5m2> == 2048U);
  BOOST_TEST(kDequantTileBytes<e3m2fn> == 1536U);
  BOOST_TEST(kDequantTileBytes<e2m1fn> == 1024U);
  // K = 100 is padded to 128: four tiles per row of tiles.
  BOOST_TEST(packed_tile_offset<e4m3fn>(0, 3, 100) == 3U * 2048);
  BOOST_TEST(packed_tile_offset<e4m3fn>(2, 1, 100) == 9U * 2048);
  BOOST_TEST(packed_tile_offset<e2m1fn>(1, 0, 64) == 2048U);
  BOOST_TEST(packed_fragment_offset<e2m3fn>(1, 2) == 34U * 12);
}

BOOST_AUTO_TEST_SUITE_END()
