// XXH3-128 as 16 bytes: what names files and tells damaged ones.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

namespace ingot {

using Digest = std::array<std::uint8_t, 16>;

Digest digest(std::string_view bytes);
// Each field is hashed with its length before it, so that no two lists of fields can run together into the same bytes.
Digest digest_fields(std::initializer_list<std::string_view> fields);

// 32 hex digits.
std::string print(const Digest& digest);

}  // namespace ingot
