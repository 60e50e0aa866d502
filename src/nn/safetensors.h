// Files of tensors in the format "safetensors": what public checkpoints are kept in, and what weights of ours are saved
// as.
//
//   file    := header_bytes:u64 (little-endian) header(JSON, padded with spaces) data
//   header  := {"__metadata__": {text: text}, name: {"dtype": "BF16", "shape": [rows, cols], "data_offsets": [b, e]}}
//
// A tensor is the bytes [b, e) of the data, row-major and little-endian. Together the tensors are all of the data: none
// overlaps another, nothing lies between two. A file comes from anywhere, so all of this is checked when it is opened,
// before memory of a size that it names is allocated; what is read later is within the file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ingot/codegen/types/dtype.h"

namespace ingot {

// A tensor in a file. `type` is the format's name of its elements: F64 F32 F16 BF16, F8_E4M3 F8_E5M2 (ours: e4m3fn,
// e5m2), F8_E4M3FNUZ F8_E5M2FNUZ F8_E8M0, F6_E3M2 F6_E2M3 F4, I64 U64 I32 U32 I16 U16 I8 U8, BOOL. `dtype` is ours,
// where there is one; the others are read and written as raw bytes. Elements of less than a byte fill whole bytes
// together. No shape ([]) is a single element.
struct StoredTensor {
  std::string name;
  std::string type;
  std::vector<std::int64_t> shape;
  std::optional<Dtype> dtype{};
  std::uint64_t bytes = 0;
  std::uint64_t offset = 0;  // of the first byte, from the start of the file
};

// The format's name of a dtype of ours: "BF16". Throws Error{invalid_argument} for one that it has none for (u8).
std::string_view safetensors_type(Dtype dtype);

// An open file. Its content is read when it is asked for, from any thread.
class SafetensorsFile {
 public:
  // Throws Error{not_found} where there is no such file, Error{io_failed} for one that cannot be read or is not as
  // above, with what is wrong with it.
  static SafetensorsFile open(const std::filesystem::path& file);
  SafetensorsFile(SafetensorsFile&&) noexcept;
  SafetensorsFile& operator=(SafetensorsFile&&) noexcept;
  ~SafetensorsFile();

  const std::filesystem::path& path() const;
  // In the order of their bytes.
  const std::vector<StoredTensor>& tensors() const;
  const std::map<std::string, std::string>& metadata() const;
  // Null where there is none of this name.
  const StoredTensor* find(std::string_view name) const;
  // Throws Error{not_found} where there is none.
  const StoredTensor& at(std::string_view name) const;

  // All of the tensor's bytes, or those from `first` on that fill `bytes`. Throws Error{io_failed} where the file has
  // become shorter or cannot be read, Error{invalid_argument} for bytes beyond the tensor.
  std::vector<std::byte> read(const StoredTensor& tensor) const;
  void read(const StoredTensor& tensor, std::uint64_t first, std::span<std::byte> bytes) const;

 private:
  struct Parts;
  explicit SafetensorsFile(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

// A model's file, or its files: a .safetensors file; an index of several (model.safetensors.index.json, whose
// "weight_map" says which file has which tensor); or a folder with one of the two.
class SafetensorsCheckpoint {
 public:
  struct Found {
    const SafetensorsFile* file;
    const StoredTensor* tensor;
  };

  // Opens every file. Throws as SafetensorsFile::open() does, for an index too; Error{io_failed} where a file lacks a
  // tensor that the index promises.
  static SafetensorsCheckpoint open(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }
  std::vector<std::string> names() const;
  bool has(std::string_view name) const;
  // Throws Error{not_found}.
  Found at(std::string_view name) const;

 private:
  std::filesystem::path path_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, std::size_t, std::less<>> file_of_;
};

// What to write: `bytes` are those of the shape.
struct TensorToStore {
  std::string name;
  std::string type;
  std::vector<std::int64_t> shape;
  std::span<const std::byte> bytes;
};

// Writes the file beside its place and renames it when it is complete, so that there is the old one or the new one.
// The data starts at a multiple of 64 bytes, with the widest elements in front, so that all are aligned; tensors of the
// same width stay in order. Throws Error{invalid_argument} for two tensors of a name, an unknown type or bytes that do
// not fit the shape; Error{io_failed}, with the old file still there.
void write_safetensors(const std::filesystem::path& file, std::span<const TensorToStore> tensors,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace ingot
