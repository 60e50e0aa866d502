// Computes each key's value once among threads: the first to ask computes it, those who ask in the meantime wait, and
// all of them get the same value or exception. No lock is held while computing.
//
// Values are remembered, and so are errors that would only repeat (Error{compile_failed, invalid_spec}). Any other
// failure (memory, the driver, a file) may be temporary: those who wait get it, and the next to ask tries again.
//
// A child made by fork() computes anew what a thread of its parent was computing.
#pragma once

#include <unistd.h>

#include <chrono>
#include <exception>
#include <future>
#include <map>
#include <mutex>
#include <utility>

#include "ingot/runtime/util/error.h"
#include "ingot/runtime/util/fork_mutex.h"

namespace ingot {

template <class Key, class Value>
class SingleFlight {
 public:
  // compute() must not ask for its own key.
  template <class Compute>
  Value get(const Key& key, Compute&& compute) {
    std::promise<Value> promise;
    std::shared_future<Value> result;
    bool first = false;
    {
      const std::lock_guard lock(mutex_);
      Result& of_key = results_[key];
      first = of_key.is_lost();
      if (first) of_key = {.value = promise.get_future().share(), .process = ::getpid()};
      result = of_key.value;
    }
    if (first) {
      try {
        promise.set_value(compute());
      } catch (...) {
        if (!would_be_repeated()) forget(key);
        promise.set_exception(std::current_exception());
      }
    }
    return result.get();
  }

 private:
  struct Result {
    // Nobody computes it or has computed it.
    bool is_lost() const {
      if (!value.valid()) return true;
      return process != ::getpid() && value.wait_for(std::chrono::seconds(0)) != std::future_status::ready;
    }

    std::shared_future<Value> value{};
    pid_t process = 0;  // that computes it
  };

  // Call this within a handler: would computing again fail in the same way?
  static bool would_be_repeated() {
    try {
      throw;
    } catch (const Error& error) {
      return error.code() == ErrorCode::compile_failed || error.code() == ErrorCode::invalid_spec;
    } catch (...) {
      return false;
    }
  }

  void forget(const Key& key) {
    const std::lock_guard lock(mutex_);
    results_.erase(key);
  }

  ForkMutex mutex_;  // guards the map alone
  std::map<Key, Result> results_;
};

}  // namespace ingot
