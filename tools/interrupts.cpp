#include "interrupts.h"

#include <unistd.h>

#include <ctime>

#include "usage_error.h"

namespace ingot::tools {
namespace {

void end(int /*signal*/) { _exit(kStopped); }

}  // namespace

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

InterruptsEnd::InterruptsEnd() {
  struct sigaction action {};
  action.sa_handler = end;
  sigemptyset(&action.sa_mask);
  for (std::size_t i = 0; i < kSignals.size(); ++i) {
    sigaction(kSignals[i], nullptr, &before_[i]);
    if (before_[i].sa_handler != SIG_IGN) sigaction(kSignals[i], &action, nullptr);
  }
}

InterruptsEnd::~InterruptsEnd() {
  for (std::size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &before_[i], nullptr);
}

}  // namespace ingot::tools
