// The format of kernel files: pinned bytes, every flipped bit and every truncation is detected, and the parser checks
// its bounds.
#include <boost/test/unit_test.hpp>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstring>

#include "ingot/runtime/jit/kernel_file.h"

BOOST_AUTO_TEST_SUITE(test_kernel_file)

using namespace ingot;

namespace {

// Made from the grammar in kernel_file.h with Python's struct module and the xxHash library. A change here invalidates
// every existing store: give the format a new magic then.
constexpr std::string_view kGolden =
    "494e474f544b30321f2545fa708cf55c5936b17b7f17531c78000000000000000600000000000000736d5f3930610800"
    "00000000000061206b65726e656c040000000000000074657874080000000000000066616b6520312e30050000000000"
    "00005f5a316b7603000000000000006c6f67100000000000000020000000ffffffff0201000000000100060000000000"
    "00007f454c4600ffdd87d56b51206977165d9e0da10901e0";
constexpr KernelKey kKey{0x1f, 0x25, 0x45, 0xfa, 0x70, 0x8c, 0xf5, 0x5c,
                         0x59, 0x36, 0xb1, 0x7b, 0x7f, 0x17, 0x53, 0x1c};

constexpr std::size_t kLengthAt = 24;
constexpr std::size_t kPayloadAt = 32;
constexpr std::size_t kChecksumBytes = 16;

std::string golden() {
  std::string bytes;
  for (std::size_t i = 0; i < kGolden.size(); i += 2) {
    bytes.push_back(static_cast<char>(std::stoi(std::string(kGolden.substr(i, 2)), nullptr, 16)));
  }
  return bytes;
}

CompiledKernel kernel() {
  const auto byte = [](unsigned char value) { return std::byte{value}; };
  return {.lowered_name = "_Z1kv",
          .cubin = {byte(0x7f), byte('E'), byte('L'), byte('F'), byte(0), byte(0xff)},
          .resources = {.registers = 32, .spill_bytes = -1, .stack_bytes = 258, .static_shared_bytes = 65536},
          .log = "log",
          .toolchain = "fake 1.0"};
}

std::string problem_of(std::string_view file, const KernelKey& key = kKey) {
  std::string problem;
  BOOST_TEST(!decode_kernel_file(file, key, problem).has_value());
  return problem;
}

void set_length(std::string& file, std::size_t offset, std::uint64_t value) {
  std::memcpy(file.data() + offset, &value, sizeof(value));  // the tests run on little-endian machines
}

// Returns a file with this payload and matching lengths and checksum.
std::string with_payload(std::string_view payload) {
  std::string file = golden().substr(0, kPayloadAt);
  file.append(payload);
  set_length(file, kLengthAt, payload.size());
  XXH128_canonical_t digest;
  XXH128_canonicalFromHash(&digest, XXH3_128bits(file.data(), file.size()));
  file.append(reinterpret_cast<const char*>(digest.digest), kChecksumBytes);
  return file;
}

}  // namespace

BOOST_AUTO_TEST_CASE(format_is_pinned) {
  const std::string file = encode_kernel_file(kKey, {.name = "a kernel", .text = "text"}, {9, 0, true}, kernel());
  BOOST_TEST((file == golden()));
  std::string problem;
  const auto decoded = decode_kernel_file(golden(), kKey, problem);
  BOOST_REQUIRE(decoded.has_value());
  BOOST_TEST((*decoded == kernel()));
  BOOST_TEST(problem.empty());
}

BOOST_AUTO_TEST_CASE(empty_fields_come_back) {
  std::string problem;
  const auto decoded = decode_kernel_file(encode_kernel_file(kKey, {}, {}, {}), kKey, problem);
  BOOST_REQUIRE(decoded.has_value());
  BOOST_TEST((*decoded == CompiledKernel{}));
}

BOOST_AUTO_TEST_CASE(every_flipped_bit_is_found) {
  for (std::size_t i = 0; i < golden().size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string file = golden();
      file[i] = static_cast<char>(file[i] ^ (1 << bit));
      std::string problem;
      BOOST_TEST(!decode_kernel_file(file, kKey, problem).has_value(), "bit " << bit << " of byte " << i);
      BOOST_TEST(!problem.empty());
    }
  }
}

BOOST_AUTO_TEST_CASE(every_truncation_is_found) {
  for (std::size_t bytes = 0; bytes < golden().size(); ++bytes) {
    std::string problem;
    BOOST_TEST(!decode_kernel_file(golden().substr(0, bytes), kKey, problem).has_value(), bytes << " bytes");
    BOOST_TEST(!problem.empty());
  }
}

