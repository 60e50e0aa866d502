// Sends all 2^32 inputs through every function of math.cuh: test_math.cpp's checks without gaps.
#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cstdint>
#include <iostream>
#include <thread>
#include <vector>

#include "tests/templates/math_checks.h"

BOOST_AUTO_TEST_SUITE(test_math_nightly)

using namespace ingot;

BOOST_AUTO_TEST_CASE(every_float) {
  const unsigned count = std::max(1U, std::thread::hardware_concurrency());
  for (const auto& f : checks::kFunctions) {
    std::vector<checks::Worst> relative(count);
    std::vector<checks::Worst> last_places(count);
    const auto work = [&](unsigned part) {
      for (std::uint64_t bits = part; bits < std::uint64_t{1} << 32; bits += count) {
        const float x = float_from_bits(static_cast<std::uint32_t>(bits));
        const double exact = f.exact(static_cast<double>(x));
        checks::add_relative(relative[part], x, f.grade16(x), exact, f.low);
        checks::add_ulps(last_places[part], x, f.grade32(x), exact, f.low);
      }
    };
    std::vector<std::thread> threads;
    for (unsigned part = 0; part < count; ++part) threads.emplace_back(work, part);
    for (std::thread& thread : threads) thread.join();
    for (unsigned part = 1; part < count; ++part) {
      relative[0].add(relative[part]);
      last_places[0].add(last_places[part]);
    }
    std::cout << f.name << "\n  16: " << relative[0].text() << "\n  32: " << last_places[0].text() << std::endl;
    BOOST_TEST(relative[0].error <= static_cast<double>(math::kRelativeErrors16.*f.bound), f.name << ", grade 16");
    BOOST_TEST(last_places[0].error <= static_cast<double>(math::kUlps32.*f.bound), f.name << ", grade 32");
  }
}

BOOST_AUTO_TEST_SUITE_END()
