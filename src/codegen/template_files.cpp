#include "ingot/codegen/template_files.h"

#include <fstream>
#include <iterator>
#include <system_error>

#include "ingot/runtime/util/error.h"

namespace ingot {
namespace {

namespace fs = std::filesystem;

// Asked before it is opened: opening a FIFO would wait, and a device may have no end.
void check_regular(const fs::directory_entry& entry) {
  constexpr std::uintmax_t kMostBytes = 16 << 20;
  std::error_code error;
  const auto refuse = [&](const char* why) {
    throw Error(ErrorCode::io_failed, entry.path().string(),
                std::string("this template ") + why + "; remove it from the folder of templates");
  };
  const fs::file_status status = entry.status(error);
  if (!fs::exists(status)) return;  // a link that leads nowhere: reading it says so
  if (!fs::is_regular_file(status)) refuse("is not a regular file");
  if (entry.file_size(error) > kMostBytes) refuse("has more than 16 MiB");
}

std::string read(const fs::path& file) {
  std::ifstream stream(file, std::ios::binary);
  std::string content{std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
  if (!stream.is_open() || stream.bad()) {
    throw Error(ErrorCode::io_failed, file.string(), "this template cannot be read; check its permissions");
  }
  return content;
}

}  // namespace

TemplateFiles read_templates(const fs::path& folder) {
  TemplateFiles files;
  std::error_code error;
  auto entry = fs::recursive_directory_iterator(folder, error);
  for (; !error && entry != fs::recursive_directory_iterator(); entry.increment(error)) {
    if (entry->path().extension() != ".cuh" || entry->is_directory(error)) continue;
    check_regular(*entry);
    files.emplace(entry->path().lexically_relative(folder).generic_string(), read(entry->path()));
  }
  if (error) {
    throw Error(ErrorCode::not_found, folder.string(),
                "the folder of templates cannot be read (" + error.message() +
                    "); INGOT_TEMPLATES must name the templates folder of Ingot's source tree, or be unset");
  }
  if (files.empty()) {
    throw Error(ErrorCode::not_found, folder.string(),
                "the folder of templates holds no .cuh file; INGOT_TEMPLATES must name the templates folder of Ingot's "
                "source tree, or be unset");
  }
  return files;
}

}  // namespace ingot
