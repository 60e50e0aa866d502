// A bundle. The sealed form makes the header, with its offset, its size and a right checksum.
#include <algorithm>
#include <string>

#include "fuzz/input_file.h"
#include "fuzz/targets.h"
#include "ingot/runtime/jit/kernel_bundle.h"
#include "ingot/runtime/util/digest.h"
#include "ingot/runtime/util/little_endian.h"

namespace ingot::fuzz {

bool bundle(std::string_view input) {
  const InputFile file(input);
  std::string problem;
  const auto opened = KernelBundle::open(file.path(), problem);
  require((opened != nullptr) == problem.empty(), "a bundle or a reason, and not both");
  if (opened == nullptr) return false;
  for (const KernelBundle::Entry& entry : opened->entries()) {
    require(static_cast<std::int64_t>(opened->file_of(entry).size()) == entry.bytes, "an entry beyond the end");
    opened->find(entry.key);
  }
  opened->find(KernelKey{});
  std::int64_t lines = 0;
  opened->read_tuning([&](const TuningLine& line) {
    require(!line.text.empty() && line.problem.empty(), "a line without its text");
    ++lines;
    return true;
  });
  // Empty lines count for nothing when they are read, and the last may lack its end.
  require(lines <= opened->count_tuning() + 1, "more tuning records than were counted");
  return true;
}

// The first two bytes say how much of the rest is data; what follows is the index.
bool sealed_bundle(std::string_view input) {
  std::size_t data_bytes = 0;
  for (int i = 0; i < 2 && !input.empty(); ++i) {
    data_bytes = data_bytes * 256 + static_cast<unsigned char>(input[0]);
    input.remove_prefix(1);
  }
  const std::string_view data = input.substr(0, std::min(data_bytes, input.size()));
  const std::string_view index = input.substr(data.size());
  constexpr std::uint64_t kHeader = 40;
  std::string file(kBundleMagic);
  append_little_endian(file, std::uint64_t{kHeader + data.size()});
  append_little_endian(file, std::uint64_t{index.size()});
  const Digest checksum = digest(index);
  file += bytes_of(checksum);
  return bundle(file.append(data).append(index));
}

}  // namespace ingot::fuzz
