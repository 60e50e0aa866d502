#include "support/share.h"

#include <boost/test/unit_test.hpp>

#include <string>

namespace ingot::test {

Share Share::of_arguments() {
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

}  // namespace ingot::test
