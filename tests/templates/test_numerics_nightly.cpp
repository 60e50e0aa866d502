// Sends all 2^32 inputs through every conversion: test_numerics.cpp's checks without gaps.
#include <algorithm>
#include <bit>
#include <boost/test/unit_test.hpp>
#include <cstdint>
#include <string>
#include <thread>

#include "tests/templates/numerics_checks.h"

BOOST_AUTO_TEST_SUITE(test_numerics_nightly)

BOOST_AUTO_TEST_CASE(every_float_encodes) {
  const unsigned threads = std::max(1U, std::thread::hardware_concurrency());
  const auto mismatch = ingot::checks::first_mismatch(threads, std::uint64_t{1} << 32, [](std::uint64_t i) {
    return std::bit_cast<float>(static_cast<std::uint32_t>(i));
  });
  BOOST_TEST((mismatch ? mismatch->text : "") == "");
}

BOOST_AUTO_TEST_SUITE_END()
