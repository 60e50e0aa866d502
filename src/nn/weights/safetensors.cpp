#include "ingot/nn/weights/safetensors.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "ingot/runtime/util/count_of.h"
#include "ingot/runtime/util/error.h"
#include "ingot/runtime/util/file_descriptor.h"
#include "ingot/runtime/util/json_text.h"
#include "ingot/runtime/util/read_file.h"
#include "ingot/runtime/util/text.h"
#include "ingot/runtime/util/write_file.h"

namespace ingot {
namespace {

using Json = nlohmann::json;

constexpr std::uint64_t kPrefix = 8;
constexpr std::uint64_t kMaxHeader = 100'000'000;
constexpr std::uint64_t kMaxIndex = 100'000'000;
constexpr std::size_t kAlignment = 64;
constexpr std::string_view kMetadata = "__metadata__";
constexpr int kDeepestHeader = 8;  // nesting of objects and arrays; the format needs 3

struct StoredType {
  std::string_view name;
  std::uint64_t bits = 0;
  std::optional<Dtype> dtype{};
};
// Types that files may have and Ingot's tensors lack.
constexpr std::array kForeignTypes{
    StoredType{"F64", 64}, StoredType{"I64", 64}, StoredType{"U64", 64}, StoredType{"I32", 32}, StoredType{"U32", 32},
    StoredType{"I16", 16}, StoredType{"U16", 16}, StoredType{"I8", 8},   StoredType{"U8", 8},   StoredType{"BOOL", 8}};

std::optional<StoredType> find_type(std::string_view name) {
  const auto* const dtype = std::ranges::find(kDtypeTable, name, &DtypeFacts::safetensors);
  if (dtype != kDtypeTable.end() && !name.empty())
    return StoredType{name, static_cast<std::uint64_t>(dtype->bits), dtype->dtype};
  const auto* const foreign = std::ranges::find(kForeignTypes, name, &StoredType::name);
  return foreign == kForeignTypes.end() ? std::nullopt : std::optional(*foreign);
}

// The size of a shape in bytes; nullopt if it is not a whole number of bytes or does not fit in 63 bits.
std::optional<std::uint64_t> bytes_of(const StoredType& type, const std::vector<std::int64_t>& shape) {
  std::uint64_t count = 1;
  bool zero = false;
  for (const std::int64_t size : shape) {
    if (size < 0) return std::nullopt;
    if (size == 0) zero = true;
    if (__builtin_mul_overflow(count, static_cast<std::uint64_t>(std::max<std::int64_t>(size, 1)), &count)) {
      return std::nullopt;
    }
  }
  if (zero) return 0;
  std::uint64_t bits = 0;
  if (__builtin_mul_overflow(count, type.bits, &bits) || bits % 8 != 0) return std::nullopt;
  return bits / 8;
}

std::string tensor_called(std::string_view name) { return fmt::format("tensor \"{}\"", printable(name)); }

// ---- Files ---------------------------------------------------------------------------------------------------------

[[noreturn]] void refuse(const std::filesystem::path& file, const std::string& message) {
  throw Error(ErrorCode::io_failed, file.string(), message);
}

struct OpenFile {
  FileDescriptor descriptor;
  std::uint64_t bytes;
};

OpenFile open_file(const std::filesystem::path& path) {
  // O_NONBLOCK: without it, opening a FIFO that has no writer would block. (A FIFO is then refused below.)
  FileDescriptor descriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!descriptor) {
    const int problem = errno;
    throw Error(problem == ENOENT ? ErrorCode::not_found : ErrorCode::io_failed, path.string(),
                fmt::format("cannot be opened: {}", std::strerror(problem)));
  }
  struct stat status {};
  if (::fstat(descriptor.get(), &status) != 0) refuse(path, fmt::format("cannot be read: {}", std::strerror(errno)));
  if (!S_ISREG(status.st_mode)) refuse(path, "is not a regular file; name a .safetensors file");
  return {std::move(descriptor), static_cast<std::uint64_t>(status.st_size)};
}

void read_exactly(const std::filesystem::path& path, int descriptor, std::uint64_t offset, std::span<std::byte> bytes) {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t got =
        ::pread(descriptor, bytes.data() + done, bytes.size() - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) refuse(path, fmt::format("cannot be read: {}", std::strerror(errno)));
    if (got == 0) refuse(path, "became shorter while it was read; do not write to a checkpoint that is in use");
    done += static_cast<std::size_t>(got);
  }
}

