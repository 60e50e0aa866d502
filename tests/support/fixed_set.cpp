#include "support/fixed_set.h"

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <map>
#include <set>
#include <span>
#include <sstream>
#include <utility>

namespace ingot::test {

std::vector<std::string> kinds_of_words(const std::string& name) {
  std::istringstream words(name);
  std::string first;
  words >> first;
  std::vector<std::string> kinds;
  for (std::string word; words >> word;) kinds.push_back(first + " " + word);
  return kinds;
}

FixedSet::FixedSet(std::uint32_t one_of) : one_of_(runs_nightly() ? 1 : one_of) {}

std::vector<std::size_t> FixedSet::of(const std::vector<NamedCase>& cases) const {
  std::set<std::size_t> chosen;
  std::set<std::string> present;
  std::map<std::string, std::pair<std::uint32_t, std::size_t>> smallest;  // of each kind: a hash, and which case has it
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const std::pair<std::uint32_t, std::size_t> mine{stable_hash(cases[i].name), i};
    const bool has_it = has(cases[i].name, cases[i].rarer);
    if (has_it) chosen.insert(i);
    for (const std::string& kind : cases[i].kinds) {
      if (has_it) present.insert(kind);
      const auto [found, first] = smallest.try_emplace(kind, mine);
      found->second = std::min(found->second, mine);
    }
  }
  for (const auto& [kind, first] : smallest) {
    if (!present.contains(kind)) chosen.insert(first.second);
  }
  return {chosen.begin(), chosen.end()};
}

bool runs_nightly() {
  const auto& suite = boost::unit_test::framework::master_test_suite();
  const std::span arguments(suite.argv, static_cast<std::size_t>(suite.argc));
  return std::ranges::any_of(arguments, [](const char* argument) { return std::string_view(argument) == "nightly"; });
}

}  // namespace ingot::test
