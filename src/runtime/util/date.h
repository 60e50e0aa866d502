// Today's date, for records of measurements.
#pragma once

#include <string>

namespace ingot {

std::string today();  // UTC, "2026-11-21"

}  // namespace ingot
