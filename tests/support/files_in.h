// Lists a folder, for tests that look for what was left or moved there.
#pragma once

#include <filesystem>
#include <system_error>
#include <vector>

namespace ingot::test {

// Nothing if there is no such folder.
inline std::vector<std::filesystem::path> files_in(const std::filesystem::path& folder) {
  std::error_code error;
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) files.push_back(entry.path());
  return files;
}

}  // namespace ingot::test
