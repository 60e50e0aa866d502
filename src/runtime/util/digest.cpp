#include "ingot/runtime/util/digest.h"

#include <fmt/format.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <iterator>

namespace ingot {

Digest digest(std::string_view bytes) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits(bytes.data(), bytes.size()));
  Digest result;
  std::copy(std::begin(canonical.digest), std::end(canonical.digest), result.begin());
  return result;
}

Digest digest_fields(std::initializer_list<std::string_view> fields) {
  std::string bytes;
  for (const std::string_view field : fields) {
    for (int shift = 0; shift < 64; shift += 8) {
      bytes.push_back(static_cast<char>((std::uint64_t{field.size()} >> shift) & 0xffU));
    }
    bytes.append(field);
  }
  return digest(bytes);
}

std::string print(const Digest& digest) {
  std::string text;
  for (const std::uint8_t byte : digest) fmt::format_to(std::back_inserter(text), "{:02x}", byte);
  return text;
}

}  // namespace ingot
