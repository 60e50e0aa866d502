// The one exception type of the library.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

#include "ingot/api.h"

namespace ingot {

enum class ErrorCode : std::uint8_t {
  invalid_spec,      // a spec that cannot exist
  invalid_argument,  // a tensor, pointer, shape or stream that does not fit the call
  not_found,         // a library, device, file or program that is missing
  compile_failed,    // NVRTC refused the source: log() has its messages
  cuda_failed,       // the driver, cuBLASLt or NCCL reported an error
  out_of_memory,
  io_failed,  // a file could not be read or written
};

INGOT_API std::string_view name(ErrorCode code);

// what() is "<subject>: <what is wrong, what was expected, what to do>"; subject is the spec's line, the tensor's name
// or the file that the error speaks of.
class INGOT_API Error : public std::runtime_error {
 public:
  Error(ErrorCode code, std::string subject, const std::string& message, std::string log = {});

  ErrorCode code() const noexcept { return code_; }
  const std::string& subject() const noexcept { return subject_; }
  // what() without the subject and its colon, for a caller that puts another name in front.
  std::string message() const;
  // The compiler's messages and the numbered source lines around each of them; empty for the other codes.
  const std::string& log() const noexcept { return log_; }

 private:
  ErrorCode code_;
  std::string subject_;
  std::string log_;
};

}  // namespace ingot
