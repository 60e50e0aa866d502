// Selects a share of a program's cases, for programs that run as several processes at once: with `-- 3/8` as the last
// arguments, every eighth case from the fourth on (0/8 begins with the first).
#pragma once

#include <cstddef>

namespace ingot::test {

struct Share {
  int index = 0;
  int count = 1;

  bool has(std::size_t i) const { return static_cast<int>(i % static_cast<std::size_t>(count)) == index; }

  static Share of_arguments();
};

}  // namespace ingot::test
