// A directory for one test, deleted when the test ends.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <stdexcept>
#include <string>
#include <system_error>

namespace ingot::test {

// A file system in memory where there is one. On a disk, replacing a file by rename() may wait for the disk.
std::filesystem::path memory_folder();

class TemporaryDirectory {
 public:
  explicit TemporaryDirectory(const std::filesystem::path& inside = std::filesystem::temp_directory_path());
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  ~TemporaryDirectory();

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace ingot::test
