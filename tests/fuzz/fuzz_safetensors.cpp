// Files of tensors, and the index of a checkpoint of several.
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "fuzz/input_file.h"
#include "fuzz/targets.h"
#include "ingot/nn/weights/safetensors.h"
#include "ingot/runtime/util/little_endian.h"
#include "ingot/runtime/util/write_file.h"
#include "support/temporary_directory.h"

namespace ingot::fuzz {

bool safetensors(std::string_view input) {
  const InputFile file(input);
  std::optional<SafetensorsFile> opened;
  if (!accepts([&] { opened = SafetensorsFile::open(file.path()); })) return false;
  for (const StoredTensor& tensor : opened->tensors()) {
    require(tensor.offset <= input.size() && tensor.bytes <= input.size() - tensor.offset, "a tensor beyond the end");
    require(opened->read(tensor).size() == tensor.bytes, "a tensor of another size");
    require(opened->find(tensor.name) == &tensor, "a tensor that is not found");
  }
  return true;
}

// A right length, and 64 bytes of data.
bool safetensors_header(std::string_view header) {
  std::string file;
  append_little_endian(file, std::uint64_t{header.size()});
  return safetensors(file.append(header).append(64, 'x'));
}

// Next to the index is a.safetensors, with a tensor "w".
bool safetensors_index(std::string_view input) {
  static const test::TemporaryDirectory kFolder(
      test::memory_folder());  // a new one for every input would take most of the time
  static const bool kPrepared = [] {
    const std::string bytes(8, 'x');
    write_safetensors(kFolder.path() / "a.safetensors",
                      std::vector<TensorToStore>{
                          {.name = "w", .type = "U8", .shape = {8}, .bytes = std::as_bytes(std::span(bytes))}});
    return true;
  }();
  require(kPrepared, "no file of tensors");
  const auto index = kFolder.path() / "model.safetensors.index.json";
  write_file(index, {input});
  std::optional<SafetensorsCheckpoint> opened;
  if (!accepts([&] { opened = SafetensorsCheckpoint::open(kFolder.path()); })) return false;
  for (const std::string& name : opened->names()) {
    require(name == "w" && opened->at(name).tensor->bytes == 8, "a tensor that no file has");
  }
  return true;
}

}  // namespace ingot::fuzz
