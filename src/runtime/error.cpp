#include "ingot/runtime/error.h"

#include <algorithm>
#include <utility>

namespace ingot {
namespace {

constexpr std::string_view kBetween = ": ";

// A NUL from a damaged file would end what() there, and whoever looks behind the subject would read past the end.
std::string without_nul(std::string text) {
  std::ranges::replace(text, '\0', '?');
  return text;
}

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
    : std::runtime_error(without_nul(subject + std::string(kBetween) + message)),
      code_(code),
      subject_(std::move(subject)),
      log_(std::move(log)) {}

std::string Error::message() const { return what() + subject_.size() + kBetween.size(); }

}  // namespace ingot
