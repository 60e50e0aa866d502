// Takes a program's cases in turn: with a variable (INGOT_TESTS_IN_TURN) of n in the environment every n-th, from
// another one on each day, so that n days' runs have them all. Without it, all.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <iostream>
#include <string>

namespace ingot::test {

struct InTurn {
  std::size_t turns = 1;
  std::size_t turn = 0;

  bool has(std::size_t i) const { return i % turns == turn; }

  static InTurn of_environment(const char* variable = "INGOT_TESTS_IN_TURN") {
    const char* const wanted = std::getenv(variable);
    if (wanted == nullptr) return {};
    const std::size_t turns = std::stoul(wanted);
    const char* const given = std::getenv("INGOT_TESTS_TURN");
    const auto today = std::chrono::floor<std::chrono::days>(std::chrono::system_clock::now()).time_since_epoch();
    const std::size_t turn = (given != nullptr ? std::stoul(given) : static_cast<std::size_t>(today.count())) % turns;
    std::cout << "turn " << turn + 1 << " of " << turns << ": INGOT_TESTS_TURN=" << turn << " runs the same again\n";
    return {turns, turn};
  }
};

}  // namespace ingot::test
