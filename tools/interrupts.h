// Holds back Ctrl-C and SIGTERM, so that a command that must not be cut off in the middle can ask for them and end
// after its current step. Threads that are started meanwhile hold them back too.
#pragma once

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

}  // namespace ingot::tools
