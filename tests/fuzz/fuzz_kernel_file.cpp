// A kernel's file in the store.
#include <algorithm>
#include <cstring>
#include <string>

#include "fuzz/targets.h"
#include "ingot/runtime/jit/kernel_file.h"
#include "ingot/runtime/util/digest.h"
#include "ingot/runtime/util/little_endian.h"

namespace ingot::fuzz {
namespace {

// The key that the file claims, so that it is not refused for another.
KernelKey key_in(std::string_view file) {
  KernelKey key{};
  const std::string_view bytes = file.substr(std::min(file.size(), kKernelFileMagic.size())).substr(0, sizeof(key));
  std::memcpy(key.data(), bytes.data(), bytes.size());
  return key;
}

}  // namespace

bool kernel_file(std::string_view input) {
  const KernelKey key = key_in(input);
  std::string problem;
  const auto kernel = decode_kernel_file(input, key, problem);
  require(kernel.has_value() == problem.empty(), "a kernel or a reason, and not both");
  KernelKey other = key;
  other[0] ^= 1;
  require(!decode_kernel_file(input, other, problem), "a kernel for another key");
  return kernel.has_value();
}

bool sealed_kernel_file(std::string_view payload) {
  std::string file(kKernelFileMagic);
  file.append(bytes_of(KernelKey{}));
  append_little_endian(file, std::uint64_t{payload.size()});
  file.append(payload);
  const Digest checksum = digest(file);
  file.append(bytes_of(checksum));
  return kernel_file(file);
}

}  // namespace ingot::fuzz
