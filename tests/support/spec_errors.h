// The messages with which the vocabulary of specs refuses one.
#pragma once

#include <boost/test/test_tools.hpp>

#include <string>

#include "ingot/codegen/kernel_spec.h"
#include "ingot/runtime/error.h"

namespace ingot::test {

template <class Call>
std::string message_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    BOOST_TEST((error.code() == ErrorCode::invalid_spec));
    return error.what();
  }
  return "no error";
}

inline std::string refusal(const KernelSpec& spec) {
  return message_of([&] { validate(spec); });
}

// The message without its subject, the line.
inline std::string parse_error(const std::string& line) {
  const std::string message = message_of([&] { parse(line); });
  const std::string subject = line + ": ";
  return message.starts_with(subject) ? message.substr(subject.size()) : "(no subject) " + message;
}

}  // namespace ingot::test
