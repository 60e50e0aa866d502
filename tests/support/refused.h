// The message of the error that a call throws.
#pragma once

#include <string>

#include "ingot/runtime/util/error.h"
#include "support/function_ref.h"

namespace ingot::test {

struct Refused {
  bool threw = false;
  ErrorCode code{};
  std::string subject;
  std::string message;
  std::string log;
};

Refused refused(test::FunctionRef<void()> call);

}  // namespace ingot::test