// Parses JSON; refuses duplicate names within an object and nesting deeper than the format needs.
Json parse_json(const std::filesystem::path& path, std::string_view text, std::string_view what) {
  if (const std::string fault = json_fault(text, kDeepestHeader); !fault.empty()) {
    refuse(path, fmt::format("its {} {}; the file is damaged or of another format", what, fault));
  }
  return Json::parse(text);
}

// ---- The header ----------------------------------------------------------------------------------------------------

class HeaderReader {
 public:
  HeaderReader(const std::filesystem::path& path, std::uint64_t data_begin, std::uint64_t data_bytes)
      : path_(&path), data_begin_(data_begin), data_bytes_(data_bytes) {}

  std::vector<StoredTensor> tensors(const Json& header) const {
    std::vector<StoredTensor> tensors;
    for (const auto& [name, value] : header.items()) {
      if (name != kMetadata) tensors.push_back(tensor(name, value));
    }
    std::ranges::sort(tensors, [](const StoredTensor& a, const StoredTensor& b) {
      return std::pair(a.offset, a.bytes) < std::pair(b.offset, b.bytes);
    });
    check_cover(tensors);
    return tensors;
  }

  std::map<std::string, std::string> metadata(const Json& header) const {
    std::map<std::string, std::string> metadata;
    const auto found = header.find(kMetadata);
    if (found == header.end()) return metadata;
    if (!found->is_object()) refuse(*path_, "its __metadata__ is not an object of strings");
    for (const auto& [name, value] : found->items()) {
      if (!value.is_string())
        refuse(*path_, fmt::format("its __metadata__ has a value that is not a string, \"{}\"", printable(name)));
      metadata.emplace(name, value.get<std::string>());
    }
    return metadata;
  }

 private:
  StoredTensor tensor(const std::string& name, const Json& value) const {
    const auto fault = [&](const std::string& message) {
      refuse(*path_, fmt::format("{} {}", tensor_called(name), message));
    };
    if (!value.is_object()) fault("is described by something other than an object");
    const auto dtype = value.find("dtype");
    const auto shape = value.find("shape");
    const auto offsets = value.find("data_offsets");
    if (dtype == value.end() || !dtype->is_string()) fault("has no dtype");
    if (shape == value.end() || !shape->is_array()) fault("has no shape");
    if (offsets == value.end() || !offsets->is_array() || offsets->size() != 2 ||
        !std::ranges::all_of(*offsets, [](const Json& each) { return each.is_number_unsigned(); })) {
      fault("has no data_offsets of two whole numbers");
    }
    const std::optional<StoredType> type = find_type(dtype->get_ref<const std::string&>());
    if (!type) fault(fmt::format("is of the unknown dtype \"{}\"", printable(dtype->get_ref<const std::string&>())));

    StoredTensor tensor{.name = name, .type = std::string(type->name), .shape = {}, .dtype = type->dtype};
    for (const Json& size : *shape) {
      if (!size.is_number_unsigned() ||
          size.get<std::uint64_t>() > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
        fault("has a size in its shape that is not a whole number of 63 bits");
      }
      tensor.shape.push_back(size.get<std::int64_t>());
    }
    const std::optional<std::uint64_t> bytes = bytes_of(*type, tensor.shape);
    if (!bytes) fault("has a shape that is too large, or does not fill whole bytes");
    const auto begin = (*offsets)[0].get<std::uint64_t>();
    const auto end = (*offsets)[1].get<std::uint64_t>();
    if (begin > end) fault(fmt::format("ends at {}, before it begins at {}", end, begin));
    if (end > data_bytes_) {
      fault(fmt::format("ends at {}, but the file has {} of data; it is cut short or damaged", end,
                        count_of(data_bytes_, "byte")));
    }
    if (end - begin != *bytes) {
      fault(fmt::format("has {}, but its shape and dtype take {}", count_of(end - begin, "byte"),
                        count_of(*bytes, "byte")));
    }
    tensor.bytes = *bytes;
    tensor.offset = data_begin_ + begin;
    return tensor;
  }

