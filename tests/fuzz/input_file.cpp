#include "fuzz/input_file.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <stdexcept>
#include <string>

namespace ingot::fuzz {

InputFile::InputFile(std::string_view content) : file_(memfd_create("fuzzed", MFD_CLOEXEC)) {
  if (!file_ || fchmod(file_.get(), 0600) != 0 || !write_all(file_.get(), content)) {
    throw std::runtime_error("no file in memory");
  }
  path_ = "/proc/self/fd/" + std::to_string(file_.get());
}

}  // namespace ingot::fuzz
