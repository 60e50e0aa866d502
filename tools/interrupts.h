// Ctrl-C and SIGTERM held back, to be asked about: a command that must not be cut off in the middle ends at the next
// step instead. Threads that are started meanwhile hold them back too.
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

 private:
  sigset_t held_{};
  sigset_t before_{};
};

}  // namespace ingot::tools
