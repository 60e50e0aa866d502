// Lines of JSON that carry their own checksum: the last field of each object hashes all text before it, so that a
// truncated or changed line is detected before anything in it is used.
//
//   {...,"checksum":"<32 hex: XXH3-128 of all before the comma>"}
#pragma once

#include <string>
#include <string_view>

namespace ingot {

// Appends the checksum to the text of an object with at least one field.
std::string with_checksum(std::string object);

// Empty if the line is as with_checksum() made it; otherwise what is wrong: "is truncated", "does not match its
// checksum" ...
std::string checksum_fault(std::string_view line);

}  // namespace ingot
