// Light checks report what Boost.Test's own macro reports. A child process checks each expression by both macros on one
// line; the test reads its log, in which every entry has to stand twice.
#include <boost/test/unit_test.hpp>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "support/light_check.h"

namespace {

// NOLINTNEXTLINE: BOOST_TEST_CHECK is Boost's own in every build
#define BY_BOTH(...) (void)([&] { BOOST_TEST(__VA_ARGS__); }(), [&] { BOOST_TEST_CHECK(__VA_ARGS__); }())

struct Point {
  int x;
  bool operator==(const Point&) const = default;
  friend std::ostream& operator<<(std::ostream& stream, const Point& point) { return stream << "at " << point.x; }
};

int add_one(int& count) { return ++count; }

}  // namespace

// Run by the cases of test_light_check, by name: what fails is no failure of this program.
BOOST_AUTO_TEST_SUITE(compared_checks, *boost::unit_test::disabled())

BOOST_AUTO_TEST_CASE(numbers) {
  const int three = 3;
  const std::size_t four = 4;
  BY_BOTH(three == 4);
  BY_BOTH(three != 3);
  BY_BOTH(four < 4U);
  BY_BOTH(four <= three);  // signed with unsigned: no warning, as with Boost
  BY_BOTH(three > four);
  BY_BOTH(three >= 4);
  BY_BOTH(three + 1 == 5);
  BY_BOTH(four * 2 - three % 2 == 8 + 1);
  BY_BOTH(std::uint8_t{7} == 8);
  BY_BOTH('a' == 'b');
}

BOOST_AUTO_TEST_CASE(fractions) {
  const float third = 1.0F / 3;
  const double tenth = 0.1;
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double other_nan = nan;
  BY_BOTH(third == 0.3333F);
  BY_BOTH(tenth == 0.1F);
  BY_BOTH(third * 3 > 2.0);
  BY_BOTH(nan == other_nan);
  BY_BOTH(nan < 1);
  BY_BOTH(nan >= 1);
}

BOOST_AUTO_TEST_CASE(texts) {
  const std::string text = "a text";
  const std::string same = "literal";
  char buffer[] = "literal";
  const char* none = nullptr;
  BY_BOTH(text == "another, longer");
  BY_BOTH("literal" == text);
  BY_BOTH(std::string_view(text) != "a text");
  BY_BOTH(text + "s" == text);
  BY_BOTH(same.c_str() != "literal");  // by what is there
  BY_BOTH(buffer != same);
  BY_BOTH(none == buffer);
  BY_BOTH(none != nullptr);
}

BOOST_AUTO_TEST_CASE(values_of_other_types) {
  const std::vector<int> one{1};
  const std::unique_ptr<int> no_owner;
  const bool no = false;
  BY_BOTH(Point{1} == Point{2});
  BY_BOTH(one == std::vector<int>{2});
  BY_BOTH(one.empty());
  BY_BOTH(!one.size());
  BY_BOTH(no == true);
  BY_BOTH((one.empty() || one.size() > 1));
  BY_BOTH(no_owner != nullptr);
  BY_BOTH(one.size() - 1);
  BY_BOTH(no_owner);
  BY_BOTH(std::filesystem::path("a") == std::filesystem::path("b"));
  BY_BOTH(std::filesystem::path("a") == std::string("b"));
}

BOOST_AUTO_TEST_CASE(messages) {
  const std::string text = "a text";
  BY_BOTH(text == "another", "said: " << text << ' ' << 1.5F << true << " and " << text.size());
  BY_BOTH(text.empty(), text);
  BOOST_TEST_CONTEXT("in the context of " << 3) {
    BY_BOTH(text == "another");
    BY_BOTH(text == "another", "a message");
  }
}

BOOST_AUTO_TEST_CASE(holding) {
  const int three = 3;
  BY_BOTH(three == 3);
  BY_BOTH(three < 4U);
  BY_BOTH(std::string("a") == "a");
  BY_BOTH(three);
}

