// Fuzzed bytes as a file, for parsers that take a path: a file in memory, which has a path as long as it is open.
#pragma once

#include <filesystem>
#include <string_view>

#include "ingot/runtime/util/file_descriptor.h"

namespace ingot::fuzz {

class InputFile {
 public:
  explicit InputFile(std::string_view content);
  const std::filesystem::path& path() const { return path_; }

 private:
  FileDescriptor file_;
  std::filesystem::path path_;
};

}  // namespace ingot::fuzz
