#include "support/refused.h"
#include "support/function_ref.h"

namespace ingot::test {

Refused refused(test::FunctionRef<void()> call) {
  try {
    call();
  } catch (const Error& error) {
    return {true, error.code(), error.subject(), error.what(), error.log()};
  }
  return {.threw = false, .code = {}, .subject = {}, .message = "nothing was thrown", .log = {}};
}

}  // namespace ingot::test
