#include "ingot/runtime/util/error.h"

#include <string_view>
#include <utility>

#include "ingot/runtime/util/text.h"

namespace ingot {
namespace {

constexpr std::string_view kBetween = ": ";
constexpr std::size_t kLongestSubject = 4096;  // the longest path
constexpr std::size_t kLongestMessage = 16384;

// A line of megabytes in a file is no message.
std::string cut(std::string_view text, std::size_t most) {
  return std::string(text.substr(0, most)) + (text.size() > most ? "..." : "");
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
    // It may quote a file, a name or a variable, and is printed on a terminal. A NUL would also end what() there, and
    // whoever looks after the subject would read past the end.
    : std::runtime_error(
          without_controls(cut(subject, kLongestSubject) + std::string(kBetween) + cut(message, kLongestMessage))),
      code_(code),
      subject_(std::move(subject)),
      log_(std::move(log)) {}

std::string Error::message() const { return what() + cut(subject_, kLongestSubject).size() + kBetween.size(); }

}  // namespace ingot
