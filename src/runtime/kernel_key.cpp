// Each field is hashed with its length before it, so that no two lists of fields can run together into the same bytes.
#include "ingot/runtime/kernel_key.h"

#include <fmt/format.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <iterator>
#include <string_view>

#include "ingot/runtime/kernel_file.h"

namespace ingot {
namespace {

void append_field(std::string& bytes, std::string_view field) {
  for (int shift = 0; shift < 64; shift += 8) {
    bytes.push_back(static_cast<char>((std::uint64_t{field.size()} >> shift) & 0xffU));
  }
  bytes.append(field);
}

}  // namespace

KernelKey kernel_key(const Source& source, Target target, const Compiler& compiler) {
  std::string bytes;
  append_field(bytes, kKernelFileMagic);
  append_field(bytes, compiler.identity());
  append_field(bytes, print(target));
  append_field(bytes, source.text);
  XXH128_canonical_t digest;
  XXH128_canonicalFromHash(&digest, XXH3_128bits(bytes.data(), bytes.size()));
  KernelKey key;
  std::copy(std::begin(digest.digest), std::end(digest.digest), key.begin());
  return key;
}

std::string print(const KernelKey& key) {
  std::string text;
  for (const std::uint8_t byte : key) fmt::format_to(std::back_inserter(text), "{:02x}", byte);
  return text;
}

}  // namespace ingot
