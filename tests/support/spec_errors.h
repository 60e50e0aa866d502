// The messages with which the vocabulary of specs refuses one.
#pragma once

#include <boost/test/test_tools.hpp>

#include <functional>
#include <string>

#include "ingot/codegen/kernel_spec.h"
#include "ingot/runtime/error.h"

namespace ingot::test {

std::string message_of(const std::function<void()>& call);

std::string refusal(const KernelSpec& spec);

// The message without its subject, the line.
std::string parse_error(const std::string& line);

}  // namespace ingot::test
