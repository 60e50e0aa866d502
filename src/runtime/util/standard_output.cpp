#include "ingot/runtime/util/standard_output.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <string>
#include <system_error>

#include "ingot/runtime/util/error.h"

namespace ingot {

void reserve_standard_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(stream, F_GETFD) >= 0 || errno != EBADF) continue;
    // The lowest free number is this one's. It stays open until the program ends.
    static_cast<void>(::open("/dev/null", stream == STDERR_FILENO ? O_WRONLY : O_RDONLY));
  }
}

void finish_standard_output() {
  const bool failed_before = std::ferror(stdout) != 0;
  const bool flushed = std::fflush(stdout) == 0;
  if (flushed && !failed_before) return;
  const std::string reason = flushed ? "some of it is lost" : std::system_category().message(errno);
  throw Error(ErrorCode::io_failed, "standard output", "cannot be written: " + reason);
}

}  // namespace ingot
