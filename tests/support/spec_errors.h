// For tests of specs: the messages of the errors that invalid specs cause.
#pragma once

#include <boost/test/test_tools.hpp>

#include <string>

#include "ingot/codegen/kernel_spec.h"
#include "ingot/runtime/util/error.h"
#include "support/function_ref.h"

namespace ingot::test {

// The message of the Error{invalid_spec} that `call` throws; "no error" if it throws none.
std::string message_of(test::FunctionRef<void()> call);

// The message with which validate() refuses the spec.
std::string refusal(const KernelSpec& spec);

// The message with which parse() refuses the line, without the line itself, with which the message begins.
std::string parse_error(const std::string& line);

}  // namespace ingot::test
