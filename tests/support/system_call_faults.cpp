// The functions pass the call to the kernel themselves, so that neither the C library nor a sanitizer's copy of it is
// asked. Declared without <fcntl.h>'s inline versions in the way: nothing here is compiled with _FORTIFY_SOURCE.
#include "support/system_call_faults.h"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstddef>
#include <cstdio>

namespace ingot::test {
namespace {

struct State {
  std::atomic<Call> call{Call::none};
  std::atomic<int> first{0};
  std::atomic<int> count{0};
  std::atomic<int> error{0};
  std::atomic<int> calls{0};
  std::atomic<int> hits{0};
  std::atomic<std::int64_t> clock{0};
  std::atomic<std::int64_t> slept{0};  // nanoseconds that passed in no time
};

constinit State state;  // C functions have no other place for it

bool strikes(Call call) {
  if (state.call != call) return false;
  const int number = ++state.calls;
  if (number < state.first || number - state.first >= state.count) return false;
  ++state.hits;
  return true;
}

// True if the call fails, with errno set.
bool fails(Call call) {
  if (!strikes(call)) return false;
  errno = state.error;
  return true;
}

std::size_t half(std::size_t bytes) { return bytes > 1 ? bytes / 2 : bytes; }

// -1 if the call fails; otherwise how many bytes to read or write.
long allowed(Call call, std::size_t bytes) {
  if (!strikes(call)) return static_cast<long>(bytes);
  if (state.error == 0) return static_cast<long>(half(bytes));
  if (state.error == kEndOfFile) return 0;
  errno = state.error;
  return -1;
}

}  // namespace

std::string_view name(Call call) {
  constexpr std::array<std::string_view, 11> kNames{"none",   "open",  "read", "write", "rename", "stat",
                                                    "unlink", "mkdir", "lock", "close", "other"};
  return kNames.at(static_cast<std::size_t>(call));
}

FaultInjection::FaultInjection(Fault fault) {
  state.first = fault.first;
  state.count = fault.count;
  state.error = fault.error;
  state.calls = 0;
  state.hits = 0;
  state.call = fault.call;
}
FaultInjection::~FaultInjection() { state.call = Call::none; }
int FaultInjection::calls() const { return state.calls; }
int FaultInjection::hits() const { return state.hits; }

ClockJump::ClockJump(std::int64_t seconds) { state.clock = seconds; }
ClockJump::~ClockJump() { state.clock = 0; }

}  // namespace ingot::test

using ingot::test::Call;
using ingot::test::fails;

namespace {

constexpr std::int64_t kSecond = 1'000'000'000;

// The mode is there only where a file may be made.
int open_at(int directory, const char* path, int flags, va_list arguments) {
  const unsigned mode = (flags & (O_CREAT | __O_TMPFILE)) != 0 ? va_arg(arguments, unsigned) : 0;
  return fails(Call::open) ? -1 : static_cast<int>(syscall(SYS_openat, directory, path, flags, mode));
}

}  // namespace

extern "C" {

int openat(int directory, const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const int file = open_at(directory, path, flags, arguments);
  va_end(arguments);
  return file;
}

int open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const int file = open_at(AT_FDCWD, path, flags, arguments);
  va_end(arguments);
  return file;
}

ssize_t read(int file, void* to, size_t bytes) {
  const long some = ingot::test::allowed(Call::read, bytes);
  return some < 0 ? -1 : syscall(SYS_read, file, to, some);
}

ssize_t pread(int file, void* to, size_t bytes, off_t at) {
  const long some = ingot::test::allowed(Call::read, bytes);
  return some < 0 ? -1 : syscall(SYS_pread64, file, to, some, at);
}

ssize_t write(int file, const void* from, size_t bytes) {
  const long some = ingot::test::allowed(Call::write, bytes);
  return some < 0 ? -1 : syscall(SYS_write, file, from, some);
}

int renameat(int from, const char* old_path, int to, const char* path) noexcept {
  return fails(Call::rename) ? -1 : static_cast<int>(syscall(SYS_renameat2, from, old_path, to, path, 0));
}

int renameat2(int from, const char* old_path, int to, const char* path, unsigned flags) noexcept {
  return fails(Call::rename) ? -1 : static_cast<int>(syscall(SYS_renameat2, from, old_path, to, path, flags));
}

