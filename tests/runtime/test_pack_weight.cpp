// pack_weight: codes go into the packed layouts and come back bit for bit; for 8 bits the test states each code's
// position again.
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "ingot/codegen/kernel_spec.h"
#include "ingot/runtime/context/context.h"
#include "support/dequant_case.h"

BOOST_AUTO_TEST_SUITE(test_pack_weight)

using namespace ingot;
using namespace ingot::test;

namespace {

ContextOptions cpu_options() {
  ContextOptions options;
  options.where = ContextOptions::Where::cpu;
  return options;
}

struct Packer {
  Context context{cpu_options()};
  Backend& backend = context.backend();
  Stream stream{backend};

  WeightLayout layout = WeightLayout::packed;

  std::vector<std::uint8_t> pack(const WeightCodes& weight, std::int64_t padding, std::int64_t offset) {
    GuardedMatrix rows = weight.rows(padding, offset);
    Buffer packed(backend, static_cast<std::size_t>(packed_weight_bytes(weight.dtype, weight.n, weight.k)));
    if (packed.bytes() > 0) std::memset(packed.data(), 0xa5, packed.bytes());
    backend.pack_weight({.weight = weight.dtype, .layout = layout},
                        {.codes = weight.view(rows, rows.bytes().data(), {}, padding), .packed = tensor(packed)},
                        stream);
    std::vector<std::uint8_t> bytes(packed.bytes());
    if (!bytes.empty()) std::memcpy(bytes.data(), packed.data(), bytes.size());
    return bytes;
  }

  GuardedMatrix unpack(const WeightCodes& like, const std::vector<std::uint8_t>& bytes, std::int64_t padding,
                       std::int64_t offset) {
    WeightCodes zeros = like;
    GuardedMatrix rows = zeros.rows(padding, offset);
    std::memset(rows.bytes().data(), 0xa5, rows.bytes().size());
    Buffer packed(backend, bytes.size());
    if (!bytes.empty()) std::memcpy(packed.data(), bytes.data(), bytes.size());
    backend.pack_weight({.weight = like.dtype, .layout = layout, .unpack = true},
                        {.codes = like.view(rows, rows.bytes().data(), {}, padding), .packed = tensor(packed)}, stream);
    return rows;
  }

  static Tensor tensor(const Buffer& packed) {
    return vector(packed.data(), Dtype::u8, static_cast<std::int64_t>(packed.bytes()), {});
  }
};

// Checks the codes of the rows, and that nothing else was written.
void check_rows(const WeightCodes& expected, const GuardedMatrix& rows) {
  BOOST_TEST(rows.damage() == "");
  for (std::int64_t r = 0; r < expected.n; ++r) {
    for (std::int64_t c = 0; c < expected.k; ++c) {
      const std::int64_t first = c * bits_of(expected.dtype);
      std::uint32_t code = 0;
      for (int bit = 0; bit < bits_of(expected.dtype); ++bit) {
        const std::int64_t at = first + bit;
        code |= (rows.bits(r, at / 8) >> static_cast<unsigned>(at % 8) & 1U) << static_cast<unsigned>(bit);
      }
      if (code != expected.at(r, c)) {
        BOOST_ERROR(name(expected.dtype) << " code (" << r << ", " << c << ") is " << code << ", not "
                                         << +expected.at(r, c));
        return;
      }
    }
  }
}

}  // namespace

BOOST_FIXTURE_TEST_CASE(every_code_comes_back, Packer) {
  const std::vector<std::pair<std::int64_t, std::int64_t>> sizes{{1, 1},   {1, 64},   {64, 1},   {3, 5},    {64, 64},
                                                                 {65, 63}, {63, 130}, {128, 96}, {200, 77}, {129, 257}};
  for (const PackWeightSpec& spec : valid_specs<PackWeightSpec>()) {
    if (spec.unpack) continue;
    const Dtype dtype = spec.weight;
    layout = spec.layout;
    for (const auto& [n, k] : sizes) {
      for (const std::int64_t padding : {0, 5}) {
        const WeightCodes weight = WeightCodes::random(dtype, n, k, static_cast<std::uint64_t>(n * k), false);
        const auto bytes = pack(weight, padding, padding);
        check_rows(weight, unpack(weight, bytes, padding, padding));
        check_rows(weight, unpack(weight, bytes, 3 * padding, 0));
      }
    }
  }
}

