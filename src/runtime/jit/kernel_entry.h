// A kernel of a store or a tier: what is known of it without reading its file.
#pragma once

#include <cstdint>
#include <ctime>
#include <optional>
#include <utility>

#include "ingot/runtime/jit/kernel_key.h"

namespace ingot {

struct KernelEntry {
  KernelKey key{};
  std::int64_t bytes = 0;  // of its file
  // When it was last used: seconds and nanoseconds, noted at most once an hour. A bundle keeps no times.
  std::optional<std::pair<std::time_t, long>> used{};
  std::optional<std::time_t> made{};  // where the file system keeps that
};

}  // namespace ingot
