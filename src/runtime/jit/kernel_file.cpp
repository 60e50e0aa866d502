// The checksum is verified before anything is parsed, so that a damaged file never reaches the parser. The parser
// checks its bounds all the same: checksums detect accidents, but a file with a valid checksum may still have been
// written wrongly.
#include "ingot/runtime/jit/kernel_file.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "ingot/runtime/util/count_of.h"
#include "ingot/runtime/util/little_endian.h"

namespace ingot {
namespace {

constexpr std::size_t kHashBytes = 16;
constexpr std::size_t kLengthBytes = sizeof(std::uint64_t);
constexpr std::size_t kHeaderBytes = kKernelFileMagic.size() + sizeof(KernelKey) + kLengthBytes;
constexpr std::size_t kResourcesBytes = 4 * sizeof(std::int32_t);
static_assert(sizeof(KernelKey) == kHashBytes);
constexpr const char* kWrongShape = "has a payload of the wrong shape";

void append_field(std::string& bytes, std::string_view field) {
  append_little_endian(bytes, std::uint64_t{field.size()});
  bytes.append(field);
}

std::string encode_resources(const KernelResources& resources) {
  std::string bytes;
  for (const int value :
       {resources.registers, resources.spill_bytes, resources.stack_bytes, resources.static_shared_bytes}) {
    append_little_endian(bytes, std::int32_t{value});
  }
  return bytes;
}

KernelResources decode_resources(std::string_view bytes) {
  const auto value = [bytes](std::size_t i) {
    return int{little_endian_at<std::int32_t>(bytes, i * sizeof(std::int32_t))};
  };
  return {.registers = value(0), .spill_bytes = value(1), .stack_bytes = value(2), .static_shared_bytes = value(3)};
}

// Takes length-prefixed fields off the front of a payload.
class Fields {
 public:
  explicit Fields(std::string_view payload) : rest_(payload) {}

  std::string_view next() {
    if (!good_ || rest_.size() < kLengthBytes) return fail();
    const auto bytes = little_endian_at<std::uint64_t>(rest_, 0);
    rest_.remove_prefix(kLengthBytes);
    if (bytes > rest_.size()) return fail();
    const std::string_view field = rest_.substr(0, static_cast<std::size_t>(bytes));
    rest_.remove_prefix(field.size());
    return field;
  }
  // Was every field there, and nothing after the last?
  bool complete() const { return good_ && rest_.empty(); }

 private:
  std::string_view fail() {
    good_ = false;
    return {};
  }

