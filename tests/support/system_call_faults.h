// Lets chosen system calls of this program fail, as a broken or foreign file system would. system_call_faults.cpp
// defines open(), read(), rename() ... itself, ahead of the C library, so it is linked to those tests only that list it
// in CMakeLists.txt. One fault at a time, in all threads.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace ingot::test {

enum class Call : std::uint8_t {
  none,
  open,    // open, openat
  read,    // read, pread
  write,   // write
  rename,  // renameat
  stat,    // stat, lstat, fstat, fstatat
  unlink,  // unlink, unlinkat
  mkdir,   // mkdir, mkdirat
  lock,    // fcntl with F_OFD_SETLK
  close,   // closes all the same
  other,   // faccessat, futimens, fchmod, fsync, getrandom, fcntl otherwise
};

std::string_view name(Call call);

// Not an errno: a read finds that the file ends here.
inline constexpr int kEndOfFile = -1;

struct Fault {
  Call call = Call::none;
  int first = 1;  // the n-th call from now on, counted from 1
  int count = 1;  // this many calls in a row
  int error = 0;  // errno; 0: a read or write of fewer bytes than asked for; kEndOfFile
};

// As long as it lives, a sleep ends at once, and the steady clock is ahead by its time: who tries again for a second
// does so in milliseconds.
class FaultInjection {
 public:
  explicit FaultInjection(Fault fault);
  ~FaultInjection();
  FaultInjection(const FaultInjection&) = delete;
  FaultInjection& operator=(const FaultInjection&) = delete;

  int calls() const;  // of this kind so far
  int hits() const;   // calls that the fault has met
};

// time() is ahead by this many seconds as long as this lives.
class ClockJump {
 public:
  explicit ClockJump(std::int64_t seconds);
  ~ClockJump();
  ClockJump(const ClockJump&) = delete;
  ClockJump& operator=(const ClockJump&) = delete;
};

}  // namespace ingot::test
