#include "ingot/runtime/util/write_file.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "ingot/runtime/error.h"
#include "ingot/runtime/util/file_size_signal.h"

namespace ingot {

void write_file(const std::filesystem::path& file, std::initializer_list<std::string_view> parts) {
  const FileSizeSignal ignored;
  errno = 0;
  std::ofstream stream(file, std::ios::binary | std::ios::trunc);
  for (const std::string_view part : parts) stream << part;
  stream.close();
  if (stream) return;
  throw Error(ErrorCode::io_failed, file.string(),
              fmt::format("cannot be written: {}", errno == 0 ? "the disk may be full" : std::strerror(errno)));
}

}  // namespace ingot
