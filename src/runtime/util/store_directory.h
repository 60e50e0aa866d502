// A directory of one user's small, self-describing files. The stores of kernels and of tuning records are built on it.
//
//   <root>/<folder>/<name>     published by rename from <root>/tmp/
//   <root>/quarantine/         files that failed their check, at most 16
//
// A failing disk never becomes the caller's error: a file that is damaged or has the wrong owner is moved aside and
// counts as missing; so does one that cannot be read, which stays, as it may be good; if the directory cannot be
// written, nothing is kept, and one warning says so. Directories are 0700, files 0600; a root that another user owns or
// can write is refused. Nothing about the directory is remembered between calls, and nothing is flushed (fsync): a file
// torn by a power failure fails its check.
#pragma once

#include <atomic>
#include <cstdint>
#include <ctime>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ingot/api.h"
#include "ingot/runtime/util/file_descriptor.h"
#include "ingot/runtime/util/fork_mutex.h"

namespace ingot {

struct StoredFile {
  std::string name;  // relative to the root: "<folder>/<name>"
  std::int64_t bytes = 0;
  std::pair<std::time_t, long> modified{};
  bool is_regular = true;
};

// The result of removing files. Those that another process removed or used meanwhile are not counted.
struct RemovedFiles {
  std::int64_t files = 0;
  std::int64_t bytes = 0;
  std::vector<std::string> left{};    // what is not ours: "/store/ab/x.kernel is owned by user 1234; expected ..."
  std::vector<std::string> failed{};  // "/store/ab/x.kernel cannot be removed: Permission denied"
  bool stopped = false;               // before the end
};

class INGOT_API StoreDirectory {
 public:
  using Warn = std::function<void(const std::string&)>;
  // Is the content of a file as it was written? If not, `problem` says what is wrong, in words that follow the file's
  // name: "is truncated".
  using Accept = std::function<bool(std::string_view content, std::string& problem)>;

  // How its warnings end.
  struct Words {
    std::string lost;      // of a file moved aside: "and its kernel is compiled again"
    std::string unusable;  // of a directory that keeps nothing
  };

  // No root: default_store_root(). An empty root keeps nothing, silently. A file of more than `max_file_bytes` is not
  // written, and counts as damaged. `warn` is called at most once per object, from any thread, and must not throw.
  StoreDirectory(std::optional<std::filesystem::path> root, std::int64_t max_file_bytes, Warn warn, Words words);

  // True if the file exists and is accepted; it then counts as just used.
  bool read(const std::string& folder, const std::string& name, const Accept& accept);
  // Atomic: readers see the whole file or none. On failure returns false, warns once and sets problem().
  bool publish(const std::string& folder, const std::string& name, std::string_view content);

  // The result of checking a file without using it. If neither `there` nor `problem` is set, there is no such file.
  struct Check {
    bool there = false;
    std::string problem{};  // "is truncated"; empty if the file is as it was written
    bool moved = false;     // to the quarantine
  };
  enum class Damaged : std::uint8_t { stays, is_moved };
  // As read(), but the file does not count as used, and one that is damaged is moved aside only if that is asked for.
  Check check(const std::string& folder, const std::string& name, const Accept& accept, Damaged damaged);
  // Moves a file to the quarantine. False if it is not there or cannot be moved.
  bool set_aside(const std::string& folder, const std::string& name, const std::string& why);

  // The files whose names end with `suffix`, in folders whose names `wanted` accepts.
  std::vector<StoredFile> files(std::string_view suffix, const std::function<bool(const std::string&)>& wanted) const;
  // Whatever is in folders whose names `wanted` accepts: links, FIFOs and folders too.
  std::vector<StoredFile> entries(const std::function<bool(const std::string&)>& wanted) const;
  // Files that are being written, or were when their process died.
  std::vector<StoredFile> temporaries() const;
  // Is a temporary file an hour away from now, so that its process must have died? (A time far in the future is from
  // before the clock was set back.)
  static bool is_abandoned(const StoredFile& temporary);
  std::vector<StoredFile> quarantined() const;
  // When a file was published. Nothing where the file system does not keep that.
  std::optional<std::time_t> made(const std::string& file) const;
  // False if it cannot be removed; true if it is gone, whoever removed it.
  bool remove(const std::string& file) const;
  // Removes files as they were listed: one that has been used or replaced since then stays, and so does what is no
  // regular file or belongs to another user. `stop` is asked before each.
  RemovedFiles remove_all(const std::vector<StoredFile>& files, const std::function<bool()>& stop = {}) const;
  // Removes temporary files of processes that were killed while writing (is_abandoned).
  void remove_abandoned() const;

  // Absolute, or empty.
  const std::filesystem::path& root() const { return root_; }
  // Creates the root if it is missing, and checks it. Empty if it must not be used.
  FileDescriptor open() const;
  // Why the directory must not be used, or empty; makes nothing. A directory that is not there yet has no problem.
  std::string distrusted() const;
  // Why nothing is kept, or empty if the store works. Creates the directory if it is missing, to find out.
  std::string disabled_reason() const;
  // The same, and why a file of a small kernel's size cannot be written: writes one and removes it.
  std::string write_problem() const;
  // How many files this object has moved aside.
  std::int64_t moved_aside() const { return moved_aside_; }
  // Warns with the caller's text, unless this object has warned already.
  void warn_once(const std::string& text);

 private:
  enum class Open : std::uint8_t { if_there, make };
  enum class Use : std::uint8_t { counts, is_not_noted };
  struct Loaded {
    bool accepted = false;
    std::string problem{};
    bool damaged = false;  // the problem is the file's own, rather than that of reading it
    std::string name{};    // of the file, or of its folder if that has the problem
  };
  enum class RemovalEnd : std::uint8_t { removed, gone, used_since, not_ours, failed };
  struct Removal {
    RemovalEnd end = RemovalEnd::removed;
    std::string problem{};
  };

  FileDescriptor open_root(Open how, std::string& problem) const;
  FileDescriptor subfolder(const FileDescriptor& root, const std::string& name);
  Loaded load(const FileDescriptor& root, const std::string& folder, const std::string& name, const Accept& accept,
              Use use) const;
  Removal remove_unused_since(const StoredFile& file) const;
  bool write(const FileDescriptor& root, const std::string& folder, const std::string& name, std::string_view content);
  bool quarantine(const FileDescriptor& root, const std::string& name, const std::string& why);
  void warn_of(const std::string& problem);

  std::filesystem::path root_;
  std::int64_t max_file_bytes_;
  Warn warn_;
  Words words_;
  bool switched_off_;  // by an empty root
  std::atomic<std::int64_t> moved_aside_{0};

  mutable ForkMutex mutex_;  // guards the rest; not held during disk work
  std::string problem_;      // of the last publish; empty where it worked
  bool warned_ = false;
};

// $INGOT_CACHE_DIR, else $XDG_CACHE_HOME/ingot, else $HOME/.cache/ingot; empty where none is set. The last two count
// only if they are absolute: the store never depends on the working directory, and is never in /tmp.
INGOT_API std::filesystem::path default_store_root();
// Why default_store_root() is empty, in words.
INGOT_API std::string no_store_root();

}  // namespace ingot
