// Compiled kernels on disk, one self-describing file each (its grammar: src/runtime/jit/kernel_file.h of the sources).
//
//   <root>/<2 hex digits>/<32 hex digits>.kernel
//   <root>/lock                                    never deleted; byte n is locked while key n compiles
//
// How files are published, checked and moved aside, and what a broken disk costs: store_directory.h. A file that is
// truncated, has a flipped bit or the wrong key reads as a miss.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "ingot/api.h"
#include "ingot/codegen/types/target.h"
#include "ingot/runtime/jit/compiler.h"
#include "ingot/runtime/jit/kernel_file.h"
#include "ingot/runtime/util/file_lock.h"
#include "ingot/runtime/util/fork_mutex.h"
#include "ingot/runtime/util/store_directory.h"

namespace ingot {

class INGOT_API KernelStore {
 public:
  using Warn = StoreDirectory::Warn;
  static constexpr std::int64_t kDefaultMaxBytes = std::int64_t{2} << 30;
  // Far beyond any compile: a holder that dies releases its lock, so only a stopped one is waited for so long.
  static constexpr std::chrono::milliseconds kLockWait = std::chrono::minutes(10);

  // No root: default_store_root(), with a warning if there is none. An empty root keeps nothing, silently. `warn` is
  // called at most once per object, from any thread, and must not throw. When the files outgrow max_bytes, the least
  // recently used are removed until 90 % of it remains.
  explicit KernelStore(std::optional<std::filesystem::path> root, Warn warn = {},
                       std::int64_t max_bytes = kDefaultMaxBytes);

  // Verified before it is returned, also to be made from what is wanted, unless that is null.
  std::optional<CompiledKernel> find(const KernelKey& key, const KernelWanted* wanted = nullptr);
  // Atomic: readers see the whole file or none. On failure returns false and warns once.
  bool put(const KernelKey& key, const Source& source, Target target, const CompiledKernel& kernel);

  // Keeps other processes from compiling the same key: after a miss, lock, look again, compile, put, release. If the
  // wait times out or the store does not work, it is not held.
  FileLock lock(const KernelKey& key, std::chrono::milliseconds wait = kLockWait);

  // Absolute, or empty.
  const std::filesystem::path& root() const { return directory_.root(); }
  // Why nothing is kept ("store directory ... is owned by user 1000"), or empty if the store works. Creates the
  // directory if it is missing, to find out.
  std::string disabled_reason() const { return directory_.disabled_reason(); }
  // The same, and why a kernel could not be kept now: writes a file and removes it.
  std::string write_problem() const { return directory_.write_problem(); }

  // What the store holds on disk.
  struct Usage {
    std::int64_t files = 0;
    std::int64_t bytes = 0;
  };
  Usage usage() const;

  // Counts of this object: damaged files that were moved aside, and files that were removed to keep the size limit.
  struct Removed {
    std::int64_t quarantined = 0;
    std::int64_t evicted = 0;
  };
  Removed removed() const { return {.quarantined = directory_.moved_aside(), .evicted = evicted_}; }
  // The following functions are for the maintenance of a store (`ingot cache`). Listing and reading do not count as a
  // use of a kernel and change nothing.

  // Everything with a kernel's name, in ascending order of keys, unread.
  std::vector<KernelEntry> list() const;
  std::optional<KernelFile> read(const KernelKey& key, std::string& problem);
  // Checks a file as find() does: a damaged one is moved to the quarantine.
  StoreDirectory::Check check(const KernelKey& key, std::optional<KernelFile>* file = nullptr);
  // Moves a kernel to the quarantine. False if it is not there or cannot be moved.
  bool set_aside(const KernelKey& key, const std::string& why);
  // Removes kernels as they were listed: one that has been used or replaced since then stays.
  RemovedFiles remove(const std::vector<KernelEntry>& kernels, const std::function<bool()>& stop = {}) const;
  // Removes every kernel, what is in the quarantine, and temporary files that are at least an hour old. The lock file
  // and the folders stay, as another process may be about to use them.
  RemovedFiles clear(const std::function<bool()>& stop = {}) const;

  std::int64_t max_bytes() const { return max_bytes_; }
  const StoreDirectory& directory() const { return directory_; }

 private:
  void remove_oldest_if_due(std::int64_t bytes_written);

  StoreDirectory directory_;
  std::int64_t max_bytes_;
  std::atomic<std::int64_t> evicted_{0};

  ForkMutex mutex_;         // guards the rest; not held during disk work
  std::int64_t bytes_ = 0;  // of all files at the last scan, and put since
  int puts_until_scan_ = 0;
};

}  // namespace ingot