int fstat(int file, struct stat* result) noexcept {
  return fails(Call::stat) ? -1 : static_cast<int>(syscall(SYS_fstat, file, result));
}

int fstatat(int directory, const char* path, struct stat* result, int flags) noexcept {
  return fails(Call::stat) ? -1 : static_cast<int>(syscall(SYS_newfstatat, directory, path, result, flags));
}

int stat(const char* path, struct stat* result) noexcept {
  return fails(Call::stat) ? -1 : static_cast<int>(syscall(SYS_newfstatat, AT_FDCWD, path, result, 0));
}

int lstat(const char* path, struct stat* result) noexcept {
  return fails(Call::stat) ? -1
                           : static_cast<int>(syscall(SYS_newfstatat, AT_FDCWD, path, result, AT_SYMLINK_NOFOLLOW));
}

int unlinkat(int directory, const char* path, int flags) noexcept {
  return fails(Call::unlink) ? -1 : static_cast<int>(syscall(SYS_unlinkat, directory, path, flags));
}

int unlink(const char* path) noexcept {
  return fails(Call::unlink) ? -1 : static_cast<int>(syscall(SYS_unlinkat, AT_FDCWD, path, 0));
}

int mkdirat(int directory, const char* path, mode_t mode) noexcept {
  return fails(Call::mkdir) ? -1 : static_cast<int>(syscall(SYS_mkdirat, directory, path, mode));
}

int mkdir(const char* path, mode_t mode) noexcept {
  return fails(Call::mkdir) ? -1 : static_cast<int>(syscall(SYS_mkdirat, AT_FDCWD, path, mode));
}

int fcntl(int file, int command, ...) {
  va_list arguments;
  va_start(arguments, command);
  void* const argument = va_arg(arguments, void*);
  va_end(arguments);
  const bool locks = command == F_OFD_SETLK;
  return fails(locks ? Call::lock : Call::other) ? -1 : static_cast<int>(syscall(SYS_fcntl, file, command, argument));
}

int close(int file) {
  const int result = static_cast<int>(syscall(SYS_close, file));
  return fails(Call::close) ? -1 : result;
}

int futimens(int file, const struct timespec times[2]) noexcept {
  return fails(Call::other) ? -1 : static_cast<int>(syscall(SYS_utimensat, file, nullptr, times, 0));
}

int faccessat(int directory, const char* path, int mode, int flags) noexcept {
  return fails(Call::other) ? -1 : static_cast<int>(syscall(SYS_faccessat2, directory, path, mode, flags));
}

int fchmod(int file, mode_t mode) noexcept {
  return fails(Call::other) ? -1 : static_cast<int>(syscall(SYS_fchmod, file, mode));
}

int fsync(int file) { return fails(Call::other) ? -1 : static_cast<int>(syscall(SYS_fsync, file)); }

ssize_t getrandom(void* to, size_t bytes, unsigned flags) {
  return fails(Call::other) ? -1 : syscall(SYS_getrandom, to, bytes, flags);
}

int clock_gettime(clockid_t clock, struct timespec* now) noexcept {
  const int result = static_cast<int>(syscall(SYS_clock_gettime, clock, now));
  if (result != 0 || clock != CLOCK_MONOTONIC) return result;
  const std::int64_t nanoseconds = now->tv_nsec + ingot::test::state.slept % kSecond;
  now->tv_sec += ingot::test::state.slept / kSecond + nanoseconds / kSecond;
  now->tv_nsec = nanoseconds % kSecond;
  return 0;
}

int nanosleep(const struct timespec* time, struct timespec* rest) {
  if (ingot::test::state.call == Call::none) return static_cast<int>(syscall(SYS_nanosleep, time, rest));
  ingot::test::state.slept += time->tv_sec * kSecond + time->tv_nsec;
  return 0;
}

time_t time(time_t* result) noexcept {
  struct timespec now {};
  clock_gettime(CLOCK_REALTIME, &now);
  const time_t seconds = now.tv_sec + ingot::test::state.clock;
  if (result != nullptr) *result = seconds;
  return seconds;
}

}  // extern "C"
