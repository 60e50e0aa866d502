// The index is checked once, when the bundle is opened: its checksum, its order, and that every entry is inside the
// file. An entry's own checksum is verified whenever it is read.
#include "ingot/runtime/jit/kernel_bundle.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <system_error>
#include <utility>

#include "ingot/runtime/jit/kernel_file.h"
#include "ingot/runtime/util/little_endian.h"
#include "ingot/runtime/util/trusted_file.h"
#include "ingot/runtime/util/write_file.h"

namespace ingot {
namespace {

constexpr std::size_t kInteger = sizeof(std::uint64_t);
constexpr std::size_t kBundleHeaderBytes = kBundleMagic.size() + 2 * kInteger + sizeof(Digest);
constexpr std::size_t kEntryBytes = sizeof(KernelKey) + 2 * kInteger;
constexpr std::int64_t kMaxIndexBytes = std::int64_t{256} << 20;
// The limit on the size of all tuning records: nothing larger is read into memory.
constexpr std::uint64_t kMaxTuningBytes = std::uint64_t{1} << 30;

// Takes integers and bytes off the front of an index.
class IndexReader {
 public:
  explicit IndexReader(std::string_view index) : rest_(index) {}

  std::string_view bytes(std::uint64_t count) {
    if (count > rest_.size()) {
      good_ = false;
      return {};
    }
    const std::string_view taken = rest_.substr(0, static_cast<std::size_t>(count));
    rest_.remove_prefix(taken.size());
    return taken;
  }
  std::uint64_t integer() {
    const std::string_view taken = bytes(kInteger);
    return good_ ? little_endian_at<std::uint64_t>(taken, 0) : 0;
  }
  std::size_t left() const { return rest_.size(); }
  bool complete() const { return good_ && rest_.empty(); }

