// Selects a share of a program's cases, for programs that run as several processes at once: with `-- 3/8` as the last
// arguments, every eighth case from the fourth on (0/8 begins with the first). Include it after support/gpu_test.h or
// Boost's own header.
#pragma once

#include <string>

namespace ingot::test {

struct Share {
  int index = 0;
  int count = 1;

  bool has(std::size_t i) const { return static_cast<int>(i % static_cast<std::size_t>(count)) == index; }

  static Share of_arguments() {
    const auto& suite = boost::unit_test::framework::master_test_suite();
    Share share;
    if (suite.argc < 2) return share;
    const std::string text = suite.argv[1];
    const auto slash = text.find('/');
    BOOST_REQUIRE_MESSAGE(slash != std::string::npos, "a share is written as 3/8");
    share = {std::stoi(text.substr(0, slash)), std::stoi(text.substr(slash + 1))};
    BOOST_REQUIRE(share.index >= 0);
    BOOST_REQUIRE(share.index < share.count);
    return share;
  }
};

}  // namespace ingot::test
