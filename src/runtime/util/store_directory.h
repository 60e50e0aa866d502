// A directory of one user's small, self-describing files: what the stores of kernels and of tuning records share.
//
//   <root>/<folder>/<name>     published by rename from <root>/tmp/
//   <root>/quarantine/         files that failed their check, at most 16
//
// No failure of the disk is an error of the caller: a file that cannot be read, is damaged or has the wrong owner is
// moved aside and reads as a miss; a directory that cannot be written keeps nothing and says so once. Directories are
// 0700, files 0600; a root that belongs to somebody else or that others can write is refused. Nothing about the
// directory is remembered between calls, and nothing is flushed (fsync): a file that a power failure tore fails its
// check.
#pragma once

#include <cstdint>
#include <ctime>
#include <filesystem>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ingot/runtime/util/file_descriptor.h"

namespace ingot {

struct StoredFile {
  std::string name;  // relative to the root: "<folder>/<name>"
  std::int64_t bytes = 0;
  std::pair<std::time_t, long> modified{};
};

class StoreDirectory {
 public:
  using Warn = std::function<void(const std::string&)>;
  // Is the content as it was written? If not, why, in words that follow the file's name: "is truncated".
  using Accept = std::function<bool(std::string_view content, std::string& problem)>;

  // The ends of its warnings.
  struct Words {
    std::string lost;      // of a file moved aside: "and its kernel is compiled again"
    std::string unusable;  // of a directory that keeps nothing
  };

  // No root: default_store_root(). An empty root keeps nothing, silently. `warn` is called at most once per object,
  // from any thread, and must not throw.
  StoreDirectory(std::optional<std::filesystem::path> root, Warn warn, Words words);

  // True where the file is there and accepted; it then counts as used just now.
  bool read(const std::string& folder, const std::string& name, const Accept& accept);
  // Atomic: readers see the whole file or none. False after a failure, which is one warning and problem().
  bool publish(const std::string& folder, const std::string& name, std::string_view content);

  // Those whose name has this end, in folders whose name `wanted` accepts.
  std::vector<StoredFile> files(std::string_view suffix, const std::function<bool(const std::string&)>& wanted) const;
  // False where there is none of this name, or it cannot be removed.
  bool remove(const std::string& file) const;
  // What processes that were killed while writing have left, an hour after.
  void remove_abandoned() const;

  // Absolute, or empty.
  const std::filesystem::path& root() const { return root_; }
  // The root, made where it is missing, and checked; empty where it is not to be used.
  FileDescriptor open() const;
  // Why nothing is kept, or empty where it works. Makes the directory where it is missing, to know.
  std::string disabled_reason() const;
  // The caller's own line, under the rule of one.
  void warn_once(const std::string& text);

 private:
  enum class Open : std::uint8_t { if_there, make };
  FileDescriptor open_root(Open open, std::string& problem) const;
  FileDescriptor subfolder(const FileDescriptor& root, const std::string& name);
  bool write(const FileDescriptor& root, const std::string& folder, const std::string& name, std::string_view content,
             std::string& problem);
  void quarantine(const FileDescriptor& root, const std::string& name, const std::string& why);
  void warn_of(const std::string& problem);

  std::filesystem::path root_;
  Warn warn_;
  Words words_;
  bool switched_off_;  // by an empty root

  mutable std::mutex mutex_;  // guards the rest; not held during disk work
  std::string problem_;       // of the last publish; empty where it worked
  bool warned_ = false;
};

// $INGOT_CACHE_DIR, else $XDG_CACHE_HOME/ingot, else $HOME/.cache/ingot; empty where none is set. The last two count
// only where they are absolute: never a place that depends on the working directory, and never /tmp.
std::filesystem::path default_store_root();

}  // namespace ingot
