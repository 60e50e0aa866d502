#include "ingot/runtime/error.h"

#include <utility>

#include "ingot/runtime/util/printable.h"

namespace ingot {
namespace {

constexpr std::string_view kBetween = ": ";

}  // namespace

std::string_view name(ErrorCode code) {
  switch (code) {
    case ErrorCode::invalid_spec: return "invalid_spec";
    case ErrorCode::invalid_argument: return "invalid_argument";
    case ErrorCode::not_found: return "not_found";
    case ErrorCode::compile_failed: return "compile_failed";
    case ErrorCode::cuda_failed: return "cuda_failed";
    case ErrorCode::out_of_memory: return "out_of_memory";
    case ErrorCode::io_failed: return "io_failed";
  }
  return "unknown error";
}

Error::Error(ErrorCode code, std::string subject, const std::string& message, std::string log)
    // It may quote a file, a name or a variable, and is printed on a terminal. A NUL would also end what() there, and
    // whoever looks after the subject would read past the end.
    : std::runtime_error(without_controls(subject + std::string(kBetween) + message)),
      code_(code),
      subject_(std::move(subject)),
      log_(std::move(log)) {}

std::string Error::message() const { return what() + subject_.size() + kBetween.size(); }

}  // namespace ingot
