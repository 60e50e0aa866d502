// When something was measured.
#pragma once

#include <string>

namespace ingot {

std::string today();  // UTC, "2026-11-21"

}  // namespace ingot
