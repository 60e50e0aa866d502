#include "interrupts.h"

#include <ctime>

namespace ingot::tools {

Interrupts::Interrupts() {
  sigemptyset(&held_);
  sigaddset(&held_, SIGINT);
  sigaddset(&held_, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &held_, &before_);
}

// Drops the signals that came meanwhile: the command has acted on them.
Interrupts::~Interrupts() {
  constexpr timespec kNow{};
  while (sigtimedwait(&held_, nullptr, &kNow) > 0) {}
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

bool Interrupts::pending() const {
  sigset_t waiting;
  sigemptyset(&waiting);
  sigpending(&waiting);
  return sigismember(&waiting, SIGINT) == 1 || sigismember(&waiting, SIGTERM) == 1;
}

}  // namespace ingot::tools
