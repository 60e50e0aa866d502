#include "support/share.h"

#include <algorithm>
#include <string>
#include <thread>

namespace ingot::test {
namespace {

boost::test_tools::assertion_result in_first_share(boost::unit_test::test_unit_id /*unit*/) {
  return boost::test_tools::assertion_result(Share::of_arguments().has(0));
}

}  // namespace

int Share::threads() const {
  if (count == 1) return 0;
  const auto cores = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  return std::max(1, cores / count);
}

Share Share::of_arguments() {
  const auto& suite = boost::unit_test::framework::master_test_suite();
  Share share;
  for (int i = 1; i < suite.argc; ++i) {
    const std::string text = suite.argv[i];
    if (text == "nightly") continue;  // fixed_set.h
    const auto slash = text.find('/');
    BOOST_REQUIRE_MESSAGE(slash != std::string::npos, "a share is written as 3/8");
    share = {std::stoi(text.substr(0, slash)), std::stoi(text.substr(slash + 1))};
    BOOST_REQUIRE(share.index >= 0);
    BOOST_REQUIRE(share.index < share.count);
  }
  return share;
}

boost::unit_test::precondition once() { return boost::unit_test::precondition(&in_first_share); }

}  // namespace ingot::test
