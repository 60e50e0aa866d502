#include "ingot/runtime/util/environment.h"

#include <stdlib.h>

namespace ingot {

std::optional<std::string> environment(const char* name) {
  const char* value = ::secure_getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return value;
}

}  // namespace ingot
