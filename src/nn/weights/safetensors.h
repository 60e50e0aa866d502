// Reads and writes tensors in the safetensors format, in which public checkpoints are distributed and Ingot saves its
// weights.
//
//   file    := header_bytes:u64 (little-endian) header(JSON, padded with spaces) data
//   header  := {"__metadata__": {text: text}, name: {"dtype": "BF16", "shape": [rows, cols], "data_offsets": [b, e]}}
//
// A tensor is the bytes [b, e) of the data, row-major and little-endian. Together the tensors cover all of the data:
// none overlaps another, and there is no gap between two. Files may come from anywhere, so open() checks all of this
// before it allocates memory of a size that the file names; later reads then stay within the file.
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

#include "ingot/api.h"
#include "ingot/codegen/types/dtype.h"

namespace ingot {

// A tensor in a file. `type` is the format's name for its elements: F64 F32 F16 BF16, F8_E4M3 F8_E5M2 (e4m3fn and e5m2
// here), F8_E4M3FNUZ F8_E5M2FNUZ F8_E8M0, F6_E3M2 F6_E2M3 F4, I64 U64 I32 U32 I16 U16 I8 U8, BOOL. `dtype` is the
// corresponding Dtype; elements without one are read and written as raw bytes. Elements smaller than a byte must fill
// whole bytes together. An empty shape ([]) is a single element.
struct StoredTensor {
  std::string name;
  std::string type;
  std::vector<std::int64_t> shape;
  std::optional<Dtype> dtype{};
  std::uint64_t bytes = 0;
  std::uint64_t offset = 0;  // of the first byte, from the start of the file
};

// The format's name for a Dtype: "BF16". Throws Error{invalid_argument} if it has none (u8).
INGOT_API std::string_view safetensors_type(Dtype dtype);

// An open file. Tensor data is read on request; any thread may read.
class INGOT_API SafetensorsFile {
 public:
  // Throws Error{not_found} if there is no such file, and Error{io_failed}, which says what is wrong, if it cannot be
  // read or breaks the format above.
  static SafetensorsFile open(const std::filesystem::path& file);
  SafetensorsFile(SafetensorsFile&&) noexcept;
  SafetensorsFile& operator=(SafetensorsFile&&) noexcept;
  ~SafetensorsFile();

  const std::filesystem::path& path() const;
  // In the order of their offsets.
  const std::vector<StoredTensor>& tensors() const;
  const std::map<std::string, std::string>& metadata() const;
  // Returns null if no tensor has this name.
  const StoredTensor* find(std::string_view name) const;
  // Throws Error{not_found} if no tensor has this name.
  const StoredTensor& at(std::string_view name) const;

  // Reads the whole tensor, or the part that starts at byte `first` and fills `bytes`. Throws Error{io_failed} if the
  // file has become shorter or cannot be read, and Error{invalid_argument} for bytes beyond the tensor's end.
  std::vector<std::byte> read(const StoredTensor& tensor) const;
  void read(const StoredTensor& tensor, std::uint64_t first, std::span<std::byte> bytes) const;

 private:
  struct Parts;
  explicit SafetensorsFile(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

// A model's checkpoint of one or several files. Its path is a .safetensors file; an index
// (model.safetensors.index.json, whose "weight_map" names the file of each tensor); or a folder that has one of the
// two. Of a folder with both model.safetensors is read, as transformers does.
class INGOT_API SafetensorsCheckpoint {
 public:
  // A tensor, and the file that holds it.
  struct Found {
    const SafetensorsFile* file;
    const StoredTensor* tensor;
  };

  // Opens every file. Throws as SafetensorsFile::open() does, also for an index, and Error{io_failed} if a file lacks a
  // tensor that the index lists.
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

// A tensor to write: `bytes` holds exactly the elements of the shape.
struct TensorToStore {
  std::string name;
  std::string type;
  std::vector<std::int64_t> shape;
  std::span<const std::byte> bytes;
};

// Replaces the file at once when the new one is complete and on the disk; what is no regular file, such as a FIFO, is
// written into (runtime/util/write_file.h). The data starts at a multiple of 64 bytes, the widest elements first, so
// that all are aligned; tensors of the same width keep their order. Throws Error{invalid_argument} for two tensors of
// one name, an unknown type, or bytes that do not fit the shape, and Error{io_failed}, with the old file intact.
INGOT_API void write_safetensors(const std::filesystem::path& file, std::span<const TensorToStore> tensors,
                                 const std::map<std::string, std::string>& metadata = {});

}  // namespace ingot
