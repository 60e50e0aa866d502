// The part of long lists of cases that CI runs is the same every day, and has at least one of every kind.
#include <boost/test/unit_test.hpp>

#include <set>
#include <string>
#include <vector>

#include "support/cpu_cases.h"
#include "support/fixed_set.h"

namespace ingot::test {
BOOST_AUTO_TEST_SUITE(test_fixed_set)

namespace {

std::set<std::string> chosen_names(const std::vector<NamedCase>& cases, std::uint32_t one_of) {
  std::set<std::string> names;
  for (const std::size_t i : FixedSet(one_of).of(cases)) names.insert(cases[i].name);
  return names;
}

// The published values of FNV-1a with 64 bits, folded.
BOOST_AUTO_TEST_CASE(the_hash_is_fnv_1a_on_every_machine) {
  static_assert(stable_hash("") == ((0xcbf29ce484222325U ^ 0xcbf29ce484222325U >> 32U) & 0xffffffffU));
  static_assert(stable_hash("a") == ((0xaf63dc4c8601ec8cU ^ 0xaf63dc4c8601ec8cU >> 32U) & 0xffffffffU));
  static_assert(stable_hash("foobar") == ((0x85944171f73967e8U ^ 0x85944171f73967e8U >> 32U) & 0xffffffffU));
  BOOST_TEST(!runs_nightly());
}

BOOST_AUTO_TEST_CASE(other_cases_and_another_order_move_none) {
  std::vector<NamedCase> cases;
  for (int i = 0; i < 300; ++i) cases.push_back({.name = "cast " + std::to_string(i), .kinds = {"cast"}});
  const std::set<std::string> before = chosen_names(cases, 6);
  BOOST_TEST(before.size() > 30U);
  BOOST_TEST(before.size() < 70U);
  for (int i = 0; i < 300; ++i) cases.insert(cases.begin(), {.name = "norm " + std::to_string(i), .kinds = {"norm"}});
  std::set<std::string> after = chosen_names(cases, 6);
  std::erase_if(after, [](const std::string& name) { return name.starts_with("norm"); });
  BOOST_TEST_CHECK(after == before, boost::test_tools::per_element());
  BOOST_TEST(chosen_names(cases, 1).size() == cases.size());
}

BOOST_AUTO_TEST_CASE(a_kind_that_would_have_none_has_one) {
  const std::vector<NamedCase> cases{
      {.name = "a", .kinds = {"x", "y"}}, {.name = "b", .kinds = {"y", "z"}}, {.name = "c"}};
  BOOST_TEST(chosen_names(cases, 1'000'003).size() >= 2U);
  BOOST_TEST(FixedSet(1'000'003).of(cases).back() == 2U);  // the only one without a kind
  BOOST_TEST_CHECK(
      kinds_of_words("cast bf16->e4m3fn 8x8") == (std::vector<std::string>{"cast bf16->e4m3fn", "cast 8x8"}),
      boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(the_cases_of_the_cpu_have_every_kind) {
  std::vector<NamedCase> all;
  std::set<std::string> missing;
  for (const Case& c : cases(SizeClass::ci)) {
    all.push_back({.name = name(c), .kinds = kinds_of_words(name(c))});
    missing.insert(all.back().kinds.begin(), all.back().kinds.end());
  }
  const std::size_t kinds = missing.size();
  const std::vector<std::size_t> chosen = FixedSet(kCpuCasesInCi).of(all);
  for (const std::size_t i : chosen) {
    for (const std::string& kind : all[i].kinds) missing.erase(kind);
  }
  BOOST_TEST_MESSAGE(chosen.size() << " of " << all.size() << " cases, of " << kinds << " kinds");
  BOOST_TEST_CHECK(missing == std::set<std::string>{}, boost::test_tools::per_element());
  BOOST_TEST(kinds > 400U);
  BOOST_TEST(chosen.size() * 5 < all.size());
}

}  // namespace

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ingot::test
