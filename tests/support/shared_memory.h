// A value that a test and the processes that it forks share.
#pragma once

#include <sys/mman.h>

#include <new>
#include <stdexcept>

namespace ingot::test {

template <class T>
class SharedMemory {
 public:
  SharedMemory() : value_(map()) { new (value_) T(); }
  ~SharedMemory() { munmap(value_, sizeof(T)); }
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  T& operator*() const { return *value_; }
  T* operator->() const { return value_; }

 private:
  static T* map() {
    void* const memory = mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::runtime_error("no shared memory");
    return static_cast<T*>(memory);
  }

  T* value_;
};

}  // namespace ingot::test
