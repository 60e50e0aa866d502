// A lock between processes that the kernel releases when its holder dies, however it dies: an open-file-description
// lock (fcntl F_OFD_SETLK) on one byte of a file. Byte n stands for the n-th thing to be locked, so one file serves any
// number of them, and is never deleted: deleting a lock file lets two processes hold "the" lock on different files.
//
// The lock only saves work. If it cannot be taken (no such file, a file system without locks, a timeout), the object
// says so and the caller continues without it.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "ingot/api.h"
#include "ingot/runtime/util/file_descriptor.h"

namespace ingot {

class INGOT_API FileLock {
 public:
  FileLock() = default;  // holds nothing
  // Creates the file `name` if necessary, in the open directory `directory` (AT_FDCWD: the working directory), and
  // waits at most `wait` for the byte. Only the low 62 bits of `byte` count.
  FileLock(int directory, const std::string& name, std::uint64_t byte, std::chrono::milliseconds wait);
  FileLock(FileLock&&) noexcept = default;
  FileLock& operator=(FileLock&&) = delete;
  ~FileLock();

  bool held() const { return static_cast<bool>(file_); }

 private:
  FileDescriptor file_;  // open while the lock is held
  std::int64_t byte_ = 0;
};

}  // namespace ingot