  // `tensors` are in the order of their offsets: they must cover all of the data, without gaps or overlaps.
  void check_cover(const std::vector<StoredTensor>& tensors) const {
    std::uint64_t end = data_begin_;
    for (const StoredTensor& tensor : tensors) {
      if (tensor.offset < end) refuse(*path_, fmt::format("{} overlaps the one before it", tensor_called(tensor.name)));
      if (tensor.offset > end) {
        refuse(*path_, fmt::format("no tensor has its {} in front of {}", count_of(tensor.offset - end, "byte"),
                                   tensor_called(tensor.name)));
      }
      end += tensor.bytes;
    }
    if (end != data_begin_ + data_bytes_) {
      refuse(*path_, fmt::format("no tensor has its last {}", count_of(data_begin_ + data_bytes_ - end, "byte")));
    }
  }

  const std::filesystem::path* path_;
  std::uint64_t data_begin_;
  std::uint64_t data_bytes_;
};

}  // namespace

std::string_view safetensors_type(Dtype dtype) {
  if (const std::string_view type = facts_of(dtype).safetensors; !type.empty()) return type;
  throw Error(ErrorCode::invalid_argument, "safetensors type",
              fmt::format("{} has no name in the format; store its bytes as U8", name(dtype)));
}

// ---- Reading -------------------------------------------------------------------------------------------------------

struct SafetensorsFile::Parts {
  std::filesystem::path path;
  FileDescriptor descriptor;
  std::vector<StoredTensor> tensors{};
  std::map<std::string, std::string> metadata{};
  std::map<std::string, std::size_t, std::less<>> index{};
};

SafetensorsFile::SafetensorsFile(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
SafetensorsFile::SafetensorsFile(SafetensorsFile&&) noexcept = default;
SafetensorsFile& SafetensorsFile::operator=(SafetensorsFile&&) noexcept = default;
SafetensorsFile::~SafetensorsFile() = default;

SafetensorsFile SafetensorsFile::open(const std::filesystem::path& path) {
  OpenFile file = open_file(path);
  if (file.bytes < kPrefix) {
    refuse(path, fmt::format("has {}, too few for a safetensors file; it is cut short", count_of(file.bytes, "byte")));
  }
  std::array<std::byte, kPrefix> prefix{};
  read_exactly(path, file.descriptor.get(), 0, prefix);
  std::uint64_t header_bytes = 0;
  for (std::size_t i = 0; i < kPrefix; ++i) header_bytes |= std::to_integer<std::uint64_t>(prefix[i]) << (8 * i);
  if (header_bytes > kMaxHeader) {
    refuse(path,
           fmt::format("says that its header has {} bytes, but at most {} are allowed; it is not a safetensors file",
                       header_bytes, kMaxHeader));
  }
  if (header_bytes > file.bytes - kPrefix) {
    refuse(path, fmt::format("says that its header has {} bytes, but only {} follow; it is cut short or damaged",
                             header_bytes, file.bytes - kPrefix));
  }
  std::string text(header_bytes, '\0');
  read_exactly(path, file.descriptor.get(), kPrefix, std::as_writable_bytes(std::span(text)));
  if (!text.starts_with('{')) refuse(path, "its header does not start with {; it is not a safetensors file");
  const Json header = parse_json(path, text, "header");

  const HeaderReader reader(path, kPrefix + header_bytes, file.bytes - kPrefix - header_bytes);
  auto parts = std::make_unique<Parts>(Parts{.path = path, .descriptor = std::move(file.descriptor)});
  parts->tensors = reader.tensors(header);
  parts->metadata = reader.metadata(header);
  for (std::size_t i = 0; i < parts->tensors.size(); ++i) parts->index.emplace(parts->tensors[i].name, i);
  return SafetensorsFile(std::move(parts));
}

const std::filesystem::path& SafetensorsFile::path() const { return parts_->path; }
const std::vector<StoredTensor>& SafetensorsFile::tensors() const { return parts_->tensors; }
const std::map<std::string, std::string>& SafetensorsFile::metadata() const { return parts_->metadata; }

const StoredTensor* SafetensorsFile::find(std::string_view name) const {
  const auto found = parts_->index.find(name);
  return found == parts_->index.end() ? nullptr : &parts_->tensors[found->second];
}

const StoredTensor& SafetensorsFile::at(std::string_view name) const {
  if (const StoredTensor* const found = find(name)) return *found;
  throw Error(ErrorCode::not_found, parts_->path.string(), fmt::format("has no {}", tensor_called(name)));
}

void SafetensorsFile::read(const StoredTensor& tensor, std::uint64_t first, std::span<std::byte> bytes) const {
  if (first > tensor.bytes || bytes.size() > tensor.bytes - first) {
    throw Error(
        ErrorCode::invalid_argument, tensor_called(tensor.name),
        fmt::format("has {} bytes, but {} bytes from byte {} on were requested", tensor.bytes, bytes.size(), first));
  }
  read_exactly(parts_->path, parts_->descriptor.get(), tensor.offset + first, bytes);
}

std::vector<std::byte> SafetensorsFile::read(const StoredTensor& tensor) const {
  std::vector<std::byte> bytes(tensor.bytes);
  read(tensor, 0, bytes);
  return bytes;
}

// ---- Several files -------------------------------------------------------------------------------------------------

namespace {

constexpr std::string_view kIndexEnd = ".index.json";

// The file to open for a path: the path itself, or the checkpoint inside a folder; of both kinds the one that
// transformers reads.
std::filesystem::path entry_of(const std::filesystem::path& path) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(path, ignored)) return path;
  for (const char* const name : {"model.safetensors", "model.safetensors.index.json"}) {
    if (std::filesystem::exists(path / name, ignored)) return path / name;
  }
  throw Error(ErrorCode::not_found, path.string(),
              "has neither model.safetensors nor model.safetensors.index.json; name the file itself");
}

