#include "support/refused.h"

namespace ingot::test {

Refused refused(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return {true, error.code(), error.subject(), error.what(), error.log()};
  }
  return {.threw = false, .code = {}, .subject = {}, .message = "nothing was thrown", .log = {}};
}

}  // namespace ingot::test
