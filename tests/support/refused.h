// The message of the error that a call throws.
#pragma once

#include <string>

#include "ingot/runtime/error.h"

namespace ingot::test {

struct Refused {
  bool threw = false;
  ErrorCode code{};
  std::string subject;
  std::string message;
  std::string log;
};

template <class Call>
Refused refused(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    return {true, error.code(), error.subject(), error.what(), error.log()};
  }
  return {.threw = false, .code = {}, .subject = {}, .message = "nothing was thrown", .log = {}};
}

}  // namespace ingot::test
