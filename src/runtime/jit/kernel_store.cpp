// StoreDirectory handles the files; this decides their names, and which of them to remove when the store outgrows its
// limit.
#include "ingot/runtime/jit/kernel_store.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

#include "ingot/runtime/jit/kernel_file.h"

namespace ingot {
namespace {

namespace fs = std::filesystem;

constexpr int kPutsPerScan = 256;
constexpr std::string_view kSuffix = ".kernel";
constexpr const char* kLock = "lock";

std::string shard(const KernelKey& key) { return print(key).substr(0, 2); }
std::string file_name(const KernelKey& key) { return kernel_file_path(key).substr(3); }

bool is_shard(const std::string& folder) { return folder.size() == 2; }

std::vector<StoredFile> kernels(const StoreDirectory& directory) { return directory.files(kSuffix, is_shard); }

// Takes what a kernel's file says.
StoreDirectory::Accept reader_of(const KernelKey& key, std::optional<KernelFile>& file) {
  return [&key, &file](std::string_view content, std::string& problem) {
    file = read_kernel_file(content, key, problem);
    return file.has_value();
  };
}

std::int64_t total_bytes(const std::vector<StoredFile>& files) {
  std::int64_t bytes = 0;
  for (const StoredFile& file : files) bytes += file.bytes;
  return bytes;
}

}  // namespace

KernelStore::KernelStore(std::optional<fs::path> root, Warn warn, std::int64_t max_bytes)
    : directory_(std::move(root), kMaxKernelFileBytes, std::move(warn),
                 {.lost = "and its kernel is compiled again",
                  .unusable = "Compiled kernels are kept in memory only; set INGOT_CACHE_DIR to a directory of yours "
                              "with mode 0700 and free space to keep them on disk"}),
      max_bytes_(max_bytes) {}

std::optional<CompiledKernel> KernelStore::find(const KernelKey& key, const KernelWanted* wanted) {
  std::optional<CompiledKernel> kernel;
  directory_.read(shard(key), file_name(key), [&](std::string_view content, std::string& problem) {
    kernel = decode_kernel_file(content, key, problem, wanted);
    return kernel.has_value();
  });
  return kernel;
}

bool KernelStore::put(const KernelKey& key, const Source& source, Target target, const CompiledKernel& kernel) {
  const std::string file = encode_kernel_file(key, source, target, kernel);
  if (!directory_.publish(shard(key), file_name(key), file)) return false;
  remove_oldest_if_due(static_cast<std::int64_t>(file.size()));
  return true;
}

FileLock KernelStore::lock(const KernelKey& key, std::chrono::milliseconds wait) {
  const FileDescriptor root = directory_.open();
  if (!root) return {};
  std::uint64_t byte = 0;
  std::memcpy(&byte, key.data(), sizeof(byte));
  return FileLock(root.get(), kLock, byte, wait);
}

KernelStore::Usage KernelStore::usage() const {
  const std::vector<StoredFile> files = kernels(directory_);
  return {.files = static_cast<std::int64_t>(files.size()), .bytes = total_bytes(files)};
}

std::vector<KernelEntry> KernelStore::list() const {
  std::vector<KernelEntry> all;
  for (const StoredFile& file : directory_.entries(is_shard)) {
    const std::optional<KernelKey> key = kernel_of_path(file.name);
    if (!key) continue;
    all.push_back({.key = *key, .bytes = file.bytes, .used = file.modified, .made = directory_.made(file.name)});
  }
  std::ranges::sort(all, {}, &KernelEntry::key);
  return all;
}

std::optional<KernelFile> KernelStore::read(const KernelKey& key, std::string& problem) {
  std::optional<KernelFile> file;
  problem = directory_.check(shard(key), file_name(key), reader_of(key, file), StoreDirectory::Damaged::stays).problem;
  return file;
}

StoreDirectory::Check KernelStore::check(const KernelKey& key, std::optional<KernelFile>* file) {
  std::optional<KernelFile> found;
  StoreDirectory::Check check =
      directory_.check(shard(key), file_name(key), reader_of(key, found), StoreDirectory::Damaged::is_moved);
  if (file != nullptr) *file = std::move(found);
  return check;
}

bool KernelStore::set_aside(const KernelKey& key, const std::string& why) {
  return directory_.set_aside(shard(key), file_name(key), why);
}

RemovedFiles KernelStore::remove(const std::vector<KernelEntry>& kernels, const std::function<bool()>& stop) const {
  std::vector<StoredFile> files;
  files.reserve(kernels.size());
  for (const KernelEntry& kernel : kernels) {
    files.push_back({.name = kernel_file_path(kernel.key),
                     .bytes = kernel.bytes,
                     .modified = kernel.used.value_or(std::pair<std::time_t, long>())});
  }
  return directory_.remove_all(files, stop);
}

RemovedFiles KernelStore::clear(const std::function<bool()>& stop) const {
  std::vector<StoredFile> files = directory_.entries(is_shard);
  std::erase_if(files, [](const StoredFile& file) { return !kernel_of_path(file.name); });
  std::ranges::move(directory_.quarantined(), std::back_inserter(files));
  std::ranges::copy_if(directory_.temporaries(), std::back_inserter(files), StoreDirectory::is_abandoned);
  return directory_.remove_all(files, stop);
}

// Scans the whole store on the first put, again when this object's own puts have filled it, and every 256 puts to see
// those of other processes.
void KernelStore::remove_oldest_if_due(std::int64_t bytes_written) {
  {
    const std::lock_guard lock(mutex_);
    bytes_ += bytes_written;
    if (--puts_until_scan_ > 0 && bytes_ <= max_bytes_) return;
    puts_until_scan_ = kPutsPerScan;
  }
  directory_.remove_abandoned();
  std::vector<StoredFile> files = kernels(directory_);
  std::int64_t bytes = total_bytes(files);
  if (bytes > max_bytes_) {
    std::ranges::sort(files, {}, &StoredFile::modified);
    for (const StoredFile& file : files) {
      if (bytes <= max_bytes_ / 10 * 9) break;
      if (!directory_.remove(file.name)) continue;
      bytes -= file.bytes;
      ++evicted_;
    }
  }
  const std::lock_guard lock(mutex_);
  bytes_ = bytes;
}

}  // namespace ingot
