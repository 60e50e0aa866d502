// docs/pointwise.md must list each function of expressions once, with its parameters and its definition.
#include <boost/test/unit_test.hpp>

#include <cstddef>
#include <fstream>
#include <set>
#include <string>

#include "ingot/codegen/pointwise/pointwise.h"
#include "ingot/codegen/pointwise/pointwise_functions.h"

BOOST_AUTO_TEST_SUITE(test_pointwise_document)

using namespace ingot;

namespace {

// The table rows about functions, without their last column.
std::set<std::string> rows() {
  std::set<std::string> found;
  std::ifstream document(INGOT_SOURCE_DIR "/docs/pointwise.md");
  for (std::string line; std::getline(document, line);) {
    if (!line.starts_with("| `")) continue;
    const std::size_t meaning = line.rfind(" | ", line.size() - 3);
    BOOST_TEST(found.insert(line.substr(0, meaning)).second, "twice: " << line);
  }
  return found;
}

}  // namespace

BOOST_AUTO_TEST_CASE(the_tables_are_the_lists) {
  std::set<std::string> expected;
  for (const PrimitiveFunction& function : primitive_functions()) {
    expected.insert("| `" + std::string(function.name) + (arity(function.op) == 1 ? "(a)`" : "(a, b)`"));
  }
  for (const PointwiseFunction& function : built_in_functions()) {
    expected.insert("| `" + std::string(function.name) + "(" + std::string(function.parameters) + ")` | `" +
                    std::string(function.text) + "`");
  }
  const std::set<std::string> found = rows();
  for (const std::string& row : expected) BOOST_TEST(found.contains(row), "docs/pointwise.md lacks: " << row << " |");
  for (const std::string& row : found) BOOST_TEST(expected.contains(row), "no such function: " << row << " |");
}

BOOST_AUTO_TEST_SUITE_END()
