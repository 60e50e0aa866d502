// Packing and unpacking codes smaller than a byte: known bytes, every code at every position, and refusals.
#include "ingot/runtime/util/packed_codes.h"

#include <boost/test/unit_test.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "ingot/runtime/core/tensor.h"
#include "support/random.h"
#include "support/refused.h"

BOOST_AUTO_TEST_SUITE(test_packed_codes)

using namespace ingot;
using ingot::test::refused;

namespace {

using Bytes = std::vector<std::uint8_t>;

Bytes packed(Dtype dtype, const Bytes& codes) {
  Bytes row(static_cast<std::size_t>(row_bytes(dtype, static_cast<std::int64_t>(codes.size()))), 0xee);
  pack_codes(dtype, codes, row);
  return row;
}

Bytes unpacked(Dtype dtype, const Bytes& row, std::size_t count) {
  Bytes codes(count, 0xee);
  unpack_codes(dtype, row, codes);
  return codes;
}

}  // namespace

BOOST_AUTO_TEST_CASE(known_bytes) {
  BOOST_TEST(packed(Dtype::e2m1fn, {0x1, 0x2, 0xf}) == (Bytes{0x21, 0x0f}));
  // 000001 100000 111111 010101, the last code highest.
  BOOST_TEST(packed(Dtype::e3m2fn, {0x01, 0x20, 0x3f, 0x15}) == (Bytes{0x01, 0xf8, 0x57}));
  BOOST_TEST(packed(Dtype::e2m3fn, {0x3f}) == (Bytes{0x3f}));
  BOOST_TEST(packed(Dtype::e2m3fn, {0x3f, 0x3f}) == (Bytes{0xff, 0x0f}));
  BOOST_TEST(packed(Dtype::e4m3fn, {0x7f, 0x80}) == (Bytes{0x7f, 0x80}));
  BOOST_TEST(packed(Dtype::e2m1fn, {}) == Bytes{});
  BOOST_TEST(unpacked(Dtype::e2m1fn, {0x21, 0xff}, 3) == (Bytes{0x1, 0x2, 0xf}));
  BOOST_TEST(unpacked(Dtype::e3m2fn, {0x01, 0xf8, 0x57}, 4) == (Bytes{0x01, 0x20, 0x3f, 0x15}));
}

// Compares with the definition bit by bit, in rows of every length.
BOOST_AUTO_TEST_CASE(element_i_has_its_bits_of_the_row) {
  for (const Dtype dtype : {Dtype::e3m2fn, Dtype::e2m3fn, Dtype::e2m1fn, Dtype::e5m2, Dtype::e8m0fnu, Dtype::u8}) {
    const auto bits = static_cast<std::size_t>(bits_of(dtype));
    for (std::size_t count = 0; count < 70; ++count) {
      Bytes codes;
      for (std::size_t i = 0; i < count; ++i) {
        codes.push_back(static_cast<std::uint8_t>(test::random_bits(count, i) & ((1U << bits) - 1U)));
      }
      const Bytes row = packed(dtype, codes);
      BOOST_TEST(row.size() == (count * bits + 7) / 8);
      for (std::size_t bit = 0; bit < row.size() * 8; ++bit) {
        const bool expected = bit / bits < count && (codes[bit / bits] >> (bit % bits) & 1) != 0;
        BOOST_REQUIRE(((row[bit / 8] >> (bit % 8) & 1) != 0) == expected);
      }
      BOOST_TEST(unpacked(dtype, row, count) == codes);
    }
  }
}

BOOST_AUTO_TEST_CASE(refusals) {
  Bytes three(3), four(4);
  BOOST_TEST(refused([&] { pack_codes(Dtype::bf16, four, three); }).message ==
             "pack_codes: the dtype is bf16, but must be one of 8 bits or less");
  BOOST_TEST(refused([&] { unpack_codes(Dtype::f32, four, three); }).message ==
             "unpack_codes: the dtype is f32, but must be one of 8 bits or less");
  BOOST_TEST(refused([&] { pack_codes(Dtype::e2m1fn, four, three); }).message ==
             "pack_codes: the row has 3 bytes, but 4 codes of e2m1fn take 2");
  BOOST_TEST(refused([&] { unpack_codes(Dtype::e3m2fn, four, four); }).message ==
             "unpack_codes: the row has 4 bytes, but 4 codes of e3m2fn take 3");
  four[2] = 0x40;
  const auto error = refused([&] { pack_codes(Dtype::e3m2fn, four, three); });
  BOOST_TEST(error.message == "pack_codes: code 2 is 0x40, but those of e3m2fn have 6 bits: mask the others");
  BOOST_TEST((error.code == ErrorCode::invalid_argument));
}

BOOST_AUTO_TEST_SUITE_END()