// For f16, codes are bytes. (test_dequant_fragment.cpp tests the bit positions of the other layouts.)
BOOST_FIXTURE_TEST_CASE(codes_of_8_bits_are_where_the_layout_says, Packer) {
  layout = WeightLayout::packed_f16;
  constexpr std::int64_t kRows = 100;
  constexpr std::int64_t kDepth = 90;
  const WeightCodes weight = WeightCodes::random(Dtype::e4m3fn, kRows, kDepth, 3, false);
  const auto bytes = pack(weight, 0, 0);
  BOOST_REQUIRE(bytes.size() == 128U * 128U + 128U * 4U);
  for (std::int64_t row = 0; row < 128; ++row) {
    for (std::int64_t k = 0; k < 128; ++k) {
      const std::int64_t tile = row / 64 * 4 + k / 32;
      const std::int64_t warp = row % 64 / 16;
      const std::int64_t lane = row % 8 * 4 + k % 8 / 2;
      const std::int64_t word = k % 32 / 16 * 2 + k % 16 / 8;
      const std::int64_t byte = (k % 2 == 0 ? 0 : 2) + (row % 16 < 8 ? 1 : 0);
      const std::int64_t at = tile * 2048 + warp * 512 + lane * 16 + word * 4 + byte;
      const int expected = row < kRows && k < kDepth ? weight.at(row, k) : 0;
      if (bytes[static_cast<std::size_t>(at)] != expected) {
        BOOST_ERROR("code (" << row << ", " << k << ") is not at byte " << at);
        return;
      }
    }
  }
}

BOOST_FIXTURE_TEST_CASE(faults_say_which_rows_have_a_nan, Packer) {
  for (const Dtype dtype : kWeightDtypes) {
    WeightCodes weight = WeightCodes::random(dtype, 70, 100, 9);
    std::vector<bool> faulty(128);
    for (const std::int64_t row : {0, 9, 33, 63, 64, 69}) {
      for (std::uint32_t code = 0; code < 256 && !is_sub_byte(dtype); ++code) {
        if (!std::isnan(decode_slowly(dtype, code))) continue;
        weight.at(row, row) = static_cast<std::uint8_t>(code);
        faulty[static_cast<std::size_t>(row)] = true;
      }
    }
    if (dtype == Dtype::e5m2) weight.at(5, 5) = 0x7c;  // an Inf is not a NaN
    const auto bytes = pack(weight, 0, 0);
    for (std::size_t row = 0; row < 128; ++row) {
      float fault = 0;
      std::memcpy(&fault, bytes.data() + bytes.size() - 4 * (128 - row), sizeof(fault));
      BOOST_TEST((faulty[row] ? std::isnan(fault) : fault == 1.0F), name(dtype) << " row " << row);
    }
  }
}

BOOST_FIXTURE_TEST_CASE(empty_weights, Packer) {
  for (const Dtype dtype : {Dtype::e4m3fn, Dtype::e2m1fn}) {
    BOOST_TEST(pack(WeightCodes::random(dtype, 0, 64, 1), 0, 0).empty());
    const auto bytes = pack(WeightCodes::random(dtype, 3, 0, 1), 0, 0);
    BOOST_REQUIRE(bytes.size() == 64U * 4U);
    float fault = 0;
    std::memcpy(&fault, bytes.data() + 4, sizeof(fault));
    BOOST_TEST(fault == 1.0F);
  }
}

BOOST_AUTO_TEST_SUITE_END()
