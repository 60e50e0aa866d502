// Every target of targets.h on its committed seeds and on thousands of their mutations, the same on every machine. The
// long form is libFuzzer's: scripts/fuzz.sh. INGOT_FUZZ_INPUTS says how many mutations each target gets.
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "fuzz/mutate.h"
#include "fuzz/targets.h"

BOOST_AUTO_TEST_SUITE(test_parsers)

using namespace ingot;
namespace fs = std::filesystem;

namespace {

std::vector<std::string> seeds_of(const fuzz::Target& target) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(fs::path(INGOT_SOURCE_DIR) / "tests/fuzz/corpus" / target.corpus)) {
    files.push_back(entry.path());
  }
  std::ranges::sort(files);
  std::vector<std::string> seeds;
  for (const fs::path& file : files) {
    std::ifstream stream(file, std::ios::binary);
    seeds.emplace_back(std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>());
  }
  return seeds;
}

// C++ text of the input, to add to the corpus.
std::string shown(const std::string& input) {
  std::string text;
  for (const char byte : input) {
    char code[8];
    std::snprintf(code, sizeof(code), "\\x%02x", static_cast<unsigned char>(byte));
    text += code;
  }
  return text;
}

bool survives(const fuzz::Target& target, const std::string& input, int& accepted) {
  try {
    accepted += target.run(input) ? 1 : 0;
    return true;
  } catch (const std::exception& error) {
    BOOST_TEST(false, target.name << ": " << error.what() << "\n" << shown(input));
    return false;
  }
}

}  // namespace

BOOST_AUTO_TEST_CASE(seeds_and_their_mutations) {
  const char* const wanted = std::getenv("INGOT_FUZZ_INPUTS");
  const int inputs = wanted != nullptr ? std::atoi(wanted) : 10'000;
  int all = 0;
  int found = 0;
  for (const fuzz::Target& target : fuzz::targets()) {
    const auto start = std::chrono::steady_clock::now();
    const std::vector<std::string> seeds = seeds_of(target);
    BOOST_REQUIRE(!seeds.empty());
    int accepted = 0;
    for (const std::string& seed : seeds) found += survives(target, seed, accepted) ? 0 : 1;
    BOOST_TEST(accepted > 0, "no seed of " << target.name << " is well-formed");
    survives(target, "", accepted);
    fuzz::Mutator mutator(seeds, 1);
    for (int i = 0; i < inputs && found < 10; ++i) found += survives(target, mutator.next(), accepted) ? 0 : 1;
    all += inputs;
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    std::printf("F17, %s: %d seeds, %d mutations, %d well-formed, %.2f s\n", std::string(target.name).c_str(),
                static_cast<int>(seeds.size()), inputs, accepted, took.count());
  }
  std::printf("F17: %d injections, %d findings\n", all, found);
}

BOOST_AUTO_TEST_SUITE_END()
