#include "support/expect_error.h"
#include "support/function_ref.h"

namespace ingot::test {

std::string error_of(test::FunctionRef<void()> call, ErrorCode code) {
  try {
    call();
  } catch (const Error& error) {
    BOOST_TEST(name(error.code()) == name(code));
    return error.what();
  }
  return "nothing thrown";
}

void check_contains(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    BOOST_CHECK_MESSAGE(text.find(part) != std::string::npos, "\"" << part << "\" is not in: " << text);
  }
}

}  // namespace ingot::test
