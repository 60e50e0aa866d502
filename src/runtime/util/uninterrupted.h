// Makes a system call again that a signal has interrupted, as for programs whose handlers lack SA_RESTART.
#pragma once

#include <cerrno>

namespace ingot {

// `call` returns less than 0, with errno set, where it fails.
template <class Call>
auto uninterrupted(Call&& call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

}  // namespace ingot
