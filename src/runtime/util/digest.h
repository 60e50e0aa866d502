// XXH3-128 hashes, as 16 bytes: they name the stores' files and detect damaged ones.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include "ingot/api.h"

namespace ingot {

using Digest = std::array<std::uint8_t, 16>;

INGOT_API Digest digest(std::string_view bytes);
// Hashes each field's length before the field, so that two different lists of fields never hash the same bytes.
INGOT_API Digest digest_fields(std::initializer_list<std::string_view> fields);

// The 16 bytes themselves, as they stand in a file. Lives as long as the digest.
inline std::string_view bytes_of(const Digest& digest) {
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

// 32 hex digits.
INGOT_API std::string print(const Digest& digest);

}  // namespace ingot
