#include "ingot/runtime/util/file_lock.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <thread>

#include "ingot/runtime/util/file_descriptor.h"

namespace ingot {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kFirstPause{1};
constexpr milliseconds kLongestPause{20};  // a compile takes 20 ms and more

constexpr std::uint64_t kLargestByte = (std::uint64_t{1} << 62U) - 1;  // offsets of files are signed

bool set_lock(int file, short type, std::int64_t byte) {
  struct flock range {};
  range.l_type = type;
  range.l_whence = SEEK_SET;
  range.l_start = byte;
  range.l_len = 1;
  return fcntl(file, F_OFD_SETLK, &range) == 0;
}

}  // namespace

// The kernel offers no timed wait for file locks, hence the polling.
FileLock::FileLock(int directory, const std::string& name, std::uint64_t byte, milliseconds wait)
    : byte_(static_cast<std::int64_t>(byte & kLargestByte)) {
  const auto deadline = steady_clock::now() + wait;
  constexpr int kFlags = O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
  FileDescriptor file(uninterrupted([&] { return openat(directory, name.c_str(), kFlags, 0600); }));
  if (!file) return;
  for (milliseconds pause = kFirstPause; !set_lock(file.get(), F_WRLCK, byte_);
       pause = std::min(2 * pause, kLongestPause)) {
    const bool taken = errno == EAGAIN || errno == EACCES;
    if ((!taken && errno != EINTR) || steady_clock::now() >= deadline) return;
    std::this_thread::sleep_for(pause);
  }
  file_ = std::move(file);
}

// Unlocks explicitly before closing: a child process forked in the meantime shares the open file and would keep the
// lock.
FileLock::~FileLock() {
  if (held()) set_lock(file_.get(), F_UNLCK, byte_);
}

}  // namespace ingot
