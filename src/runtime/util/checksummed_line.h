// A JSON object on one line whose last field is the checksum of all before it: a torn or changed line shows before
// anything in it is believed.
//
//   {...,"checksum":"<32 hex: XXH3-128 of all before the comma>"}
#pragma once

#include <string>
#include <string_view>

namespace ingot {

// Of the text of an object that has a field.
std::string with_checksum(std::string object);

// Empty, or how the line is not as with_checksum() made it: "is truncated", "does not match its checksum" ...
std::string checksum_fault(std::string_view line);

}  // namespace ingot
