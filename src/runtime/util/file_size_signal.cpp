#include "ingot/runtime/util/file_size_signal.h"

#include <cerrno>
#include <ctime>

namespace ingot {
namespace {

sigset_t only() {
  sigset_t set;
  ::sigemptyset(&set);
  ::sigaddset(&set, SIGXFSZ);
  return set;
}

bool is_pending() {
  sigset_t pending;
  ::sigemptyset(&pending);
  ::sigpending(&pending);
  return ::sigismember(&pending, SIGXFSZ) == 1;
}

}  // namespace

FileSizeSignal::FileSizeSignal() : was_pending_(is_pending()) {
  const sigset_t set = only();
  ::pthread_sigmask(SIG_BLOCK, &set, &mask_);
}

// A signal that waited before is the program's. errno still has to say why a write failed.
FileSizeSignal::~FileSizeSignal() {
  const int error = errno;
  if (!was_pending_ && is_pending()) {
    const sigset_t set = only();
    constexpr timespec kNoTime{};
    while (::sigtimedwait(&set, nullptr, &kNoTime) < 0 && errno == EINTR) {}
  }
  ::pthread_sigmask(SIG_SETMASK, &mask_, nullptr);
  errno = error;
}

}  // namespace ingot