BOOST_AUTO_TEST_CASE(messages) {
  KernelKey other = kKey;
  other[15] ^= 1;
  BOOST_TEST(problem_of(golden(), other) == "holds another kernel");
  BOOST_TEST(problem_of("") == "is truncated: 0 bytes, of at least 48");
  BOOST_TEST(problem_of("INGOTK01" + golden().substr(8)) == "does not start with \"INGOTK02\"");
  BOOST_TEST(problem_of(golden() + "x") == "is not as long as it was written: 121 bytes of payload, of 120");
  std::string flipped = golden();
  flipped[100] = static_cast<char>(flipped[100] ^ 1);
  BOOST_TEST(problem_of(flipped) == "does not match its checksum");
}

// Invalid files with a valid checksum: here only the parser guards the memory.
BOOST_AUTO_TEST_CASE(parser_checks_its_bounds) {
  const std::string payload = golden().substr(kPayloadAt, golden().size() - kPayloadAt - kChecksumBytes);
  std::string problem;
  BOOST_TEST(decode_kernel_file(with_payload(payload), kKey, problem).has_value());

  for (std::size_t bytes = 0; bytes < payload.size(); ++bytes) {
    BOOST_TEST(problem_of(with_payload(payload.substr(0, bytes))) == "has a payload of the wrong shape");
  }
  BOOST_TEST(problem_of(with_payload(payload + "x")) == "has a payload of the wrong shape");
  std::size_t at = 0;
  for (int field = 0; field < 8; ++field) {
    std::uint64_t length = 0;
    std::memcpy(&length, payload.data() + at, sizeof(length));
    for (const std::uint64_t wrong : {length + 1, length - 1, ~std::uint64_t{0}, ~std::uint64_t{0} - 7,
                                      std::uint64_t{1} << 63U, std::uint64_t{payload.size()}}) {
      std::string changed = payload;
      set_length(changed, at, wrong);
      BOOST_TEST(problem_of(with_payload(changed)) == "has a payload of the wrong shape", "field " << field);
    }
    at += sizeof(length) + length;
  }
  BOOST_TEST(at == payload.size());
  // The resources, of another size than four numbers, with all lengths right.
  std::string longer = payload;
  const std::size_t resources = payload.find(std::string("\x10\0\0\0\0\0\0\0", 8), 50);
  BOOST_REQUIRE(resources != std::string::npos);
  longer.insert(resources + 8, 1, 'x');
  set_length(longer, resources, 17);
  BOOST_TEST(problem_of(with_payload(longer)) == "has a payload of the wrong shape");
}

BOOST_AUTO_TEST_CASE(everything_a_file_says) {
  const Source source{.name = "a kernel", .text = "text"};
  std::string problem;
  const auto read = read_kernel_file(encode_kernel_file(kKey, source, {8, 9, false}, kernel()), kKey, problem);
  BOOST_REQUIRE_MESSAGE(read.has_value(), problem);
  BOOST_TEST((read->source == source));
  BOOST_TEST(print(read->target) == "sm_89");
  BOOST_TEST((read->kernel == kernel()));
  BOOST_TEST(!read_kernel_file(golden() + "x", kKey, problem).has_value());
  BOOST_TEST(problem == "is not as long as it was written: 121 bytes of payload, of 120");
  // A target that no Ingot writes, under a valid checksum: the first field is "sm_90a".
  std::string payload = golden().substr(kPayloadAt, golden().size() - kPayloadAt - kChecksumBytes);
  BOOST_REQUIRE(payload.substr(8, 6) == "sm_90a");
  payload[8] = 'x';
  BOOST_TEST(!read_kernel_file(with_payload(payload), kKey, problem).has_value());
  BOOST_TEST(problem == "has a payload of the wrong shape");
}

BOOST_AUTO_TEST_CASE(a_path_and_its_key) {
  const std::string path = kernel_file_path(kKey);
  const auto key = kernel_of_path(path);
  BOOST_REQUIRE(key.has_value());
  BOOST_TEST((*key == kKey));
  std::string upper = path;
  upper.replace(3, 2, "AB");
  for (const std::string& other :
       {std::string(), std::string("ab/notes.kernel"), "zz" + path.substr(2), path + "x", path.substr(1), "x" + path,
        path.substr(0, path.size() - 1), path.substr(0, 20), upper,
        path.substr(0, 3) + std::string(32, 'g') + ".kernel", path.substr(0, 2) + "_" + path.substr(3)}) {
    BOOST_TEST(!kernel_of_path(other).has_value(), other);
  }
}

BOOST_AUTO_TEST_SUITE_END()
