// Compiled kernels on disk, one self-describing file each (format: kernel_file.h).
//
//   <root>/<2 hex digits>/<32 hex digits>.kernel     published by rename from <root>/tmp/
//   <root>/quarantine/                               files that failed their check, at most 16
//   <root>/lock                                      never deleted; byte n is locked while key n compiles
//
// No failure of the disk is an error of the caller: a file that cannot be read, is truncated, has a flipped bit, the
// wrong key or the wrong owner is moved aside and reads as a miss; a store that cannot be written keeps nothing and
// says so once. Directories are 0700, files 0600; a root that belongs to somebody else or that others can write is
// refused.
//
// Nothing about the directory is remembered between calls, so a store whose directory is deleted, filled or repaired
// while the program runs follows. Nothing is flushed (fsync): after a power failure a file may be empty or torn, which
// its checksum turns into a miss, and a cache owes no more than that.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <mutex>
#include <optional>
#include <string>

#include "ingot/runtime/compiler.h"
#include "ingot/runtime/file_descriptor.h"
#include "ingot/runtime/file_lock.h"
#include "ingot/runtime/kernel_key.h"

namespace ingot {

class KernelStore {
 public:
  using Warn = std::function<void(const std::string&)>;
  static constexpr std::int64_t kDefaultMaxBytes = std::int64_t{2} << 30;

  // No root: default_store_root(), with a warning where there is none. An empty root keeps nothing, silently. `warn` is
  // called at most once per object, from any thread, and must not throw. When the files outgrow max_bytes, those used
  // longest ago are removed, down to 90 % of it.
  explicit KernelStore(std::optional<std::filesystem::path> root, Warn warn = {},
                       std::int64_t max_bytes = kDefaultMaxBytes);

  // Verified before it is returned.
  std::optional<CompiledKernel> find(const KernelKey& key);
  // Atomic: readers see the whole file or none. Failing to write is one warning.
  void put(const KernelKey& key, const Source& source, Target target, const CompiledKernel& kernel);

  // Keeps other processes from compiling the same key: take it after a miss, look again, compile, put, release. Not
  // held where the wait runs out or the store does not work; then compile anyway.
  FileLock lock(const KernelKey& key, std::chrono::milliseconds wait = std::chrono::seconds(60));

  // Absolute, or empty.
  const std::filesystem::path& root() const { return root_; }
  // Why nothing is kept ("store directory ... is owned by user 1000"), or empty where it works. Makes the directory
  // where it is missing, to know.
  std::string disabled_reason() const;

  struct Usage {
    std::int64_t files = 0;
    std::int64_t bytes = 0;
  };
  Usage usage() const;

 private:
  enum class Open : std::uint8_t { if_there, make };
  FileDescriptor open_root(Open open, std::string& problem) const;
  FileDescriptor folder(const FileDescriptor& root, const std::string& name);
  bool publish(const FileDescriptor& root, const KernelKey& key, const std::string& file, std::string& problem);
  void remove_oldest_if_due(const FileDescriptor& root, std::int64_t bytes_written);
  void quarantine(const FileDescriptor& root, const std::string& name, const std::string& why);
  void warn_of(const std::string& problem);
  void warn_once(const std::string& text);

  std::filesystem::path root_;
  Warn warn_;
  std::int64_t max_bytes_;
  bool switched_off_;  // by an empty root

  mutable std::mutex mutex_;  // guards the rest; not held during disk work
  std::string problem_;       // of the last put; empty where it worked
  bool warned_ = false;
  std::int64_t bytes_ = 0;  // of all files at the last scan, and put since
  int puts_until_scan_ = 0;
};

// $INGOT_CACHE_DIR, else $XDG_CACHE_HOME/ingot, else $HOME/.cache/ingot; empty where none is set. The last two count
// only where they are absolute: never a place that depends on the working directory, and never /tmp.
std::filesystem::path default_store_root();

}  // namespace ingot
