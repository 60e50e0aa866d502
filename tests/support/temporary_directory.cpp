#include "support/temporary_directory.h"

#include <unistd.h>

namespace ingot::test {

std::filesystem::path memory_folder() {
  const char* const folder = "/dev/shm";
  return ::access(folder, W_OK) == 0 ? folder : std::filesystem::temp_directory_path();
}

TemporaryDirectory::TemporaryDirectory(const std::filesystem::path& inside) {
  std::string name = (inside / "ingot-test-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary directory can be made: " + name);
  path_ = name;
}

TemporaryDirectory::~TemporaryDirectory() {
  std::error_code error;
  std::filesystem::remove_all(path_, error);
}

}  // namespace ingot::test
