// Signals that the library or NVRTC would cause are kept from the program, and its handlers from NVRTC.
#pragma once

#include <signal.h>

#include <array>
#include <mutex>
#include <thread>

namespace ingot {

// A write beyond the process's limit on file sizes (RLIMIT_FSIZE) sends SIGXFSZ, which ends the program, before it
// fails with EFBIG, which the caller handles like a full disk. While this object lives, the signals that the calling
// thread's writes send reach nobody. Other threads and the program's handler are left alone.
class FileSizeSignal {
 public:
  FileSizeSignal();
  ~FileSizeSignal();
  FileSizeSignal(const FileSizeSignal&) = delete;
  FileSizeSignal& operator=(const FileSizeSignal&) = delete;

 private:
  sigset_t mask_{};  // the calling thread's, as it was
  bool was_pending_ = false;
};

// Protects the program's signal handlers from NVRTC. Its first compile in a process installs its own handlers for
// SIGINT, SIGTERM and SIGXFSZ while the front end runs, and a signal that reaches one of them ends the process without
// running the program's handler, with which a trainer writes its last checkpoint. While this object lives, the calling
// thread blocks these signals (they stay pending), and a second thread restores the program's handlers, for its other
// threads, as soon as they are replaced.
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