 private:
  std::string_view rest_;
  bool good_ = true;
};

struct Index {
  std::string identity;
  std::vector<KernelBundle::Entry> entries;
  std::int64_t tuning_offset = 0;
  std::int64_t tuning_bytes = 0;
};

// Nothing if an offset or a size reaches beyond `limit`, or if the index has another shape.
std::optional<Index> read_index(std::string_view text, std::int64_t limit) {
  IndexReader reader(text);
  Index index;
  index.identity = reader.bytes(reader.integer());
  const std::uint64_t count = reader.integer();
  if (count > reader.left() / kEntryBytes) return std::nullopt;
  const auto inside = [limit](std::uint64_t offset, std::uint64_t bytes) {
    const auto end = static_cast<std::uint64_t>(limit);
    return offset >= kBundleHeaderBytes && offset <= end && bytes <= end - offset;
  };
  for (std::uint64_t i = 0; i < count; ++i) {
    KernelBundle::Entry entry;
    std::memcpy(entry.key.data(), reader.bytes(sizeof(KernelKey)).data(), sizeof(KernelKey));
    const std::uint64_t offset = reader.integer();
    const std::uint64_t bytes = reader.integer();
    if (!inside(offset, bytes) || bytes > std::uint64_t{kMaxKernelFileBytes} ||
        (i > 0 && !(index.entries.back().key < entry.key)))
      return std::nullopt;
    entry.offset = static_cast<std::int64_t>(offset);
    entry.bytes = static_cast<std::int64_t>(bytes);
    index.entries.push_back(entry);
  }
  const std::uint64_t offset = reader.integer();
  const std::uint64_t bytes = reader.integer();
  if (!reader.complete() || !inside(offset, bytes) || bytes > kMaxTuningBytes) return std::nullopt;
  index.tuning_offset = static_cast<std::int64_t>(offset);
  index.tuning_bytes = static_cast<std::int64_t>(bytes);
  return index;
}

}  // namespace

std::unique_ptr<KernelBundle> KernelBundle::open(const std::filesystem::path& path, std::string& problem) {
  const auto refuse = [&problem](std::string why) {
    problem = std::move(why);
    return nullptr;
  };
  TrustedFile opened = open_trusted(path, problem);
  if (!opened.file) return problem.empty() ? refuse("does not exist") : nullptr;
  const std::string header = read_at(opened.file, 0, kBundleHeaderBytes);
  if (header.size() < kBundleHeaderBytes) return refuse("is truncated: its header is not complete");
  if (!header.starts_with(kBundleMagic)) return refuse("is not a bundle of this version of Ingot");
  const auto offset = little_endian_at<std::uint64_t>(header, kBundleMagic.size());
  const auto bytes = little_endian_at<std::uint64_t>(header, kBundleMagic.size() + kInteger);
  const auto file_bytes = static_cast<std::uint64_t>(opened.bytes);
  if (offset > file_bytes || bytes != file_bytes - offset) {
    const bool is_cut = offset > file_bytes || bytes > file_bytes - offset;
    return refuse(fmt::format("{}: {} bytes, of {}", is_cut ? "is cut off" : "is not as long as it was written",
                              file_bytes, offset + bytes));
  }
  if (bytes > kMaxIndexBytes)
    return refuse(fmt::format("has an index of {} bytes; at most {} are read", bytes, kMaxIndexBytes));
  const std::string text = read_at(opened.file, static_cast<std::int64_t>(offset), static_cast<std::size_t>(bytes));
  if (bytes_of(digest(text)) != std::string_view(header).substr(kBundleHeaderBytes - sizeof(Digest))) {
    return refuse("does not match its checksum");
  }
  std::optional<Index> index = read_index(text, static_cast<std::int64_t>(offset));
  if (!index) return refuse("has an index of the wrong shape");

  std::unique_ptr<KernelBundle> bundle(new KernelBundle);
  std::error_code error;
  bundle->name_ = std::filesystem::absolute(path, error).string();
  bundle->file_ = std::move(opened.file);
  bundle->identity_ = std::move(index->identity);
  bundle->entries_ = std::move(index->entries);
  bundle->tuning_offset_ = index->tuning_offset;
  bundle->tuning_bytes_ = index->tuning_bytes;
  return bundle;
}

std::optional<CompiledKernel> KernelBundle::find(const KernelKey& key, const KernelWanted* wanted) const {
  const Entry* const entry = entry_of(key);
  if (entry == nullptr) return std::nullopt;
  std::string problem;
  return decode_kernel_file(file_of(*entry), key, problem, wanted);
}

std::vector<KernelEntry> KernelBundle::list() const {
  std::vector<KernelEntry> all;
  all.reserve(entries_.size());
  for (const Entry& entry : entries_) all.push_back({.key = entry.key, .bytes = entry.bytes});
  return all;
}

std::optional<KernelFile> KernelBundle::read(const KernelKey& key, std::string& problem) const {
  const Entry* const entry = entry_of(key);
  if (entry == nullptr) return std::nullopt;
  return read_kernel_file(file_of(*entry), key, problem);
}

const KernelBundle::Entry* KernelBundle::entry_of(const KernelKey& key) const {
  const auto entry = std::ranges::lower_bound(entries_, key, {}, &Entry::key);
  return entry != entries_.end() && entry->key == key ? &*entry : nullptr;
}

std::string KernelBundle::file_of(const Entry& entry) const {
  return read_at(file_, entry.offset, static_cast<std::size_t>(entry.bytes));
}

void KernelBundle::read_tuning(const TakeTuningLine& take) const { take_tuning_lines(tuning(), take); }

std::int64_t KernelBundle::count_tuning() const { return std::ranges::count(tuning(), '\n'); }

std::string KernelBundle::tuning() const {
  return read_at(file_, tuning_offset_, static_cast<std::size_t>(tuning_bytes_));
}

std::string encode_bundle(BundleContent content) {
  std::ranges::stable_sort(content.kernels, {}, &BundleContent::Kernel::key);
  const auto same_key = [](const auto& a, const auto& b) { return a.key == b.key; };  // clang 14 has no ranges::unique
  content.kernels.erase(std::unique(content.kernels.begin(), content.kernels.end(), same_key), content.kernels.end());

  std::string kernels;
  std::string index;
  append_little_endian(index, std::uint64_t{content.identity.size()});
  index += content.identity;
  append_little_endian(index, std::uint64_t{content.kernels.size()});
  for (const BundleContent::Kernel& kernel : content.kernels) {
    index += bytes_of(kernel.key);
    append_little_endian(index, std::uint64_t{kBundleHeaderBytes + kernels.size()});
    append_little_endian(index, std::uint64_t{kernel.file.size()});
    kernels += kernel.file;
  }
  append_little_endian(index, std::uint64_t{kBundleHeaderBytes + kernels.size()});
  append_little_endian(index, std::uint64_t{content.tuning.size()});

  std::string file(kBundleMagic);
  append_little_endian(file, std::uint64_t{kBundleHeaderBytes + kernels.size() + content.tuning.size()});
  append_little_endian(file, std::uint64_t{index.size()});
  const Digest checksum = digest(index);
  file += bytes_of(checksum);
  return file + kernels + content.tuning + index;
}

std::int64_t write_bundle(const std::filesystem::path& file, BundleContent content) {
  namespace fs = std::filesystem;
  const std::string bytes = encode_bundle(std::move(content));
  write_file(file, {bytes});
  std::error_code error;
  if (fs::is_regular_file(file, error)) {
    fs::permissions(file, fs::perms::group_write | fs::perms::others_write, fs::perm_options::remove, error);
  }
  return static_cast<std::int64_t>(bytes.size());
}

}  // namespace ingot
