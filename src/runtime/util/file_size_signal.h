// A write beyond the process's limit on file sizes (RLIMIT_FSIZE) sends SIGXFSZ, which ends the program, before it
// fails with EFBIG, which the caller handles like a full disk. While this object lives, the signals that the calling
// thread's writes send reach nobody. Other threads and the program's handler are left alone.
#pragma once

#include <signal.h>

namespace ingot {

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

}  // namespace ingot
