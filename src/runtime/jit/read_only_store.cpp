#include "ingot/runtime/jit/read_only_store.h"

#include <sys/stat.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "ingot/runtime/jit/kernel_file.h"
#include "ingot/runtime/util/trusted_file.h"

namespace ingot {
namespace {

constexpr std::int64_t kMaxFileBytes = std::int64_t{64} << 20;
constexpr std::int64_t kMaxRecordBytes = std::int64_t{1} << 20;

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
  const TrustedFile opened = open_trusted(folder_ / kernel_file_path(key), problem);
  if (!opened.file || opened.bytes > kMaxFileBytes) return std::nullopt;
  return decode_kernel_file(read_at(opened.file, 0, static_cast<std::size_t>(opened.bytes)), key, problem);
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
