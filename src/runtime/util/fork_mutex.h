// A mutex for short sections that fork() finds unlocked: before the process forks, every mutex of this type is locked,
// and afterwards unlocked on both sides. A child therefore never waits for a thread that it does not have, and what the
// mutex guards is whole there.
//
// Whoever holds one takes no other one, waits for no thread and not for Python's lock (the GIL), which the forking
// thread may hold, and makes and destroys none.
#pragma once

#include <mutex>

#include "ingot/api.h"

namespace ingot {

class INGOT_API ForkMutex {
 public:
  ForkMutex();
  ~ForkMutex();
  ForkMutex(const ForkMutex&) = delete;
  ForkMutex& operator=(const ForkMutex&) = delete;

  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }

 private:
  friend struct ForkMutexes;

  std::mutex mutex_;
  ForkMutex* before_ = nullptr;  // in the list of all
  ForkMutex* after_ = nullptr;
};

}  // namespace ingot
