// Holds back Ctrl-C and SIGTERM, so that a command that must not be cut off in the middle can ask for them and end
// after its current step. Threads that are started meanwhile hold them back too.
#pragma once

#include <array>
#include <csignal>

namespace ingot::tools {

class Interrupts {
 public:
  Interrupts();
  ~Interrupts();
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;

  bool pending() const;
  // Forgets the signals that came so far: the command has acted on them.
  void forget();

 private:
  sigset_t held_{};
  sigset_t before_{};
};

// While this object lives, Ctrl-C and SIGTERM end the program at once, with kStopped: for work before anything is
// written, such as planning, which may take long and has nothing to finish. Signals that were ignored stay so; an
// Interrupts within it holds them back.
class InterruptsEnd {
 public:
  InterruptsEnd();
  ~InterruptsEnd();
  InterruptsEnd(const InterruptsEnd&) = delete;
  InterruptsEnd& operator=(const InterruptsEnd&) = delete;

 private:
  static constexpr std::array kSignals{SIGINT, SIGTERM};
  std::array<struct sigaction, kSignals.size()> before_{};
};

}  // namespace ingot::tools
