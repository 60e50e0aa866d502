// Checks errors by their messages.
#pragma once

#include <boost/test/test_tools.hpp>
#include <boost/test/tools/old/interface.hpp>
#include <boost/test/unit_test_suite.hpp>

#include <string>
#include <vector>

#include "ingot/runtime/error.h"

namespace ingot::test {

// The message of what `call` throws, which must be an Error with this code; "nothing thrown" if it throws nothing.
template <class Call>
std::string error_of(const Call& call, ErrorCode code) {
  try {
    call();
  } catch (const Error& error) {
    BOOST_TEST(name(error.code()) == name(code));
    return error.what();
  }
  return "nothing thrown";
}

inline void check_contains(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    BOOST_CHECK_MESSAGE(text.find(part) != std::string::npos, "\"" << part << "\" is not in: " << text);
  }
}

}  // namespace ingot::test
