// Catches the errors of validate() and parse(), and requires their code to be invalid_spec.
#include "support/spec_errors.h"
#include "support/function_ref.h"

namespace ingot::test {

std::string message_of(test::FunctionRef<void()> call) {
  try {
    call();
  } catch (const Error& error) {
    BOOST_TEST((error.code() == ErrorCode::invalid_spec));
    return error.what();
  }
  return "no error";
}

std::string refusal(const KernelSpec& spec) {
  return message_of([&] { validate(spec); });
}

std::string parse_error(const std::string& line) {
  const std::string message = message_of([&] { parse(line); });
  const std::string subject = line + ": ";
  return message.starts_with(subject) ? message.substr(subject.size()) : "(no subject) " + message;
}

}  // namespace ingot::test
