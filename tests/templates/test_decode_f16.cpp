// decode_four(): every code of every format, in each of the four bytes, gives the value that decode() gives, and does
// not disturb its neighbours.
#include <boost/test/unit_test.hpp>
#include <cmath>

#include "gemm/decode_f16.cuh"
#include "ingot/codegen/types/dtype.h"
#include "numerics.cuh"

BOOST_AUTO_TEST_SUITE(test_decode_f16)

namespace {

using namespace ingot;

template <class F>
void check_format() {
  for (u32 code = 0; code < 256; ++code) {
    for (u32 place = 0; place < 4; ++place) {
      // The other codes differ from this one in the sign, or in all bits.
      u32 codes = 0;
      for (u32 i = 0; i < 4; ++i) codes |= (i == place ? code : (code ^ (i % 2 == 0 ? 0x80U : 0xffU))) << (8 * i);
      u32 pairs[2];
      decode_four<F>(codes, pairs);
      for (u32 i = 0; i < 4; ++i) {
        const float expected = decode(F{static_cast<u8>(codes >> (8 * i))});
        const f16 half{static_cast<u16>(pairs[i / 2] >> (16 * (i % 2)))};
        const float got = std::ldexp(to_float(half), decode_exponent<F>());
        if (std::isnan(expected) ? !std::isnan(got) : float_bits(got) != float_bits(expected)) {
          BOOST_FAIL("codes " << std::hex << codes << ", place " << i << ": " << got << ", expected " << expected);
        }
      }
    }
  }
}

}  // namespace

static_assert(ingot::kFp8Dtypes.size() == 4, "a format of kDtypeTable is not tested here");
BOOST_AUTO_TEST_CASE(e4m3fn_codes) { check_format<e4m3fn>(); }
BOOST_AUTO_TEST_CASE(e5m2_codes) { check_format<e5m2>(); }
BOOST_AUTO_TEST_CASE(e4m3fnuz_codes) { check_format<e4m3fnuz>(); }
BOOST_AUTO_TEST_CASE(e5m2fnuz_codes) { check_format<e5m2fnuz>(); }

BOOST_AUTO_TEST_SUITE_END()
