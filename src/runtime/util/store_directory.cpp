// Files are opened relative to a directory that has been checked while open, so that nothing can be swapped between the
// check and the use. The opened file is then checked itself: a FIFO, a link or another user's file at an entry's path
// is never read or waited for.
#include "ingot/runtime/util/store_directory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>

#include "ingot/runtime/util/environment.h"
#include "ingot/runtime/util/file_descriptor.h"
#include "ingot/runtime/util/signals.h"
#include "ingot/runtime/util/trusted_file.h"

namespace ingot {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxQuarantined = 16;
constexpr std::time_t kHour = 3600;
constexpr int kMostAttempts = 64;  // to make the root
constexpr const char* kTmp = "tmp";
constexpr const char* kQuarantine = "quarantine";

std::string message(int error) { return std::system_category().message(error); }

std::string random_name() {
  std::array<unsigned char, 8> bytes{};
  if (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    const auto now = std::chrono::steady_clock::now().time_since_epoch().count();
    std::memcpy(bytes.data(), &now, std::min(sizeof(now), bytes.size()));
  }
  std::string text = std::to_string(getpid()).append("-");
  for (const unsigned char byte : bytes) text += fmt::format("{:02x}", byte);
  return text;
}

// True in the past, and in the future too, because the clock may have been set back since.
bool is_an_hour_away(std::time_t time) { return std::abs(std::time(nullptr) - time) > kHour; }

// Did random_name() make it?
bool is_random_name(std::string_view name) {
  const std::size_t dash = name.find('-');
  if (dash == 0 || dash == std::string_view::npos || name.size() - dash - 1 != 16) return false;
  return name.substr(0, dash).find_first_not_of("0123456789") == std::string_view::npos &&
         name.substr(dash + 1).find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

bool make_directories(const fs::path& path) {
  if (mkdir(path.c_str(), 0700) == 0 || errno == EEXIST) return true;
  if (errno != ENOENT || !path.has_relative_path()) return false;
  return make_directories(path.parent_path()) && (mkdir(path.c_str(), 0700) == 0 || errno == EEXIST);
}

FileDescriptor open_at(int directory, const char* name, int flags) {
  constexpr mode_t kOwn = 0600;
  return FileDescriptor(uninterrupted([&] { return openat(directory, name, flags | O_NOFOLLOW | O_CLOEXEC, kOwn); }));
}

// Opens a subdirectory of the root; errno says why if it fails.
FileDescriptor make_directory(const FileDescriptor& root, const char* name) {
  if (mkdirat(root.get(), name, 0700) != 0 && errno != EEXIST) return {};
  return open_directory(root.get(), name);
}

// Reads up to `bytes` bytes: fewer if the file has shrunk, which the checksum then detects.
bool read_all(int file, std::size_t bytes, std::string& content) {
  content.resize(bytes);
  std::size_t done = 0;
  while (done < bytes) {
    const ssize_t got = uninterrupted([&] { return ::read(file, content.data() + done, bytes - done); });
    if (got < 0) return false;
    if (got == 0) break;
    done += static_cast<std::size_t>(got);
  }
  content.resize(done);
  return true;
}

// Why a file must not be read, or empty.
std::string refusal(const struct stat& file, std::int64_t max_bytes) {
  if (!S_ISREG(file.st_mode)) return "is not a regular file";
  if (std::string problem = distrust(file, TrustedOwner::current_user); !problem.empty()) return problem;
  if (file.st_size > max_bytes) {
    return fmt::format("has {} bytes; at most {} are read", file.st_size, max_bytes);
  }
  return {};
}

// Is something in the place of a file or folder that is none: a link, a socket, a file where a folder belongs? Other
// errors are the disk's, the network's or the process's own and say nothing about what is stored: it may be good.
bool is_in_the_way(int error) { return error == ELOOP || error == ENOTDIR || error == ENXIO || error == ENODEV; }

// On a network file system ESTALE means that another machine has removed the file.
bool is_missing(int error) { return error == ENOENT || error == ESTALE; }

// Marks the file as used, at most once an hour, so that most hits write nothing. A time in the future counts as
// outdated.
void touch(int file, const struct stat& state) {
  const std::time_t now = std::time(nullptr);
  if (now - state.st_mtime < kHour && state.st_mtime <= now) return;
  constexpr std::array<timespec, 2> kNow{timespec{0, UTIME_OMIT}, timespec{0, UTIME_NOW}};
  futimens(file, kNow.data());
}

// Errno says why if not. A full disk may still take an empty file, so this one has the size of a small kernel.
bool takes_a_file(const FileDescriptor& tmp) {
  if (!tmp) return false;
  const std::string name = random_name();
  FileDescriptor written = open_at(tmp.get(), name.c_str(), O_WRONLY | O_CREAT | O_EXCL);
  if (!written) return false;
  const FileSizeSignal ignored;
  constexpr std::size_t kBytes = 64 << 10;
  const bool whole = write_all(written.get(), std::string(kBytes, ' ')) && written.close();
  const int error = errno;
  unlinkat(tmp.get(), name.c_str(), 0);
  errno = error;
  return whole;
}

std::pair<std::time_t, long> order(const timespec& time) { return {time.tv_sec, time.tv_nsec}; }

}  // namespace

StoreDirectory::StoreDirectory(std::optional<fs::path> root, std::int64_t max_file_bytes, Warn warn, Words words)
    : max_file_bytes_(max_file_bytes),
      warn_(std::move(warn)),
      words_(std::move(words)),
      switched_off_(root && root->empty()) {
  root_ = root ? *std::move(root) : default_store_root();
  std::error_code error;
  if (!root_.empty()) root_ = fs::absolute(root_, error);
}

bool StoreDirectory::read(const std::string& folder, const std::string& name, const Accept& accept) {
  std::string problem;
  const FileDescriptor root = open_root(Open::if_there, problem);
  if (!root) {
    if (!problem.empty()) warn_of(problem);
    return false;
  }
  const Loaded loaded = load(root, folder, name, accept, Use::counts);
  if (loaded.damaged) {
    quarantine(root, loaded.name, loaded.problem);
  } else if (!loaded.problem.empty()) {
    // The file may be good, so it stays.
    warn_once(fmt::format("store file {} {}; it was left there, {}", (root_ / loaded.name).string(), loaded.problem,
                          words_.lost));
  }
  return loaded.accepted;
}

StoreDirectory::Check StoreDirectory::check(const std::string& folder, const std::string& name, const Accept& accept,
                                            Damaged damaged) {
  Check check;
  const FileDescriptor root = open_root(Open::if_there, check.problem);
  if (!root) return check;
  Loaded loaded = load(root, folder, name, accept, Use::is_not_noted);
  check.there = loaded.accepted || !loaded.problem.empty();
  check.problem = std::move(loaded.problem);
  if (loaded.damaged && damaged == Damaged::is_moved) {
    check.moved = quarantine(root, loaded.name, check.problem);
  }
  return check;
}

bool StoreDirectory::set_aside(const std::string& folder, const std::string& name, const std::string& why) {
  std::string problem;
  const FileDescriptor root = open_root(Open::if_there, problem);
  return root && quarantine(root, folder + "/" + name, why);
}

StoreDirectory::Loaded StoreDirectory::load(const FileDescriptor& root, const std::string& folder,
                                            const std::string& name, const Accept& accept, Use use) const {
  Loaded loaded;
  const auto cannot_open = [&loaded](const std::string& path, int error) {
    if (is_missing(error)) return loaded;
    loaded.damaged = is_in_the_way(error);
    loaded.problem = (loaded.damaged ? "cannot be opened: " : "cannot be read: ") + message(error);
    loaded.name = path;
    return loaded;
  };
  const auto cannot_read = [&loaded](int error) {
    if (!is_missing(error)) loaded.problem = "cannot be read: " + message(error);
    return loaded;
  };
  const FileDescriptor directory = open_directory(root.get(), folder.c_str());
  if (!directory) return cannot_open(folder, errno);
  loaded.name = folder + "/" + name;
  const FileDescriptor file = open_at(directory.get(), name.c_str(), O_RDONLY | O_NONBLOCK);
  if (!file) return cannot_open(loaded.name, errno);
  struct stat state {};
  std::string content;
  if (fstat(file.get(), &state) != 0) return cannot_read(errno);
  loaded.problem = refusal(state, max_file_bytes_);
  if (loaded.problem.empty() && !read_all(file.get(), static_cast<std::size_t>(state.st_size), content)) {
    return cannot_read(errno);
  }
  loaded.accepted = loaded.problem.empty() && accept(content, loaded.problem);
  loaded.damaged = !loaded.accepted;
  if (loaded.accepted && use == Use::counts) touch(file.get(), state);
  return loaded;
}

bool StoreDirectory::publish(const std::string& folder, const std::string& name, std::string_view content) {
  // If folders vanish, someone is clearing the store: they are made again, for at most kPatience.
  constexpr auto kPatience = std::chrono::seconds(1);
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  std::string problem;
  bool published = false;
  while (true) {
    problem.clear();
    const FileDescriptor root = open_root(Open::make, problem);
    if (!root) {
      warn_of(problem);
      return false;
    }
    published = write(root, folder, name, content);
    if (published) break;
    const int error = errno;
    problem = fmt::format("store directory {} cannot be written: {}", root_.string(), message(error));
    if (!is_missing(error) || std::chrono::steady_clock::now() > deadline) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  {
    const std::lock_guard lock(mutex_);
    problem_ = problem;
  }
  if (!published) warn_of(problem);
  return published;
}

std::vector<StoredFile> StoreDirectory::files(std::string_view suffix,
                                              const std::function<bool(const std::string&)>& wanted) const {
  std::vector<StoredFile> found = entries(wanted);
  std::erase_if(found, [&](const StoredFile& file) { return !file.is_regular || !file.name.ends_with(suffix); });
  return found;
}

std::vector<StoredFile> StoreDirectory::entries(const std::function<bool(const std::string&)>& wanted) const {
  std::string problem;
  std::vector<StoredFile> found;
  const FileDescriptor root = open_root(Open::if_there, problem);
  if (!root) return found;
  for (const DirectoryEntry& folder : entries_of(root)) {
    if (!S_ISDIR(folder.state.st_mode) || !wanted(folder.name)) continue;
    const FileDescriptor directory = open_directory(root.get(), folder.name.c_str());
    if (!directory) continue;
    for (const DirectoryEntry& file : entries_of(directory)) {
      found.push_back({.name = folder.name + "/" + file.name,
                       .bytes = file.state.st_size,
                       .modified = order(file.state.st_mtim),
                       .is_regular = S_ISREG(file.state.st_mode)});
    }
  }
  return found;
}

std::optional<std::time_t> StoreDirectory::made(const std::string& file) const {
  std::string problem;
  const FileDescriptor root = open_root(Open::if_there, problem);
  return root ? birth_of(root, file) : std::nullopt;
}

bool StoreDirectory::remove(const std::string& file) const {
  std::string problem;
  const FileDescriptor root = open_root(Open::if_there, problem);
  if (!root) return problem.empty();
  return unlinkat(root.get(), file.c_str(), 0) == 0 || is_missing(errno);
}

StoreDirectory::Removal StoreDirectory::remove_unused_since(const StoredFile& file) const {
  const auto left = [](RemovalEnd end, std::string why) { return Removal{.end = end, .problem = std::move(why)}; };
  std::string problem;
  const FileDescriptor root = open_root(Open::if_there, problem);
  if (!root) return problem.empty() ? left(RemovalEnd::gone, {}) : left(RemovalEnd::failed, problem);
  const std::size_t slash = file.name.find('/');
  const std::string name = file.name.substr(slash + 1);
  const FileDescriptor folder = open_directory(root.get(), file.name.substr(0, slash).c_str());
  struct stat state {};
  if (!folder || fstatat(folder.get(), name.c_str(), &state, AT_SYMLINK_NOFOLLOW) != 0) {
    return errno == ENOENT ? left(RemovalEnd::gone, {}) : left(RemovalEnd::failed, message(errno));
  }
  if (!S_ISREG(state.st_mode)) return left(RemovalEnd::not_ours, "is not a regular file");
  if (std::string why = foreign_owner(state, TrustedOwner::current_user); !why.empty()) {
    return left(RemovalEnd::not_ours, std::move(why));
  }
  if (order(state.st_mtim) != file.modified) return left(RemovalEnd::used_since, {});
  if (unlinkat(folder.get(), name.c_str(), 0) == 0) return {};
  return errno == ENOENT ? left(RemovalEnd::gone, {})
                         : left(RemovalEnd::failed, "cannot be removed: " + message(errno));
}

std::vector<StoredFile> StoreDirectory::temporaries() const {
  std::vector<StoredFile> found = entries([](const std::string& folder) { return folder == kTmp; });
  std::erase_if(found, [](const StoredFile& file) {
    return !file.is_regular || !is_random_name(std::string_view(file.name).substr(file.name.find('/') + 1));
  });
  return found;
}

bool StoreDirectory::is_abandoned(const StoredFile& temporary) { return is_an_hour_away(temporary.modified.first); }

std::vector<StoredFile> StoreDirectory::quarantined() const {
  std::vector<StoredFile> found = entries([](const std::string& folder) { return folder == kQuarantine; });
  std::erase_if(found, [](const StoredFile& file) {
    return !is_random_name(std::string_view(file.name).substr(file.name.rfind('.') + 1));
  });
  return found;
}

RemovedFiles StoreDirectory::remove_all(const std::vector<StoredFile>& files, const std::function<bool()>& stop) const {
  RemovedFiles removed;
  for (const StoredFile& file : files) {
    removed.stopped = stop && stop();
    if (removed.stopped) break;
    const Removal removal = remove_unused_since(file);
    const auto told = [&] { return fmt::format("{} {}", (root_ / file.name).string(), removal.problem); };
    if (removal.end == RemovalEnd::removed) {
      ++removed.files;
      removed.bytes += file.bytes;
    } else if (removal.end == RemovalEnd::not_ours) {
      removed.left.push_back(told());
    } else if (removal.end == RemovalEnd::failed) {
      removed.failed.push_back(told());
    }
  }
  return removed;
}

void StoreDirectory::remove_abandoned() const {
  std::string problem;
  const FileDescriptor root = open_root(Open::if_there, problem);
  const FileDescriptor tmp = root ? open_directory(root.get(), kTmp) : FileDescriptor();
  if (!tmp) return;
  for (const DirectoryEntry& file : entries_of(tmp)) {
    if (is_an_hour_away(file.state.st_mtime)) unlinkat(tmp.get(), file.name.c_str(), 0);
  }
}

FileDescriptor StoreDirectory::open() const {
  std::string problem;
  return open_root(Open::make, problem);
}

std::string StoreDirectory::disabled_reason() const {
  std::string problem;
  const FileDescriptor root = open_root(Open::make, problem);
  if (!root) return problem;
  const FileDescriptor tmp = make_directory(root, kTmp);
  if (!tmp || faccessat(tmp.get(), ".", W_OK, AT_EACCESS) != 0) {
    return fmt::format("store directory {} cannot be written: {}", root_.string(), message(errno));
  }
  const std::lock_guard lock(mutex_);
  return problem_;
}

std::string StoreDirectory::write_problem() const {
  std::string problem = disabled_reason();
  if (!problem.empty()) return problem;
  const FileDescriptor root = open_root(Open::make, problem);
  if (!root || takes_a_file(make_directory(root, kTmp))) return problem;
  return fmt::format("store directory {} cannot be written: {}", root_.string(), message(errno));
}

std::string StoreDirectory::distrusted() const {
  std::string problem;
  static_cast<void>(open_root(Open::if_there, problem));
  return problem;
}

// Neither a problem nor a root means that the directory does not exist yet.
FileDescriptor StoreDirectory::open_root(Open how, std::string& problem) const {
  if (root_.empty()) {
    problem = switched_off_ ? "the store is switched off: its directory is the empty path" : no_store_root();
    return {};
  }
  const auto open = [this] {
    return FileDescriptor(uninterrupted([this] { return ::open(root_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); }));
  };
  const auto refuse = [this, &problem](const std::string& why) {
    problem = fmt::format("store directory {} {}", root_.string(), why);
    return FileDescriptor();
  };
  FileDescriptor root = open();
  if (!root && errno == ENOENT && how == Open::if_there) return {};
  // Whoever clears the store may remove the folder between the two calls.
  for (int attempt = 0; !root && errno == ENOENT && attempt < kMostAttempts; ++attempt) {
    if (!make_directories(root_)) return refuse("cannot be made: " + message(errno));
    root = open();
  }
  if (!root) return refuse(errno == ENOTDIR ? "is not a directory" : "cannot be opened: " + message(errno));
  struct stat state {};
  if (fstat(root.get(), &state) != 0) return refuse("cannot be read: " + message(errno));
  if (const std::string why = foreign_owner(state, TrustedOwner::current_user); !why.empty()) return refuse(why);
  if (const std::string why = other_writers(state); !why.empty()) return refuse(why + "; expected 0700");
  return root;
}

// Creates or opens a subdirectory. Anything else of that name is moved aside. Errno says why if it fails.
FileDescriptor StoreDirectory::subfolder(const FileDescriptor& root, const std::string& name) {
  FileDescriptor made = make_directory(root, name.c_str());
  if (made || errno != ENOTDIR) return made;
  quarantine(root, name, "is not a directory");
  return make_directory(root, name.c_str());
}

// If two processes publish the same name, the second rename replaces the first's file, which is just as good.
// Errno says why if it fails.
bool StoreDirectory::write(const FileDescriptor& root, const std::string& folder, const std::string& name,
                           std::string_view content) {
  if (static_cast<std::int64_t>(content.size()) > max_file_bytes_) {
    errno = EFBIG;
    return false;
  }
  const FileDescriptor tmp = subfolder(root, kTmp);
  if (!tmp) return false;
  const FileDescriptor target = subfolder(root, folder);
  if (!target) return false;

  const std::string tmp_name = random_name();
  FileDescriptor written = open_at(tmp.get(), tmp_name.c_str(), O_WRONLY | O_CREAT | O_EXCL);
  if (!written) return false;
  const FileSizeSignal ignored;
  const auto rename = [&] { return renameat(tmp.get(), tmp_name.c_str(), target.get(), name.c_str()) == 0; };
  bool published = write_all(written.get(), content) && written.close() && rename();
  if (!published && (errno == EISDIR || errno == EEXIST || errno == ENOTEMPTY)) {
    // Either a directory is in the way, or this file system's rename() replaces nothing.
    if (unlinkat(target.get(), name.c_str(), 0) != 0) quarantine(root, folder + "/" + name, "is a directory");
    published = rename();
  }
  if (published) return true;
  const int error = errno;
  unlinkat(tmp.get(), tmp_name.c_str(), 0);
  errno = error;
  return false;
}

// Moves a file, or whatever else has its name, to the quarantine folder, which keeps the last few for inspection.
bool StoreDirectory::quarantine(const FileDescriptor& root, const std::string& name, const std::string& why) {
  const FileDescriptor folder = make_directory(root, kQuarantine);
  const std::string kept_name = fs::path(name).filename().string() + "." + random_name();
  const bool moved = folder && renameat(root.get(), name.c_str(), folder.get(), kept_name.c_str()) == 0;
  if (!moved && errno == ENOENT) return false;  // another process was faster
  ++moved_aside_;
  if (moved) {
    std::vector<DirectoryEntry> kept = entries_of(folder);
    std::ranges::sort(kept, std::greater{}, [](const DirectoryEntry& file) { return order(file.state.st_ctim); });
    for (std::size_t i = kMaxQuarantined; i < kept.size(); ++i) {
      std::error_code error;
      fs::remove_all(root_ / kQuarantine / kept[i].name, error);
    }
  }
  warn_once(fmt::format("store file {} {}; it was {}, {}", (root_ / name).string(), why,
                        moved ? "moved to " + (root_ / kQuarantine).string() : "left there, as it cannot be moved",
                        words_.lost));
  return moved;
}

void StoreDirectory::warn_of(const std::string& problem) {
  if (switched_off_) return;
  // Only as a tier is another owner's folder used, and only root's.
  const bool is_roots = problem.find(" is owned by user 0;") != std::string::npos;
  warn_once(problem + ". " + words_.unusable +
            (is_roots ? "; to use what root has there, name it in INGOT_CACHE_TIERS" : ""));
}

void StoreDirectory::warn_once(const std::string& text) {
  {
    const std::lock_guard lock(mutex_);
    if (warned_) return;
    warned_ = true;
  }
  if (warn_) warn_(text);
}

// A setuid program finds none of these set (environment.h), and so keeps nothing.
fs::path default_store_root() {
  const auto variable = [](const char* name) { return fs::path(environment(name).value_or("")); };
  if (const auto chosen = environment_path("INGOT_CACHE_DIR")) return *chosen;
  if (const fs::path cache = variable("XDG_CACHE_HOME"); cache.is_absolute()) return cache / "ingot";
  if (const fs::path home = variable("HOME"); home.is_absolute()) return home / ".cache" / "ingot";
  return {};
}

std::string no_store_root() {
  std::string relative;
  for (const char* name : {"XDG_CACHE_HOME", "HOME"}) {
    if (const auto value = environment(name)) {
      relative += fmt::format("{}{} is \"{}\"", relative.empty() ? " " : " and ", name, *value);
    }
  }
  const std::string none = "there is no store directory: INGOT_CACHE_DIR";
  if (relative.empty()) return none + ", XDG_CACHE_HOME and HOME are all unset";
  return none + " is unset, and of the others only absolute paths count, but" + relative;
}

}  // namespace ingot
