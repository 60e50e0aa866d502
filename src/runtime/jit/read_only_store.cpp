#include "ingot/runtime/jit/read_only_store.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "ingot/runtime/jit/kernel_file.h"
#include "ingot/runtime/util/directory_entries.h"
#include "ingot/runtime/util/trusted_file.h"

namespace ingot {
namespace {

constexpr std::int64_t kMaxFileBytes = std::int64_t{64} << 20;
constexpr std::int64_t kMaxRecordBytes = std::int64_t{1} << 20;

// Nothing if it must not be used, with the reason in `problem`, or if it is not there.
std::optional<std::string> content_of(const std::filesystem::path& file, std::string& problem) {
  const TrustedFile opened = open_trusted(file, problem);
  if (!opened.file) return std::nullopt;
  if (opened.bytes > kMaxFileBytes) {
    problem = fmt::format("has {} bytes; at most {} are read", opened.bytes, kMaxFileBytes);
    return std::nullopt;
  }
  return read_at(opened.file, 0, static_cast<std::size_t>(opened.bytes));
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
    problem = distrust_owner(state);
  }
  if (!problem.empty()) return nullptr;
  std::error_code error;
  return std::unique_ptr<ReadOnlyStore>(new ReadOnlyStore(std::filesystem::absolute(folder, error)));
}

std::optional<CompiledKernel> ReadOnlyStore::find(const KernelKey& key) const {
  std::string problem;
  const std::optional<std::string> content = content_of(folder_ / kernel_file_path(key), problem);
  return content ? decode_kernel_file(*content, key, problem) : std::nullopt;
}

std::vector<KernelEntry> ReadOnlyStore::list() const {
  std::vector<KernelEntry> all;
  const FileDescriptor root(::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!root) return all;
  for (const DirectoryEntry& folder : entries_of(root)) {
    if (folder.name.size() == 2) add_kernels(root, folder.name, all);
  }
  std::ranges::sort(all, {}, &KernelEntry::key);
  return all;
}

std::optional<KernelFile> ReadOnlyStore::read(const KernelKey& key, std::string& problem) const {
  const std::optional<std::string> content = content_of(folder_ / kernel_file_path(key), problem);
  return content ? read_kernel_file(*content, key, problem) : std::nullopt;
}

std::string ReadOnlyStore::tuning() const {
  std::string lines;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder_ / "tuning", error)) {
    std::string problem;
    const TrustedFile opened = open_trusted(entry.path(), problem);
    if (!opened.file || opened.bytes > kMaxRecordBytes || entry.path().extension() != ".json") continue;
    lines += read_at(opened.file, 0, static_cast<std::size_t>(opened.bytes));
    if (!lines.ends_with('\n')) lines += '\n';
  }
  return lines;
}

}  // namespace ingot
