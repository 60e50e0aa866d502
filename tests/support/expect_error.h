// Checks errors by their messages.
#pragma once

#include <boost/test/test_tools.hpp>
#include <boost/test/tools/old/interface.hpp>
#include <boost/test/unit_test_suite.hpp>

#include <string>
#include <vector>

#include "ingot/runtime/util/error.h"
#include "support/function_ref.h"

namespace ingot::test {

// The message of what `call` throws, which must be an Error with this code; "nothing thrown" if it throws nothing.
std::string error_of(test::FunctionRef<void()> call, ErrorCode code);

void check_contains(const std::string& text, const std::vector<std::string>& parts);

}  // namespace ingot::test
