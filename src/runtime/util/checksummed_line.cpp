#include "ingot/runtime/util/checksummed_line.h"

#include <cstddef>

#include "ingot/runtime/util/digest.h"

namespace ingot {
namespace {

constexpr std::size_t kHexDigits = 2 * sizeof(Digest);
constexpr std::string_view kChecksum = ",\"checksum\":\"";
constexpr std::string_view kEnd = "\"}";

}  // namespace

std::string with_checksum(std::string object) {
  object.pop_back();
  const std::string checksum = print(digest(object));
  return object.append(kChecksum).append(checksum).append(kEnd);
}

std::string checksum_fault(std::string_view line) {
  constexpr std::size_t kTail = kChecksum.size() + kHexDigits + kEnd.size();
  if (line.size() < kTail || !line.ends_with(kEnd)) return "is truncated";
  const std::string_view hashed = line.substr(0, line.size() - kTail);
  const std::string_view tail = line.substr(hashed.size());
  if (!tail.starts_with(kChecksum)) return "has no checksum at its end";
  if (tail.substr(kChecksum.size(), kHexDigits) != print(digest(hashed))) return "does not match its checksum";
  return {};
}

}  // namespace ingot