constexpr int kThrowingLine = __LINE__ + 4;
BOOST_AUTO_TEST_CASE(throwing) {
  const auto text = []() -> std::string { throw std::runtime_error("no text"); };
  BOOST_TEST(1 == 1);
  BOOST_TEST(text() == "x");
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE(test_light_check)

namespace {

// What a process prints that runs one of the cases above.
std::string log_of(const std::string& name) {
  const std::string command = "'" + std::filesystem::read_symlink("/proc/self/exe").string() +
                              "' --run_test=compared_checks/" + name + " --log_level=all --color_output=no 2>&1";
  FILE* output = popen(command.c_str(), "r");
  BOOST_REQUIRE(output != nullptr);
  std::string log;
  for (int c = std::fgetc(output); c != EOF; c = std::fgetc(output)) log += static_cast<char>(c);
  pclose(output);
  return log;
}

// The entries of a log, each with its context.
std::vector<std::string> entries_of(const std::string& log) {
  std::vector<std::string> entries;
  std::istringstream lines(log);
  for (std::string line; std::getline(lines, line);) {
    if (line.find("): info: check") != std::string::npos || line.find("): error: in") != std::string::npos) {
      entries.push_back(line);
    } else if (!entries.empty() && line.starts_with("    ")) {
      entries.back() += "\n" + line;
    }
  }
  return entries;
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

BOOST_AUTO_TEST_CASE(reads_as_boost_tests_own) {
  for (const char* name : {"numbers", "fractions", "texts", "values_of_other_types", "messages", "holding"}) {
    const std::vector<std::string> entries = entries_of(log_of(name));
    BOOST_REQUIRE_MESSAGE(entries.size() >= 8, name);
    for (std::size_t i = 0; i + 1 < entries.size(); i += 2) {
      BOOST_REQUIRE_MESSAGE(entries[i] == entries[i + 1], name << ":\n"
                                                               << entries[i] << "\nand Boost's own:\n"
                                                               << entries[i + 1]);
    }
    BOOST_REQUIRE_MESSAGE(entries.size() % 2 == 0, name);
  }
}

template <class Part>
concept MessagePart = requires(ingot::test::light_check::Message& message, Part part) {
  message << part;
};
static_assert(MessagePart<int> && MessagePart<std::string>);
static_assert(!MessagePart<boost::test_tools::per_element>, "BOOST_TEST would ignore it");
static_assert(!MessagePart<decltype(boost::test_tools::tolerance(0.5))>, "BOOST_TEST would ignore it");

// Not only the same twice: what a reader sees.
BOOST_AUTO_TEST_CASE(names_both_values) {
  const std::string numbers = log_of("numbers");
  BOOST_REQUIRE(contains(numbers, "error: in \"compared_checks/numbers\": check three == 4 has failed [3 != 4]"));
  BOOST_REQUIRE(contains(numbers, "check three + 1 == 5 has failed [3 + 1 != 5]"));
  BOOST_REQUIRE(contains(log_of("fractions"), "check tenth == 0.1F has failed [0.10000000000000001 != 0.100000001]"));
  BOOST_REQUIRE(contains(log_of("texts"), "check text == \"another, longer\" has failed [a text != another, longer]"));
  const std::string messages = log_of("messages");
  BOOST_REQUIRE(contains(messages, "\"compared_checks/messages\": said: a text 1.51 and 6\n"));
  BOOST_REQUIRE(contains(messages, "    in the context of 3\n"));
}

BOOST_AUTO_TEST_CASE(an_exception_names_the_last_check) {
  BOOST_REQUIRE(contains(log_of("throwing"), "std::runtime_error: no text\n"));
  BOOST_REQUIRE(contains(log_of("throwing"), "test_light_check.cpp(" + std::to_string(compared_checks::kThrowingLine) +
                                                 "): last checkpoint"));
}

BOOST_AUTO_TEST_CASE(evaluates_once_and_messages_only_if_needed) {
  int count = 0;
  int messages = 0;
  BOOST_TEST(add_one(count) == 1);
  BOOST_TEST(add_one(count));
  BOOST_TEST(add_one(count) == 3, "message " << add_one(messages));
  BOOST_REQUIRE(count == 3);
  BOOST_REQUIRE(messages == 0);
}

BOOST_AUTO_TEST_SUITE_END()
