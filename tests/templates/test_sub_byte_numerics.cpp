// The formats of less than a byte, and e8m0fnu, compared with float64: every code, every 16-bit input, the boundaries
// between codes, and arbitrary f32. (test_quantize.py compares them with ml_dtypes.)
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <tuple>

#include "ingot/codegen/types/template_types.h"
#include "support/random.h"
#include "support/reference_formats.h"

#include "numerics.cuh"

BOOST_AUTO_TEST_SUITE(test_sub_byte_numerics)

using namespace ingot;
using namespace ingot::test;

namespace {

using SubByteFormats = std::tuple<e3m2fn, e2m3fn, e2m1fn>;

// Both ways of encoding x.
template <class F>
void check(const CodeSearch& search, float x) {
  const std::uint32_t sign = std::signbit(x) ? 1U << (bits_of(kDtypeOf<F>) - 1) : 0U;
  const std::uint32_t expected = sign | search.nearest(std::fabs(static_cast<double>(x)));
  BOOST_REQUIRE_MESSAGE(encode_software<F>(x).bits == expected, name(kDtypeOf<F>) << " of " << x << " gives "
                                                                                  << int{encode_software<F>(x).bits}
                                                                                  << ", not " << expected);
  BOOST_REQUIRE_MESSAGE(encode_number<F>(x) == expected,
                        name(kDtypeOf<F>) << " of " << x << " gives " << encode_number<F>(x) << ", not " << expected);
}

}  // namespace

BOOST_AUTO_TEST_CASE_TEMPLATE(all_codes, F, SubByteFormats) {
  const CodeSearch search(kDtypeOf<F>);
  BOOST_TEST(F::kMax == search.largest());
  BOOST_TEST(F::kMaxCode + 1 == search.values().size());
  for (std::uint32_t code = 0; code < 1U << bits_of(kDtypeOf<F>); ++code) {
    const double expected = decode_slowly(kDtypeOf<F>, code);
    const float value = to_float(F{static_cast<u8>(code)});
    BOOST_TEST(static_cast<double>(value) == expected);
    BOOST_TEST(std::signbit(value) == std::signbit(expected));
    BOOST_TEST(encode<F>(value).bits == code);
    BOOST_TEST(encode_number<F>(value) == code);
  }
}

BOOST_AUTO_TEST_CASE_TEMPLATE(inputs_go_to_the_nearest_code, F, SubByteFormats) {
  const CodeSearch search(kDtypeOf<F>);
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    for (const float x : {to_float(bf16{static_cast<u16>(bits)}), to_float(f16{static_cast<u16>(bits)})}) {
      if (!std::isnan(x)) check<F>(search, x);
    }
  }
  for (std::size_t i = 1; i < search.values().size(); ++i) {
    const auto middle = static_cast<float>((search.values()[i - 1] + search.values()[i]) / 2);
    for (const float x : {std::nextafter(middle, 0.0F), middle, std::nextafter(middle, kInf)}) {
      check<F>(search, x);
      check<F>(search, -x);
    }
  }
  for (std::uint64_t i = 0; i < 1'000'000; ++i) {
    const float any = float_from_bits(static_cast<std::uint32_t>(random_bits(3, i)));
    if (!std::isnan(any)) check<F>(search, any);
    check<F>(search, static_cast<float>((random_unit(4, i) - 0.5) * 2.2 * search.largest()));
  }
  for (const float x : {kInf, -kInf, std::numeric_limits<float>::max(), std::numeric_limits<float>::denorm_min()}) {
    check<F>(search, x);
  }
}

BOOST_AUTO_TEST_CASE_TEMPLATE(nan_becomes_zero, F, SubByteFormats) {
  for (const std::uint32_t bits : {0x7fc00000U, 0xffc00000U, 0x7f800001U, 0xffffffffU}) {
    BOOST_TEST(encode<F>(float_from_bits(bits)).bits == 0);
  }
}

BOOST_AUTO_TEST_CASE(powers_of_two) {
  for (std::uint32_t code = 0; code < 255; ++code) {
    BOOST_TEST(static_cast<double>(to_float(e8m0fnu{static_cast<u8>(code)})) ==
               std::ldexp(1.0, static_cast<int>(code) - 127));
  }
  BOOST_TEST(std::isnan(to_float(e8m0fnu{255})));
}

BOOST_AUTO_TEST_SUITE_END()
