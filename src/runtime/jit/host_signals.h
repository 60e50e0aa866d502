// NVRTC's first compile in a process puts handlers of its own on SIGINT, SIGTERM and SIGXFSZ while its front end runs;
// a signal that reaches one of them ends the process, past the handler with which a trainer writes its last checkpoint.
// While this object lives, the calling thread does not take these signals (they wait), and a second thread puts the
// program's own handlers back as soon as they are replaced, for the program's other threads.
#pragma once

#include <signal.h>

#include <array>
#include <mutex>
#include <thread>

namespace ingot {

class HostSignals {
 public:
  HostSignals();
  ~HostSignals();
  HostSignals(const HostSignals&) = delete;
  HostSignals& operator=(const HostSignals&) = delete;

 private:
  static constexpr std::array kSignals{SIGINT, SIGTERM, SIGXFSZ};
  void put_back() const;

  std::unique_lock<std::mutex> lock_;
  sigset_t mask_{};  // the calling thread's, as it was
  std::array<struct sigaction, kSignals.size()> handlers_{};
  std::jthread keeper_;
};

}  // namespace ingot
