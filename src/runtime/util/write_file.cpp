// A link is followed by the kernel alone, which refuses links of other users in shared folders; the path of what it
// opened is then asked for (/proc/self/fd), so that no second walk can lead elsewhere. Temporary files have names that
// nobody can guess and are made with O_EXCL, which follows no link.
#include "ingot/runtime/util/write_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/random.h>
#include <sys/stat.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <system_error>
#include <utility>

#include "ingot/runtime/util/error.h"
#include "ingot/runtime/util/file_descriptor.h"
#include "ingot/runtime/util/signals.h"

namespace ingot {
namespace {

namespace fs = std::filesystem;

constexpr unsigned kNewFile = 0666;  // less the process's umask
constexpr unsigned kPermissions = 0777;

bool same_file(const struct stat& a, const struct stat& b) { return a.st_dev == b.st_dev && a.st_ino == b.st_ino; }

// Our standard output or error, if the file is the one that it goes to; otherwise -1.
int own_output(const struct stat& file) {
  for (const int own : {STDOUT_FILENO, STDERR_FILENO}) {
    struct stat status {};
    if (::fstat(own, &status) == 0 && same_file(status, file)) return own;
  }
  return -1;
}

// Empty if the path is unknown, as for a file that has been removed meanwhile.
fs::path path_of(const FileDescriptor& open_file, const struct stat& status) {
  std::error_code error;
  fs::path path = fs::read_symlink(fmt::format("/proc/self/fd/{}", open_file.get()), error);
  struct stat found {};
  return !error && ::lstat(path.c_str(), &found) == 0 && same_file(found, status) ? path : fs::path();
}

// Empty without a source of random numbers.
std::string random_suffix() {
  std::array<unsigned char, 8> bytes{};
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) return {};
  return fmt::format(".{:02x}.partial", fmt::join(bytes, ""));
}

FileDescriptor open_file(int directory, const fs::path& path, int flags, unsigned mode = kNewFile) {
  return FileDescriptor(uninterrupted([&] { return ::openat(directory, path.c_str(), flags | O_CLOEXEC, mode); }));
}

// Keeps errno.
bool is_regular(int directory, const std::string& name) {
  const int error = errno;
  struct stat status {};
  const bool regular = ::fstatat(directory, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(status.st_mode);
  errno = error;
  return regular;
}

FileDescriptor open_folder(const fs::path& path) {
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  return open_file(AT_FDCWD, folder, O_PATH | O_DIRECTORY);
}

}  // namespace

FileWriter::FileWriter(fs::path file) : file_(std::move(file)) {
  if (find_target()) make_temporary();
}

FileWriter::~FileWriter() {
  if (temporary_.empty()) return;
  static_cast<void>(::unlinkat(directory_.get(), temporary_.c_str(), 0));
  if (made_target_) static_cast<void>(::unlinkat(directory_.get(), target_.c_str(), 0));
}

void FileWriter::write(std::string_view bytes) {
  const FileSizeSignal ignored;
  if (!write_all(descriptor_.get(), bytes)) fail(errno);
}

void FileWriter::sync() {
  // A pipe or a terminal keeps nothing that could be lost.
  if (::fsync(descriptor_.get()) != 0 && errno != EINVAL && errno != EROFS) fail(errno);
}

void FileWriter::publish() {
  if (!descriptor_.close()) fail(errno);
  if (temporary_.empty()) return;
  const int directory = directory_.get();
  const auto rename = [&](unsigned flags) {
    return ::renameat2(directory, temporary_.c_str(), directory, target_.c_str(), flags) == 0;
  };
  // If there was no file, one may have been created since, and only a regular one is replaced. Some file systems do not
  // know RENAME_NOREPLACE.
  bool done = rename(mode_ ? 0 : RENAME_NOREPLACE);
  if (!done && !mode_ && (errno == EINVAL || (errno == EEXIST && is_regular(directory, target_)))) done = rename(0);
  if (!done) fail(errno);
  temporary_.clear();
}

// Between two looks another writer may replace the file. What is there then is another file, and is looked at anew: to
// write into it would leave half of it to a reader.
bool FileWriter::find_target() {
  constexpr int kMostLooks = 1000;
  for (int i = 0; i < kMostLooks; ++i) {
    const Found found = look_for_target();
    if (found != Found::replaced_meanwhile) return found == Found::to_replace;
  }
  fail(EBUSY);
}

FileWriter::Found FileWriter::look_for_target() {
  const auto look = [this] { return open_file(AT_FDCWD, file_, O_PATH); };
  FileDescriptor there = look();
  const int problem = there ? 0 : errno;
  fs::path path = file_;
  if (problem != 0 && problem != ENOENT) fail(problem);
  struct stat itself {};
  const bool is_there = problem == ENOENT && ::lstat(file_.c_str(), &itself) == 0;
  if (problem == ENOENT && !is_there && errno != ENOENT) fail(errno);
  if (is_there && S_ISLNK(itself.st_mode)) {
    // A link that leads to no file yet: an empty one is made there, and then replaced.
    if (!open_file(AT_FDCWD, file_, O_WRONLY | O_CREAT | O_NOCTTY | O_NONBLOCK)) fail(errno);
    made_target_ = true;
    there = look();
    if (!there) fail(errno);
  }
  if (there) {
    struct stat status {};
    if (::fstat(there.get(), &status) != 0) fail(errno);
    if (S_ISDIR(status.st_mode)) fail(EISDIR);
    if (const int own = own_output(status); own >= 0) {
      // Flush what was printed before, so that it precedes what is written now.
      static_cast<void>(std::fflush(nullptr));
      descriptor_ = FileDescriptor(::fcntl(own, F_DUPFD_CLOEXEC, 0));
      if (!descriptor_) fail(errno);
      return Found::to_write_into;
    }
    if (S_ISREG(status.st_mode)) path = path_of(there, status);
    if (!S_ISREG(status.st_mode) || path.empty()) return open_in_place(status);
    mode_ = status.st_mode & kPermissions;
  }
  directory_ = open_folder(path);
  if (!directory_) fail(errno);
  target_ = path.filename().string();
  if (target_.empty()) fail(EISDIR);
  return Found::to_replace;
}

FileWriter::Found FileWriter::open_in_place(const struct stat& seen) {
  // O_NONBLOCK: opening a FIFO that nobody reads would wait. Writing may wait, as for every program.
  descriptor_ = open_file(AT_FDCWD, file_, O_WRONLY | O_NOCTTY | O_NONBLOCK);
  if (!descriptor_ && errno == ENOENT) return Found::replaced_meanwhile;
  if (!descriptor_ && errno == ENXIO) fail("nothing reads from it; start its reader first");
  if (!descriptor_) fail(errno);
  struct stat opened {};
  if (::fstat(descriptor_.get(), &opened) != 0) fail(errno);
  if (!same_file(opened, seen)) return Found::replaced_meanwhile;
  if (S_ISREG(opened.st_mode) && ::ftruncate(descriptor_.get(), 0) != 0) fail(errno);
  const int flags = ::fcntl(descriptor_.get(), F_GETFL);
  if (flags < 0 || ::fcntl(descriptor_.get(), F_SETFL, flags & ~O_NONBLOCK) != 0) fail(errno);
  return Found::to_write_into;
}

void FileWriter::make_temporary() {
  const std::string suffix = random_suffix();
  if (suffix.empty()) fail(errno);
  constexpr std::size_t kLongest = 200;  // file systems allow 255 bytes
  const std::string name = target_.substr(0, kLongest) + suffix;
  descriptor_ =
      open_file(directory_.get(), name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, mode_.value_or(kNewFile) & kNewFile);
  if (!descriptor_) fail(errno);
  temporary_ = name;
  // The umask has taken bits that the old file had.
  if (mode_) static_cast<void>(::fchmod(descriptor_.get(), *mode_));
}

void FileWriter::fail(const std::string& why) const {
  throw Error(ErrorCode::io_failed, file_.string(), "cannot be written: " + why);
}

void FileWriter::fail(int error) const { fail(std::system_category().message(error)); }

void write_file(const fs::path& file, std::initializer_list<std::string_view> parts) {
  FileWriter writer(file);
  for (const std::string_view part : parts) writer.write(part);
  writer.publish();
}

}  // namespace ingot
