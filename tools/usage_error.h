// How the program ends: its exit codes, and the error of a wrong command line.
#pragma once

#include <string>
#include <utility>

#include "ingot/runtime/util/error.h"

namespace ingot::tools {

inline constexpr int kFailed = 1;
inline constexpr int kUsage = 2;
inline constexpr int kStopped = 130;  // as a shell reports a program that Ctrl-C has ended

// An impossible value on the command line: the program ends with kUsage.
class UsageError : public Error {
 public:
  UsageError(std::string subject, const std::string& message)
      : Error(ErrorCode::invalid_argument, std::move(subject), message) {}
};

// read() of a value of the command line: an Error that it throws becomes a UsageError.
template <class Read>
auto read_argument(const Read& read) {
  try {
    return read();
  } catch (const Error& error) {
    throw UsageError(error.subject(), error.message());
  }
}

}  // namespace ingot::tools
