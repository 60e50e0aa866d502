// Takes a program's cases in turn: with a variable (INGOT_TESTS_IN_TURN) of n in the environment every n-th, from
// another one on each day, so that n days' runs have them all. Without it, or with INGOT_TESTS_ALL=1, all.
#pragma once

#include <charconv>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <iostream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>

namespace ingot::test {

struct InTurn {
  std::size_t turns = 1;
  std::size_t turn = 0;

  bool has(std::size_t i) const { return i % turns == turn; }

  static InTurn of_environment(const char* variable = "INGOT_TESTS_IN_TURN") {
    const char* const wanted = std::getenv(variable);
    if (wanted == nullptr || std::getenv("INGOT_TESTS_ALL") != nullptr) return {};
    const std::size_t turns = number(variable, wanted);
    if (turns == 0) throw std::invalid_argument(std::string(variable) + " is 0: it says every how many-th case runs");
    const char* const given = std::getenv("INGOT_TESTS_TURN");
    const auto today = std::chrono::floor<std::chrono::days>(std::chrono::system_clock::now()).time_since_epoch();
    const std::size_t turn =
        (given != nullptr ? number("INGOT_TESTS_TURN", given) : static_cast<std::size_t>(today.count())) % turns;
    std::cout << "turn " << turn + 1 << " of " << turns << ": INGOT_TESTS_TURN=" << turn << " runs the same again\n";
    return {turns, turn};
  }

 private:
  static std::size_t number(const char* variable, std::string_view text) {
    std::size_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error == std::errc() && end == text.data() + text.size() && !text.empty()) return value;
    throw std::invalid_argument(std::string(variable) + " is \"" + std::string(text) + "\", which is no number");
  }
};

}  // namespace ingot::test
