// The progress of Context::prepare().
#pragma once

#include <cstddef>
#include <string>

namespace ingot {

struct PrepareProgress {
  std::size_t done = 0;   // kernels that are ready, or failed
  std::size_t total = 0;  // of all
  std::string kernel{};   // the spec of the last one
};

}  // namespace ingot
