// The message of the error that a call throws.
#pragma once

#include <functional>
#include <string>

#include "ingot/runtime/util/error.h"

namespace ingot::test {

struct Refused {
  bool threw = false;
  ErrorCode code{};
  std::string subject;
  std::string message;
  std::string log;
};

Refused refused(const std::function<void()>& call);

}  // namespace ingot::test