  std::string_view rest_;
  bool good_ = true;
};

// The fields of a payload, in their order.
struct Payload {
  std::string_view target;
  std::string_view source_name;
  std::string_view source_text;
  std::string_view toolchain;
  std::string_view lowered_name;
  std::string_view log;
  std::string_view resources;
  std::string_view cubin;
};

// Views into a file that is as it was written; otherwise nothing, with the reason in `problem`.
std::optional<Payload> open_payload(std::string_view file, const KernelKey& key, std::string& problem) {
  const auto refuse = [&problem](std::string why) {
    problem = std::move(why);
    return std::nullopt;
  };
  if (file.size() < kHeaderBytes + kHashBytes) {
    return refuse(
        fmt::format("is truncated: {}, of at least {}", count_of(file.size(), "byte"), kHeaderBytes + kHashBytes));
  }
  if (!file.starts_with(kKernelFileMagic)) return refuse(fmt::format("does not start with \"{}\"", kKernelFileMagic));
  if (file.substr(kKernelFileMagic.size(), sizeof(KernelKey)) != bytes_of(key)) return refuse("holds another kernel");
  const std::uint64_t payload_bytes = file.size() - kHeaderBytes - kHashBytes;
  const auto written_bytes = little_endian_at<std::uint64_t>(file, kHeaderBytes - kLengthBytes);
  if (written_bytes != payload_bytes) {
    return refuse(
        fmt::format("is not as long as it was written: {} bytes of payload, of {}", payload_bytes, written_bytes));
  }
  const std::string_view hashed = file.substr(0, file.size() - kHashBytes);
  if (bytes_of(digest(hashed)) != file.substr(hashed.size())) return refuse("does not match its checksum");

  Fields fields(hashed.substr(kHeaderBytes));
  Payload payload;
  for (std::string_view* const field : {&payload.target, &payload.source_name, &payload.source_text, &payload.toolchain,
                                        &payload.lowered_name, &payload.log, &payload.resources, &payload.cubin}) {
    *field = fields.next();
  }
  if (!fields.complete() || payload.resources.size() != kResourcesBytes) return refuse(kWrongShape);
  return payload;
}

CompiledKernel kernel_of(const Payload& payload) {
  CompiledKernel kernel{.lowered_name = std::string(payload.lowered_name),
                        .cubin = std::vector<std::byte>(payload.cubin.size()),
                        .resources = decode_resources(payload.resources),
                        .log = std::string(payload.log),
                        .toolchain = std::string(payload.toolchain)};
  if (!payload.cubin.empty()) std::memcpy(kernel.cubin.data(), payload.cubin.data(), payload.cubin.size());
  return kernel;
}

}  // namespace

std::string kernel_file_path(const KernelKey& key) {
  const std::string digits = print(key);
  return fmt::format("{}/{}.kernel", digits.substr(0, 2), digits);
}

std::optional<KernelKey> kernel_of_path(std::string_view path) {
  constexpr std::size_t kFolder = 3;  // "ab/"
  KernelKey key{};
  if (path.size() < kFolder + 2 * key.size()) return std::nullopt;
  for (std::size_t i = 0; i < key.size(); ++i) {
    const char* const digits = path.data() + kFolder + 2 * i;
    if (std::from_chars(digits, digits + 2, key[i], 16).ptr != digits + 2) return std::nullopt;
  }
  if (kernel_file_path(key) != path) return std::nullopt;
  return key;
}

std::string encode_kernel_file(const KernelKey& key, const Source& source, Target target,
                               const CompiledKernel& kernel) {
  std::string payload;
  append_field(payload, print(target));
  append_field(payload, source.name);
  append_field(payload, source.text);
  append_field(payload, kernel.toolchain);
  append_field(payload, kernel.lowered_name);
  append_field(payload, kernel.log);
  append_field(payload, encode_resources(kernel.resources));
  append_field(payload, {reinterpret_cast<const char*>(kernel.cubin.data()), kernel.cubin.size()});

  std::string file(kKernelFileMagic);
  file.append(bytes_of(key));
  append_little_endian(file, std::uint64_t{payload.size()});
  file.append(payload);
  const Digest checksum = digest(file);
  file.append(bytes_of(checksum));
  return file;
}

std::optional<CompiledKernel> decode_kernel_file(std::string_view file, const KernelKey& key, std::string& problem,
                                                 const KernelWanted* wanted) {
  const std::optional<Payload> payload = open_payload(file, key, problem);
  if (!payload) return std::nullopt;
  if (wanted != nullptr && (payload->source_text != wanted->source.text || payload->target != print(wanted->target))) {
    problem = "holds a kernel of another source or target than its key says";
    return std::nullopt;
  }
  return kernel_of(*payload);
}

std::optional<KernelFile> read_kernel_file(std::string_view file, const KernelKey& key, std::string& problem) {
  const std::optional<Payload> payload = open_payload(file, key, problem);
  if (!payload) return std::nullopt;
  const std::optional<Target> target = parse_target(payload->target);
  if (!target) {
    problem = kWrongShape;
    return std::nullopt;
  }
  return KernelFile{.target = *target,
                    .source = {.name = std::string(payload->source_name), .text = std::string(payload->source_text)},
                    .kernel = kernel_of(*payload)};
}

}  // namespace ingot
