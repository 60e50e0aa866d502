#include "ingot/version.h"

namespace ingot {

int version_number() noexcept { return INGOT_VERSION; }
const char* version_string() noexcept { return INGOT_VERSION_STRING; }

}  // namespace ingot
