#include "ingot/runtime/util/fork_mutex.h"

#include <pthread.h>

namespace ingot {

// All of the process, in a list. The handlers of fork() take no argument, so they need a place that they know.
struct ForkMutexes {
  std::mutex mutex;
  ForkMutex* first = nullptr;

  // Never destroyed: other threads may make and destroy mutexes until the very end.
  static ForkMutexes& all() {
    static auto* const list = [] {
      auto* const made = new ForkMutexes;
      pthread_atfork([] { all().lock(); }, [] { all().unlock(); }, [] { all().unlock(); });
      return made;
    }();
    return *list;
  }

  void lock() {
    mutex.lock();
    for (ForkMutex* each = first; each != nullptr; each = each->after_) each->lock();
  }

  void unlock() {
    for (ForkMutex* each = first; each != nullptr; each = each->after_) each->unlock();
    mutex.unlock();
  }

  void add(ForkMutex& added) {
    const std::lock_guard lock(mutex);
    added.after_ = first;
    if (first != nullptr) first->before_ = &added;
    first = &added;
  }

  void remove(ForkMutex& removed) {
    const std::lock_guard lock(mutex);
    if (removed.after_ != nullptr) removed.after_->before_ = removed.before_;
    (removed.before_ != nullptr ? removed.before_->after_ : first) = removed.after_;
  }
};

ForkMutex::ForkMutex() { ForkMutexes::all().add(*this); }
ForkMutex::~ForkMutex() { ForkMutexes::all().remove(*this); }

}  // namespace ingot
