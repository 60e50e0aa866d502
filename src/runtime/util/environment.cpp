#include "ingot/runtime/util/environment.h"

#include <fmt/format.h>
#include <stdlib.h>

#include "ingot/runtime/util/error.h"
#include "ingot/runtime/util/text.h"

namespace ingot {

std::optional<std::string> environment(const char* name) {
  const char* value = ::secure_getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return value;
}

std::optional<std::filesystem::path> environment_path(const char* name) {
  const std::optional<std::string> value = environment(name);
  if (!value) return std::nullopt;
  return expand_home(name, *value);
}

std::filesystem::path expand_home(const char* name, const std::string& path) {
  if (!path.starts_with('~')) return path;
  const std::string home = environment("HOME").value_or("");
  const bool is_own = path.size() == 1 || path[1] == '/';
  if (is_own && home.starts_with('/')) return home + path.substr(1);
  throw Error(
      ErrorCode::invalid_argument, name,
      fmt::format("is \"{}\", where {}; write the folder's whole path, or ./~ for one of that name", printable(path),
                  is_own ? "~ stands for HOME, which is not set" : "only a shell knows which folder that is"));
}

}  // namespace ingot