// Returns the file name of each tensor.
std::map<std::string, std::string> read_index(const std::filesystem::path& path) {
  const Json index = parse_json(path, read_file(path, kMaxIndex), "index");
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) {
    refuse(path, "has no weight_map from tensors to files");
  }
  std::map<std::string, std::string> files;
  for (const auto& [name, value] : index["weight_map"].items()) {
    if (!value.is_string()) refuse(path, fmt::format("its weight_map has no file name for {}", tensor_called(name)));
    const auto file_name = value.get<std::string>();
    // Only names of files next to the index: an index from an untrusted source must not open anything else.
    if (file_name.empty() || file_name == "." || file_name == ".." ||
        file_name.find_first_of(std::string("/\\\0", 3)) != std::string::npos) {
      refuse(path, fmt::format("its weight_map puts {} into {}, which is not the name of a file in its folder",
                               tensor_called(name), printable(value.dump())));
    }
    files.emplace(name, file_name);
  }
  return files;
}

SafetensorsFile open_listed(const std::filesystem::path& index, const std::string& file_name) {
  try {
    return SafetensorsFile::open(index.parent_path() / file_name);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::not_found) throw;
    throw Error(ErrorCode::not_found, error.subject(),
                fmt::format("{}; {} lists it: bring the missing file", error.message(), index.filename().string()));
  }
}

}  // namespace

SafetensorsCheckpoint SafetensorsCheckpoint::open(const std::filesystem::path& path) {
  const std::filesystem::path entry = entry_of(path);
  SafetensorsCheckpoint checkpoint;
  checkpoint.path_ = path;
  if (!entry.string().ends_with(kIndexEnd)) {
    checkpoint.files_.push_back(SafetensorsFile::open(entry));
    for (const StoredTensor& tensor : checkpoint.files_.front().tensors()) checkpoint.file_of_.emplace(tensor.name, 0);
    return checkpoint;
  }
  std::map<std::string, std::size_t> opened;
  for (const auto& [tensor, file_name] : read_index(entry)) {
    const auto [known, is_new] = opened.emplace(file_name, checkpoint.files_.size());
    if (is_new) checkpoint.files_.push_back(open_listed(entry, file_name));
    const SafetensorsFile& file = checkpoint.files_[known->second];
    if (file.find(tensor) == nullptr) {
      refuse(file.path(),
             fmt::format("lacks {}, which {} says it has", tensor_called(tensor), entry.filename().string()));
    }
    checkpoint.file_of_.emplace(tensor, known->second);
  }
  return checkpoint;
}

