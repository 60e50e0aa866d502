#include "ingot/runtime/error.h"

#include <utility>

namespace ingot {
namespace {

constexpr std::string_view kBetween = ": ";

// A message may quote a file, a name or a variable, and is printed on a terminal: control characters become "?", those
// of Unicode (C2 80 to C2 9F) too. A NUL would also end what() there, and whoever looks after the subject would read
// past the end. Each byte stays one byte.
std::string printable_text(std::string text) {
  const auto at = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  for (std::size_t i = 0; i < text.size(); ++i) {
    if ((at(i) < ' ' && text[i] != '\n' && text[i] != '\t') || at(i) == 0x7f) text[i] = '?';
    if (at(i) == 0xc2 && i + 1 < text.size() && at(i + 1) >= 0x80 && at(i + 1) < 0xa0) text[i] = text[i + 1] = '?';
  }
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
    : std::runtime_error(printable_text(subject + std::string(kBetween) + message)),
      code_(code),
      subject_(std::move(subject)),
      log_(std::move(log)) {}

std::string Error::message() const { return what() + subject_.size() + kBetween.size(); }

}  // namespace ingot
