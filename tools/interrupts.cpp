#include "interrupts.h"

#include <ctime>

namespace ingot::tools {

Interrupts::Interrupts() {
  sigemptyset(&held_);
  sigaddset(&held_, SIGINT);
  sigaddset(&held_, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &held_, &before_);
}

Interrupts::~Interrupts() {
  forget();
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

void Interrupts::forget() {
  constexpr timespec kNow{};
  while (sigtimedwait(&held_, nullptr, &kNow) > 0) {}
}

bool Interrupts::pending() const {
  sigset_t waiting;
  sigemptyset(&waiting);
  sigpending(&waiting);
  return sigismember(&waiting, SIGINT) == 1 || sigismember(&waiting, SIGTERM) == 1;
}

}  // namespace ingot::tools