std::vector<std::string> SafetensorsCheckpoint::names() const {
  std::vector<std::string> names;
  for (const auto& [name, file] : file_of_) names.push_back(name);
  return names;
}

bool SafetensorsCheckpoint::has(std::string_view name) const { return file_of_.contains(name); }

SafetensorsCheckpoint::Found SafetensorsCheckpoint::at(std::string_view name) const {
  const auto found = file_of_.find(name);
  if (found == file_of_.end()) {
    throw Error(ErrorCode::not_found, path_.string(), fmt::format("has no {}", tensor_called(name)));
  }
  const SafetensorsFile& file = files_[found->second];
  return {&file, file.find(name)};
}

// ---- Writing -------------------------------------------------------------------------------------------------------

namespace {

std::uint64_t bits_of_type(const TensorToStore* tensor) { return find_type(tensor->type)->bits; }

void check_to_store(std::span<const TensorToStore> tensors) {
  std::set<std::string_view> names;
  for (const TensorToStore& tensor : tensors) {
    const auto require = [&](bool condition, const std::string& message) {
      if (!condition) throw Error(ErrorCode::invalid_argument, tensor_called(tensor.name), message);
    };
    require(tensor.name != kMetadata, "is reserved for the file's metadata; give the tensor another name");
    require(names.insert(tensor.name).second, "occurs twice; names must be unique within a file");
    const std::optional<StoredType> type = find_type(tensor.type);
    require(type.has_value(),
            fmt::format("is of the unknown type \"{}\"; F32, BF16, F8_E4M3 and U8 are some", tensor.type));
    const std::optional<std::uint64_t> bytes = bytes_of(*type, tensor.shape);
    require(bytes.has_value(), "has a shape that is negative, too large or does not fill whole bytes");
    require(*bytes == tensor.bytes.size(),
            fmt::format("has {} bytes, but its shape and type take {} bytes", tensor.bytes.size(), *bytes));
  }
}

std::string header_text(std::span<const TensorToStore* const> tensors,
                        const std::map<std::string, std::string>& metadata) {
  // Entry by entry: an ordered object of the JSON library looks at all its names before it takes one more.
  std::string text;
  const auto add = [&](std::string_view name, const nlohmann::ordered_json& value) {
    text += fmt::format("{}{}:{}", text.empty() ? '{' : ',', Json(name).dump(), value.dump());
  };
  try {
    if (!metadata.empty()) add(kMetadata, metadata);
    std::uint64_t offset = 0;
    for (const TensorToStore* const tensor : tensors) {
      const std::uint64_t end = offset + tensor->bytes.size();
      add(tensor->name, {{"dtype", tensor->type}, {"shape", tensor->shape}, {"data_offsets", {offset, end}}});
      offset = end;
    }
  } catch (const nlohmann::json::exception&) {
    throw Error(ErrorCode::invalid_argument, "safetensors header", "has a name or a text that is not UTF-8");
  }
  text += text.empty() ? "{}" : "}";
  text.resize((kPrefix + text.size() + kAlignment - 1) / kAlignment * kAlignment - kPrefix, ' ');
  if (text.size() > kMaxHeader) {
    throw Error(ErrorCode::invalid_argument, "safetensors header",
                fmt::format("would have {} bytes, but readers take at most {}", text.size(), kMaxHeader));
  }
  return text;
}

}  // namespace

void write_safetensors(const std::filesystem::path& file, std::span<const TensorToStore> tensors,
                       const std::map<std::string, std::string>& metadata) {
  check_to_store(tensors);
  std::vector<const TensorToStore*> sorted;
  for (const TensorToStore& tensor : tensors) sorted.push_back(&tensor);
  std::ranges::stable_sort(sorted, std::ranges::greater{}, bits_of_type);
  const std::string header = header_text(sorted, metadata);
  std::string prefix(kPrefix, '\0');
  for (std::size_t i = 0; i < kPrefix; ++i) prefix[i] = static_cast<char>(header.size() >> (8 * i) & 0xffU);

  FileWriter writer(file);
  writer.write(prefix);
  writer.write(header);
  for (const TensorToStore* const tensor : sorted) {
    writer.write({reinterpret_cast<const char*>(tensor->bytes.data()), tensor->bytes.size()});
  }
  writer.sync();
  writer.publish();
}

}  // namespace ingot
