#include "ingot/runtime/jit/read_only_store.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <system_error>
#include <utility>

#include "ingot/runtime/jit/kernel_file.h"
#include "ingot/runtime/util/file_descriptor.h"
#include "ingot/runtime/util/trusted_file.h"

namespace ingot {
namespace {

// Nothing if it must not be used, with the reason in `problem`, or if it is not there.
std::optional<std::string> content_of(const std::filesystem::path& file, std::int64_t max_bytes, std::string& problem) {
  const TrustedFile opened = open_trusted(file, problem);
  if (!opened.file) return std::nullopt;
  if (opened.bytes > max_bytes) {
    problem = fmt::format("has {} bytes; at most {} are read", opened.bytes, max_bytes);
    return std::nullopt;
  }
  return read_at(opened.file, 0, static_cast<std::size_t>(opened.bytes));
}

// Follows links: a store may be put together of them. Each file is checked itself.
FileDescriptor open_folder(const std::filesystem::path& folder) {
  return FileDescriptor(uninterrupted([&] { return ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); }));
}

bool is_folder(const std::filesystem::directory_entry& entry) {
  std::error_code error;
  return entry.path().filename().native().size() == 2 && entry.is_directory(error);
}

bool is_kernel(const std::filesystem::directory_entry& entry) { return entry.path().extension() == ".kernel"; }

// The first entry that fits; nothing if there is none, or if the folder cannot be listed.
template <class Fits>
std::filesystem::path first_in(const std::filesystem::path& folder, const Fits& fits) {
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    if (fits(*entry)) return entry->path();
  }
  return {};
}

bool may(const std::filesystem::path& path, int access) {
  return path.empty() || ::faccessat(AT_FDCWD, path.c_str(), access, AT_EACCESS) == 0;
}

// A store that its owner alone may read has nothing for others, and looks empty to them. One of its folders and one of
// its files stand for all.
std::string unreadable(const std::filesystem::path& folder) {
  const auto problem = [](const std::string& what) {
    return what + std::system_category().message(errno) +
           "; a store is private unless its owner runs `chmod -R a+rX` on it, or on a copy of it";
  };
  constexpr int kList = R_OK | X_OK;
  if (!may(folder, kList)) return problem("cannot be opened: ");
  const std::filesystem::path kernels = first_in(folder, is_folder);
  if (!may(kernels, kList)) return problem("has folders that cannot be opened: ");
  if (!kernels.empty() && !may(first_in(kernels, is_kernel), R_OK)) return problem("has files that cannot be read: ");
  return {};
}

// The kernels in one of the store's folders.
void add_kernels(const FileDescriptor& root, const std::string& folder, std::vector<KernelEntry>& all) {
  const FileDescriptor directory = open_directory(root.get(), folder.c_str());
  if (!directory) return;
  for (const DirectoryEntry& file : entries_of(directory)) {
    const std::optional<KernelKey> key = kernel_of_path(folder + "/" + file.name);
    if (!key) continue;
    all.push_back({.key = *key,
                   .bytes = file.state.st_size,
                   .used = std::pair(file.state.st_mtim.tv_sec, file.state.st_mtim.tv_nsec),
                   .made = birth_of(directory, file.name)});
  }
}

}  // namespace

std::unique_ptr<ReadOnlyStore> ReadOnlyStore::open(const std::filesystem::path& folder, std::string& problem) {
  struct stat state {};
  if (::stat(folder.c_str(), &state) != 0) {
    problem = "cannot be opened: " + std::system_category().message(errno);
  } else if (!S_ISDIR(state.st_mode)) {
    problem = "is not a directory";
  } else {
    problem = distrust(state, TrustedOwner::root_too);
    if (problem.empty()) problem = unreadable(folder);
  }
  if (!problem.empty()) return nullptr;
  std::error_code error;
  return std::unique_ptr<ReadOnlyStore>(new ReadOnlyStore(std::filesystem::absolute(folder, error)));
}

std::optional<CompiledKernel> ReadOnlyStore::find(const KernelKey& key, const KernelWanted* wanted) const {
  std::string problem;
  const std::optional<std::string> content = content_of(folder_ / kernel_file_path(key), kMaxKernelFileBytes, problem);
  return content ? decode_kernel_file(*content, key, problem, wanted) : std::nullopt;
}

std::vector<KernelEntry> ReadOnlyStore::list() const {
  std::vector<KernelEntry> all;
  const FileDescriptor root = open_folder(folder_);
  if (!root) return all;
  for (const DirectoryEntry& folder : entries_of(root)) {
    if (folder.name.size() == 2) add_kernels(root, folder.name, all);
  }
  std::ranges::sort(all, {}, &KernelEntry::key);
  return all;
}

std::optional<KernelFile> ReadOnlyStore::read(const KernelKey& key, std::string& problem) const {
  const std::optional<std::string> content = content_of(folder_ / kernel_file_path(key), kMaxKernelFileBytes, problem);
  return content ? read_kernel_file(*content, key, problem) : std::nullopt;
}

void ReadOnlyStore::read_tuning(const TakeTuningLine& take) const {
  for (const std::string& name : tuning_files()) {
    const std::filesystem::path file = folder_ / kTuningFolder / name;
    TuningLine line{.text = {}, .place = file.string(), .problem = {}};
    const std::optional<std::string> content = content_of(file, kMaxTuningRecordBytes, line.problem);
    if (content) line.text = line_of_tuning_file(*content, line.problem);
    const bool is_gone = !content && line.problem.empty();
    if (!is_gone && !take(line)) return;
  }
}

std::int64_t ReadOnlyStore::count_tuning() const { return std::ssize(tuning_files()); }

std::vector<std::string> ReadOnlyStore::tuning_files() const {
  std::vector<std::string> names;
  const FileDescriptor directory = open_folder(folder_ / kTuningFolder);
  if (!directory) return names;
  for (DirectoryEntry& entry : entries_of(directory)) {
    if (is_tuning_file(entry.name)) names.push_back(std::move(entry.name));
  }
  return names;
}

}  // namespace ingot
