// Shares of a program's cases: this program runs itself as several processes.
#include <boost/test/unit_test.hpp>

#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <iostream>
#include <string>

#include "support/share.h"

namespace ingot::test {
BOOST_AUTO_TEST_SUITE(test_share)

namespace {

struct Result {
  int code = -1;
  std::string out;
};

// Runs the suite probe of this program.
Result run_probe(const std::string& arguments) {
  const std::string self = boost::unit_test::framework::master_test_suite().argv[0];
  std::FILE* const pipe =
      popen(("'" + self + "' --run_test=test_share/probe " + arguments + " 2>/dev/null").c_str(), "r");
  BOOST_REQUIRE(pipe != nullptr);
  Result result;
  std::array<char, 256> line{};
  while (std::fgets(line.data(), line.size(), pipe) != nullptr) result.out += line.data();
  const int status = pclose(pipe);
  result.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return result;
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

BOOST_AUTO_TEST_SUITE(probe, *boost::unit_test::disabled())

BOOST_AUTO_TEST_CASE(shared) {
  const Share share = Share::of_arguments();
  for (std::size_t i = 0; i < 7; ++i) {
    if (share.has(i)) std::cout << "case " << i << "\n";
    if (share.has("spec " + std::to_string(i))) std::cout << "a case of spec " << i << "\n";
  }
  std::cout << share.threads() << " threads\n";
  Turns turns;
  for (int i = 0; i < 7; ++i) {
    if (turns.mine()) std::cout << "turn " << i << "\n";
  }
}

BOOST_AUTO_TEST_CASE(not_shared, *once()) { std::cout << "once\n"; }

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_CASE(every_case_is_in_one_share) {
  std::array<Result, 3> shares;
  for (std::size_t i = 0; i < 3; ++i) {
    shares[i] = run_probe("-- " + std::to_string(i) + "/3");
    BOOST_TEST(shares[i].code == 0, shares[i].out);
    BOOST_TEST(!contains(shares[i].out, "0 threads"));
    BOOST_TEST(contains(shares[i].out, "once") == (i == 0));
  }
  for (std::size_t i = 0; i < 7; ++i) {
    for (std::size_t j = 0; j < 3; ++j) {
      BOOST_TEST(contains(shares[j].out, "case " + std::to_string(i) + "\n") == (i % 3 == j));
      BOOST_TEST(contains(shares[j].out, "turn " + std::to_string(i) + "\n") == (i % 3 == j));
    }
    const std::string of_spec = "a case of spec " + std::to_string(i) + "\n";
    BOOST_TEST(std::count_if(shares.begin(), shares.end(), [&](const Result& r) { return contains(r.out, of_spec); }) ==
               1);
  }
}

BOOST_AUTO_TEST_CASE(one_process_runs_all) {
  const Result all = run_probe("");
  BOOST_TEST(all.code == 0);
  for (std::size_t i = 0; i < 7; ++i) {
    BOOST_TEST(contains(all.out, "case " + std::to_string(i) + "\n"));
    BOOST_TEST(contains(all.out, "turn " + std::to_string(i) + "\n"));
  }
  BOOST_TEST(contains(all.out, "once"));
  BOOST_TEST(contains(all.out, "0 threads"));
}

BOOST_AUTO_TEST_CASE(a_share_that_is_none_fails) {
  for (const char* const share : {"-- 3/3", "-- 3", "-- -1/3"}) BOOST_TEST(run_probe(share).code != 0, share);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ingot::test
