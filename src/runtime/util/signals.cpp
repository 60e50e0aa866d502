#include "ingot/runtime/util/signals.h"
#include <cerrno>
#include <ctime>
#include <mutex>
#include <system_error>

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

namespace {

// Signal handlers belong to the process: two compilers that prime at the same time would each take the other's handlers
// for the program's.
std::mutex& one_at_a_time() {
  static std::mutex mutex;
  return mutex;
}

}  // namespace

HostSignals::HostSignals() : lock_(one_at_a_time()) {
  for (std::size_t i = 0; i < kSignals.size(); ++i) ::sigaction(kSignals[i], nullptr, &handlers_[i]);
  // The keeper thread is started while every signal is blocked, and inherits that, so it never runs a handler.
  sigset_t all;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &mask_);
  try {
    keeper_ = std::jthread([this](const std::stop_token& stop) {
      // Spins during the one compile of an empty kernel, because the handlers must be back as soon as possible.
      while (!stop.stop_requested()) {
        put_back();
        std::this_thread::yield();
      }
    });
  } catch (const std::system_error&) {
    // No more threads are to be had: the handlers are put back when the compile has ended.
  }
  sigset_t waiting = mask_;
  for (const int signal : kSignals) ::sigaddset(&waiting, signal);
  ::pthread_sigmask(SIG_SETMASK, &waiting, nullptr);
}

HostSignals::~HostSignals() {
  keeper_ = {};  // stops it and waits for its end
  put_back();
  ::pthread_sigmask(SIG_SETMASK, &mask_, nullptr);
}

void HostSignals::put_back() const {
  for (std::size_t i = 0; i < kSignals.size(); ++i) {
    struct sigaction now {};
    ::sigaction(kSignals[i], nullptr, &now);
    // The handler's two spellings share storage, so one comparison serves both.
    if (now.sa_handler != handlers_[i].sa_handler) ::sigaction(kSignals[i], &handlers_[i], nullptr);
  }
}

}  // namespace ingot
