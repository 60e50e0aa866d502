// Reading and writing safetensors: against a file that the test builds by hand, every refusal, and twenty thousand
// damaged files.
#include "ingot/nn/weights/safetensors.h"

#include <boost/test/unit_test.hpp>

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "ingot/runtime/util/file_descriptor.h"
#include "support/expect_error.h"
#include "support/temporary_directory.h"

namespace ingot {
BOOST_AUTO_TEST_SUITE(test_safetensors)

namespace {

namespace fs = std::filesystem;
using test::check_contains;
using test::error_of;
using test::TemporaryDirectory;

std::string read_text(const fs::path& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}
void write_text(const fs::path& file, const std::string& content) {
  std::ofstream(file, std::ios::binary | std::ios::trunc) << content;
}

std::string text_of(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}
std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

// Returns the bytes of a file with this header and data.
std::string file_of(const std::string& header, const std::string& data) {
  std::string text;
  for (std::size_t i = 0; i < 8; ++i) text += static_cast<char>(header.size() >> (8 * i) & 0xffU);
  return text + header + data;
}

// Two tensors, 8 bytes of data.
const std::string kHeader =
    R"({"__metadata__":{"made":"by hand"},"b":{"dtype":"U8","shape":[2,2],"data_offsets":[4,8]},)"
    R"("a":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]}} )";

class Folder {
 public:
  fs::path path(const std::string& name) const { return folder_.path() / name; }
  fs::path file(const std::string& content) const {
    write_text(path("file"), content);
    return path("file");
  }
  // Returns the message of opening a file with this content.
  std::string refusal(const std::string& content) const {
    const fs::path at = file(content);
    const std::string message = error_of([&] { SafetensorsFile::open(at); }, ErrorCode::io_failed);
    check_contains(message, {at.string()});
    return message;
  }

 private:
  TemporaryDirectory folder_;
};

BOOST_AUTO_TEST_CASE(a_file_made_by_hand_is_read) {
  const Folder folder;
  const SafetensorsFile file = SafetensorsFile::open(folder.file(file_of(kHeader, "12345678")));
  BOOST_REQUIRE(file.tensors().size() == 2U);
  const StoredTensor& a = file.tensors()[0];
  BOOST_TEST(a.name == "a");
  BOOST_TEST(a.type == "BF16");
  BOOST_TEST((a.dtype == Dtype::bf16));
  BOOST_TEST((a.shape == std::vector<std::int64_t>{2}));
  BOOST_TEST(text_of(file.read(a)) == "1234");
  const StoredTensor& b = file.at("b");
  BOOST_TEST((b.shape == std::vector<std::int64_t>{2, 2}));
  BOOST_TEST(!b.dtype.has_value());
  BOOST_TEST(text_of(file.read(b)) == "5678");
  BOOST_TEST(file.metadata().at("made") == "by hand");
  std::array<std::byte, 2> part{};
  file.read(b, 1, part);
  BOOST_TEST(std::to_integer<int>(part[0]) == '6');
  BOOST_TEST(file.find("c") == nullptr);
  check_contains(error_of([&] { static_cast<void>(file.at("c")); }, ErrorCode::not_found), {"has no tensor \"c\""});
  check_contains(error_of([&] { file.read(b, 3, part); }, ErrorCode::invalid_argument),
                 {"tensor \"b\"", "has 4 bytes", "2 bytes from byte 3 on"});
}

BOOST_AUTO_TEST_CASE(what_is_written_is_these_bytes) {
  const Folder folder;
  const std::string codes = "abc";
  const std::string values = "01234567";
  write_safetensors(
      folder.path("out"),
      std::vector<TensorToStore>{{.name = "w", .type = "F8_E4M3", .shape = {3, 1}, .bytes = bytes_of(codes)},
                                 {.name = "s", .type = "F32", .shape = {2}, .bytes = bytes_of(values)},
                                 {.name = "none", .type = "F32", .shape = {0, 5}, .bytes = {}}},
      {{"format", "pt"}});
  std::string header = R"({"__metadata__":{"format":"pt"},"s":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                       R"("none":{"dtype":"F32","shape":[0,5],"data_offsets":[8,8]},)"
                       R"("w":{"dtype":"F8_E4M3","shape":[3,1],"data_offsets":[8,11]}})";
  header.resize(256 - 8, ' ');
  BOOST_TEST(read_text(folder.path("out")) == file_of(header, "01234567abc"));
  BOOST_TEST(std::distance(fs::directory_iterator(folder.path("")), {}) == 1);  // nothing else is left
}

BOOST_AUTO_TEST_CASE(every_type_goes_round) {
  const Folder folder;
  struct Case {
    const char* type;
    std::size_t bits;
  };
  const std::vector<Case> cases{{"F64", 64},        {"I64", 64},        {"U64", 64},    {"F32", 32},    {"I32", 32},
                                {"U32", 32},        {"F16", 16},        {"BF16", 16},   {"I16", 16},    {"U16", 16},
                                {"F8_E4M3", 8},     {"F8_E5M2", 8},     {"I8", 8},      {"U8", 8},      {"BOOL", 8},
                                {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"F6_E3M2", 6}, {"F6_E2M3", 6}, {"F4", 4},
                                {"F8_E8M0", 8}};
  std::mt19937 random(1);
  std::vector<std::string> contents;
  for (const Case& each : cases) {
    std::string content(12 * each.bits / 8, '\0');
    for (char& byte : content) byte = static_cast<char>(random() & 0xffU);
    contents.push_back(content);
  }
  std::vector<TensorToStore> tensors;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    tensors.push_back({.name = std::string("tensor ") + cases[i].type,
                       .type = cases[i].type,
                       .shape = {1, 3, 4},
                       .bytes = bytes_of(contents[i])});
  }
  const std::string scalar = "s";
  tensors.push_back({.name = "\xc3\xa4 \"quoted\"", .type = "U8", .shape = {}, .bytes = bytes_of(scalar)});
  write_safetensors(folder.path("all.safetensors"), tensors);
  write_safetensors(folder.path("all.safetensors"), tensors);  // over the old one
  const SafetensorsFile file = SafetensorsFile::open(folder.path("all.safetensors"));
  BOOST_TEST(file.tensors().size() == tensors.size());
  BOOST_TEST(file.metadata().empty());
  for (const TensorToStore& tensor : tensors) {
    BOOST_TEST_CONTEXT(tensor.name) {
      const StoredTensor& stored = file.at(tensor.name);
      BOOST_TEST(stored.type == tensor.type);
      BOOST_TEST((stored.shape == tensor.shape));
      BOOST_TEST(text_of(file.read(stored)) == text_of({tensor.bytes.begin(), tensor.bytes.end()}));
    }
  }
  for (const Dtype dtype : {Dtype::f32, Dtype::bf16, Dtype::f16, Dtype::e4m3fn, Dtype::e5m2, Dtype::e4m3fnuz,
                            Dtype::e5m2fnuz, Dtype::e8m0fnu, Dtype::e3m2fn, Dtype::e2m3fn, Dtype::e2m1fn}) {
    const StoredTensor& stored = file.at("tensor " + std::string(safetensors_type(dtype)));
    BOOST_TEST((stored.dtype == dtype));
  }
}

BOOST_AUTO_TEST_CASE(no_tensors_at_all) {
  const Folder folder;
  write_safetensors(folder.path("empty"), {});
  BOOST_TEST(SafetensorsFile::open(folder.path("empty")).tensors().empty());
  BOOST_TEST(SafetensorsFile::open(folder.file(file_of("{}", ""))).tensors().empty());
}

// ---- What is refused -----------------------------------------------------------------------------------------------

BOOST_AUTO_TEST_CASE(files_that_are_none) {
  const Folder folder;
  check_contains(error_of([&] { SafetensorsFile::open(folder.path("missing")); }, ErrorCode::not_found),
                 {"missing", "cannot be opened", "No such file"});
  check_contains(error_of([&] { SafetensorsFile::open(folder.path("")); }, ErrorCode::io_failed),
                 {"not a regular file"});
  check_contains(folder.refusal(""), {"has 0 bytes", "cut short"});
  check_contains(folder.refusal("1234567"), {"has 7 bytes", "cut short"});
  check_contains(folder.refusal(std::string(8, '\xff')), {"18446744073709551615 bytes", "at most 100000000"});
  check_contains(folder.refusal(file_of(kHeader, "12345678").substr(0, 60)), {"only 52 follow", "cut short"});
  check_contains(folder.refusal(file_of("", "")), {"does not start with {"});
  check_contains(folder.refusal(file_of("[1]", "")), {"does not start with {"});
  check_contains(folder.refusal(file_of("{\"a\":", "")), {"header is not JSON"});
  check_contains(folder.refusal(file_of("{} {}", "")), {"header is not JSON"});
  check_contains(folder.refusal(file_of("{\"\xff\":1}", "")), {"header is not JSON"});
  check_contains(folder.refusal(file_of("{\"a\":" + std::string(100000, '['), "")), {"header is nested deeper"});
}

// A FIFO that nobody writes to: a blocking open would wait forever.
BOOST_AUTO_TEST_CASE(a_fifo_is_refused_at_once) {
  const Folder folder;
  BOOST_REQUIRE(::mkfifo(folder.path("pipe").c_str(), 0600) == 0);
  check_contains(error_of([&] { SafetensorsFile::open(folder.path("pipe")); }, ErrorCode::io_failed),
                 {"pipe", "is not a regular file"});
  check_contains(error_of([&] { SafetensorsCheckpoint::open(folder.path("pipe")); }, ErrorCode::io_failed),
                 {"is not a regular file"});
}

// A device or a FIFO is written into, and a link followed: none is replaced by a file.
BOOST_AUTO_TEST_CASE(what_is_no_file_is_not_replaced) {
  const Folder folder;
  check_contains(error_of([] { write_safetensors("/dev/full", {}); }, ErrorCode::io_failed),
                 {"/dev/full: cannot be written: No space left on device"});
  BOOST_TEST(fs::is_character_file("/dev/full"));
  BOOST_REQUIRE(::mkfifo(folder.path("pipe").c_str(), 0600) == 0);
  check_contains(error_of([&] { write_safetensors(folder.path("pipe"), {}); }, ErrorCode::io_failed),
                 {"nothing reads from it"});
  BOOST_TEST(fs::is_fifo(folder.path("pipe")));
  fs::create_symlink("target", folder.path("link"));
  write_safetensors(folder.path("link"), {});
  BOOST_TEST(fs::is_symlink(folder.path("link")));
  BOOST_TEST(SafetensorsFile::open(folder.path("target")).tensors().empty());
}

// Opening was quadratic once, and took minutes; so was writing.
BOOST_AUTO_TEST_CASE(many_tensors_are_opened_at_once) {
  constexpr std::size_t kTensors = 80000;
  const Folder folder;
  std::vector<TensorToStore> tensors;
  const std::string byte = "x";
  for (std::size_t i = 0; i < kTensors; ++i) {
    tensors.push_back({.name = "layers." + std::to_string(i), .type = "U8", .shape = {1}, .bytes = bytes_of(byte)});
  }
  const std::clock_t begin = std::clock();  // the processor's time: other programs do not count
  write_safetensors(folder.path("many"), tensors);
  BOOST_TEST(SafetensorsFile::open(folder.path("many")).tensors().size() == kTensors);
  BOOST_TEST(static_cast<double>(std::clock() - begin) < 20.0 * CLOCKS_PER_SEC);
}

// A name from a file must not send control codes to a terminal.
BOOST_AUTO_TEST_CASE(names_are_shown_in_letters) {
  const Folder folder;
  const auto refusal = [&](const std::string& header) { return folder.refusal(file_of(header, "1234")); };
  check_contains(refusal(R"({"\u001b[2J\n":1})"), {"tensor \"?[2J?\" is described by"});
  check_contains(refusal(R"({"a\u0007":1,"a\u0007":1})"), {"has the name \"a?\" twice"});
  check_contains(refusal(R"({"t":{"dtype":"\u001b","shape":[4],"data_offsets":[0,4]}})"), {"unknown dtype \"?\""});
  check_contains(refusal(R"({"__metadata__":{"\u001b":4},"t":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})"),
                 {"not a string, \"?\""});
  check_contains(refusal("{\"" + std::string(100000, 'n') + "\":1}"), {"nnn...\" is described by"});
}

std::string header_with(const std::string& fields) { return "{\"t\":{" + fields + "}}"; }
std::string header_with(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return header_with("\"dtype\":" + dtype + ",\"shape\":" + shape + ",\"data_offsets\":" + offsets);
}

BOOST_AUTO_TEST_CASE(headers_that_say_too_little) {
  const Folder folder;
  const auto refusal = [&](const std::string& header) { return folder.refusal(file_of(header, "1234")); };
  check_contains(refusal("{\"t\":1}"), {"tensor \"t\"", "other than an object"});
  check_contains(refusal(header_with("")), {"tensor \"t\"", "has no dtype"});
  check_contains(refusal(header_with("4", "[4]", "[0,4]")), {"has no dtype"});
  check_contains(refusal(header_with("\"dtype\":\"U8\"")), {"has no shape"});
  check_contains(refusal(header_with("\"U8\"", "4", "[0,4]")), {"has no shape"});
  check_contains(refusal(header_with("\"dtype\":\"U8\",\"shape\":[4]")), {"has no data_offsets of two"});
  for (const char* const offsets : {"4", "[4]", "[0,4,8]", "[0,-4]", "[0,4.0]", "[0,\"4\"]", "[0,1e30]"}) {
    check_contains(refusal(header_with("\"U8\"", "[4]", offsets)), {"has no data_offsets of two whole numbers"});
  }
  check_contains(refusal(header_with("\"F7\"", "[4]", "[0,4]")), {"unknown dtype \"F7\""});
}

BOOST_AUTO_TEST_CASE(headers_that_are_wrong) {
  const Folder folder;
  const auto refusal = [&](const std::string& header) { return folder.refusal(file_of(header, "1234")); };
  for (const char* const shape : {"[-4]", "[4.0]", "[\"4\"]", "[9223372036854775808]", "[[4]]"}) {
    check_contains(refusal(header_with("\"U8\"", shape, "[0,4]")), {"not a whole number of 63 bits"});
  }
  // 2^64, 2^62 elements of 4 bytes, 2^64 next to a zero; five halves of a byte.
  check_contains(refusal(header_with("\"U8\"", "[4294967296,4294967296]", "[0,4]")), {"too large"});
  check_contains(refusal(header_with("\"F32\"", "[2147483648,2147483648]", "[0,4]")), {"too large"});
  check_contains(refusal(header_with("\"U8\"", "[4294967296,4294967296,0]", "[0,0]")), {"too large"});
  check_contains(refusal(header_with("\"F4\"", "[5]", "[0,3]")), {"does not fill whole bytes"});
  check_contains(refusal(header_with("\"U8\"", "[4]", "[4,0]")), {"ends at 0, before it begins at 4"});
  check_contains(refusal(header_with("\"U8\"", "[5]", "[0,5]")), {"ends at 5", "4 bytes of data", "cut short"});
  check_contains(refusal(header_with("\"U8\"", "[3]", "[0,4]")), {"has 4 bytes", "take 3 bytes"});
  check_contains(refusal(header_with("\"F32\"", "[4]", "[0,4]")), {"has 4 bytes", "take 16 bytes"});
  check_contains(refusal(header_with("\"U8\"", "[2]", "[2,4]")), {"2 bytes in front of tensor \"t\"", "no tensor"});
  check_contains(refusal(header_with("\"U8\"", "[2]", "[0,2]")), {"no tensor has its last 2 bytes"});
  check_contains(refusal("{}"), {"its last 4 bytes"});

  const auto second = [](const std::string& name, const std::string& shape, const std::string& offsets) {
    return R"({"t":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},")" + name + R"(":{"dtype":"U8","shape":)" + shape +
           R"(,"data_offsets":)" + offsets + "}}";
  };
  check_contains(refusal(second("u", "[2]", "[2,4]")), {"tensor \"u\" overlaps"});
  check_contains(refusal(second("u", "[0]", "[2,2]")), {"overlaps"});
  check_contains(refusal(second("t", "[1]", "[3,4]")), {"the name \"t\" twice"});
  check_contains(refusal(R"({"t":{"dtype":"U8","dtype":"U8","shape":[4],"data_offsets":[0,4]}})"),
                 {"the name \"dtype\" twice"});
  check_contains(refusal(R"({"__metadata__":4,"t":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})"),
                 {"__metadata__ is not an object"});
  check_contains(refusal(R"({"__metadata__":{"a":4},"t":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})"),
                 {"__metadata__", "not a string", "\"a\""});
}

BOOST_AUTO_TEST_CASE(a_file_that_becomes_shorter) {
  const Folder folder;
  const SafetensorsFile file = SafetensorsFile::open(folder.file(file_of(kHeader, "12345678")));
  fs::resize_file(folder.path("file"), 8 + kHeader.size() + 5);
  BOOST_TEST(text_of(file.read(file.at("a"))) == "1234");
  check_contains(error_of([&] { static_cast<void>(file.read(file.at("b"))); }, ErrorCode::io_failed),
                 {"became shorter"});
}

BOOST_AUTO_TEST_CASE(what_is_not_written) {
  const Folder folder;
  const std::string four = "1234";
  const auto refusal = [&](std::vector<TensorToStore> tensors, ErrorCode code = ErrorCode::invalid_argument) {
    for (TensorToStore& tensor : tensors) tensor.bytes = bytes_of(four);
    return error_of([&] { write_safetensors(folder.path("out"), tensors); }, code);
  };
  write_text(folder.path("out"), "old");
  check_contains(refusal({{.name = "__metadata__", .type = "U8", .shape = {4}, .bytes = {}}}),
                 {"reserved for the file's metadata"});
  check_contains(refusal({{.name = "t", .type = "U8", .shape = {4}, .bytes = {}},
                          {.name = "t", .type = "U8", .shape = {4}, .bytes = {}}}),
                 {"tensor \"t\"", "occurs twice"});
  check_contains(refusal({{.name = "t", .type = "byte", .shape = {4}, .bytes = {}}}), {"unknown type \"byte\""});
  check_contains(refusal({{.name = "t", .type = "U8", .shape = {-4}, .bytes = {}}}), {"negative"});
  check_contains(refusal({{.name = "t", .type = "U8", .shape = {5}, .bytes = {}}}), {"has 4 bytes", "take 5"});
  check_contains(refusal({{.name = "\xff", .type = "U8", .shape = {4}, .bytes = {}}}), {"not UTF-8"});
  BOOST_TEST(read_text(folder.path("out")) == "old");
  check_contains(error_of([&] { write_safetensors(folder.path("no/folder"), {}); }, ErrorCode::io_failed),
                 {"no/folder", "cannot be written", "No such file"});
  fs::create_directory(folder.path("taken"));
  write_text(folder.path("taken/file"), "");
  check_contains(error_of([&] { write_safetensors(folder.path("taken"), {}); }, ErrorCode::io_failed),
                 {"taken", "cannot be written"});
  BOOST_TEST(std::distance(fs::directory_iterator(folder.path("")), {}) == 2);  // no partial file
}

// Threads write different contents to one path; whichever comes last, the file is complete.
BOOST_AUTO_TEST_CASE(two_threads_write_one_file) {
  const Folder folder;
  const fs::path place = folder.path("out");
  const std::string contents[] = {std::string(300'000, 'a'), std::string(500'000, 'b')};
  const auto write = [&](const std::string& content) {
    for (int i = 0; i < 40; ++i) {
      write_safetensors(place, std::vector<TensorToStore>{{.name = "t",
                                                           .type = "U8",
                                                           .shape = {static_cast<std::int64_t>(content.size())},
                                                           .bytes = bytes_of(content)}});
    }
  };
  write(contents[0]);
  int whole = 0;
  {
    const std::jthread first([&] { write(contents[0]); }), second([&] { write(contents[1]); });
    for (int i = 0; i < 40; ++i) {
      const SafetensorsFile file = SafetensorsFile::open(place);
      const std::string text = text_of(file.read(file.at("t")));
      whole += text == contents[0] || text == contents[1] ? 1 : 0;
    }
  }
  BOOST_TEST(whole == 40);
  const SafetensorsFile file = SafetensorsFile::open(place);
  const std::string text = text_of(file.read(file.at("t")));
  BOOST_TEST((text == contents[0] || text == contents[1]));
  BOOST_TEST(std::distance(fs::directory_iterator(folder.path("")), {}) == 1);  // no partial file
}

BOOST_AUTO_TEST_CASE(dtypes_without_a_name_in_the_format) {
  BOOST_TEST(error_of([] { static_cast<void>(safetensors_type(Dtype::u8)); }, ErrorCode::invalid_argument) ==
             "safetensors type: u8 has no name in the format; store its bytes as U8");
}

// ---- Checkpoints of several files ----------------------------------------------------------------------------------

BOOST_AUTO_TEST_CASE(a_checkpoint_is_a_file_an_index_or_a_folder) {
  const Folder folder;
  const std::string data = "12345678";
  write_safetensors(folder.path("one.safetensors"),
                    std::vector<TensorToStore>{{.name = "a", .type = "U8", .shape = {8}, .bytes = bytes_of(data)}});
  write_safetensors(folder.path("two.safetensors"),
                    std::vector<TensorToStore>{{.name = "b", .type = "F32", .shape = {2}, .bytes = bytes_of(data)},
                                               {.name = "c", .type = "I64", .shape = {1}, .bytes = bytes_of(data)}});
  const fs::path index = folder.path("model.safetensors.index.json");
  const auto with_index = [&](const std::string& text) {
    write_text(index, text);
    return error_of([&] { SafetensorsCheckpoint::open(index); }, ErrorCode::io_failed);
  };

  const SafetensorsCheckpoint single = SafetensorsCheckpoint::open(folder.path("two.safetensors"));
  BOOST_TEST((single.names() == std::vector<std::string>{"b", "c"}));
  check_contains(error_of([&] { SafetensorsCheckpoint::open(folder.path("")); }, ErrorCode::not_found),
                 {"neither model.safetensors nor model.safetensors.index.json"});

  BOOST_TEST(
      with_index(R"({"metadata":{"total_size":16},"weight_map":{"a":"one.safetensors","b":"two.safetensors"}})") ==
      "nothing thrown");
  for (const fs::path& path : {index, folder.path("")}) {
    const SafetensorsCheckpoint checkpoint = SafetensorsCheckpoint::open(path);
    BOOST_TEST((checkpoint.names() == std::vector<std::string>{"a", "b"}));
    BOOST_TEST(checkpoint.has("a"));
    BOOST_TEST(!checkpoint.has("c"));
    const auto [file, tensor] = checkpoint.at("b");
    BOOST_TEST(text_of(file->read(*tensor)) == data);
    check_contains(error_of([&] { static_cast<void>(checkpoint.at("c")); }, ErrorCode::not_found),
                   {"has no tensor \"c\""});
  }

  fs::copy_file(folder.path("two.safetensors"), folder.path("model.safetensors"));
  BOOST_TEST((SafetensorsCheckpoint::open(folder.path("")).names() == std::vector<std::string>{"b", "c"}));

  check_contains(with_index(R"({"weight_map":{"z":"one.safetensors"}})"), {"one.safetensors", "lacks tensor \"z\""});
  check_contains(with_index("{"), {"index is not JSON (line 1, column 2)"});
  check_contains(with_index("[]"), {"has no weight_map"});
  check_contains(with_index("{}"), {"has no weight_map"});
  check_contains(with_index(R"({"weight_map":[]})"), {"has no weight_map"});
  check_contains(with_index(R"({"weight_map":{"a":4}})"), {"no file name for tensor \"a\""});
  check_contains(with_index(R"({"weight_map":{"a":"x","a":"y"}})"), {"the name \"a\" twice"});
  for (const char* const name : {"", ".", "..", "../one.safetensors", "/etc/passwd", "a\\\\b", "a\\u0000b"}) {
    check_contains(with_index(R"({"weight_map":{"a":")" + std::string(name) + "\"}}"),
                   {"tensor \"a\"", "not the name of a file in its folder"});
  }
  write_text(index, R"({"weight_map":{"a":"three.safetensors"}})");
  check_contains(error_of([&] { SafetensorsCheckpoint::open(index); }, ErrorCode::not_found),
                 {"three.safetensors", "cannot be opened", "model.safetensors.index.json lists it"});
  write_text(index, "");
  fs::resize_file(index, 100'000'001);  // sparse
  check_contains(error_of([&] { SafetensorsCheckpoint::open(index); }, ErrorCode::io_failed),
                 {"has 100000001 bytes; at most 100000000 are read"});
}

// ---- Damage --------------------------------------------------------------------------------------------------------

// Works in memory, because tens of thousands of files would take long on a disk.
class MemoryFile {
 public:
  MemoryFile() : descriptor_(::memfd_create("damaged", MFD_CLOEXEC)) { BOOST_REQUIRE(descriptor_); }
  fs::path path() const { return "/proc/self/fd/" + std::to_string(descriptor_.get()); }
  void write(const std::string& content) const {
    BOOST_REQUIRE(::ftruncate(descriptor_.get(), 0) == 0);
    BOOST_REQUIRE(::pwrite(descriptor_.get(), content.data(), content.size(), 0) ==
                  static_cast<ssize_t>(content.size()));
  }

 private:
  FileDescriptor descriptor_;
};

// Makes one change to the file: flips bits, changes bytes or digits, doubles or removes a piece, or cuts the end off.
void damage(std::string& content, std::mt19937& random) {
  const auto below = [&](std::size_t bound) { return static_cast<std::size_t>(random()) % bound; };
  if (content.empty()) return;
  const std::size_t at = below(content.size());
  switch (random() % 7) {
    case 0: content[at] = static_cast<char>(content[at] ^ (1 << below(8))); break;
    case 1: content[at] = static_cast<char>(random() & 0xffU); break;
    case 2: content.resize(at); break;
    case 3: content.erase(at, 1 + below(8)); break;
    case 4: content.insert(at, content.substr(below(content.size()), 1 + below(40))); break;
    case 5: content[at] = "{}[]\",:0123456789-e"[below(19)]; break;
    default: content[below(8)] = static_cast<char>(random() & 0xffU); break;
  }
}

// The file is either refused with an Error, or everything that it claims holds.
BOOST_AUTO_TEST_CASE(damaged_files_are_read_consistently_or_refused) {
  const Folder folder;
  const std::string data(64, 'd');
  write_safetensors(
      folder.path("good"),
      std::vector<TensorToStore>{{.name = "weight", .type = "F8_E4M3", .shape = {8, 8}, .bytes = bytes_of(data)},
                                 {.name = "scale", .type = "F32", .shape = {1, 16}, .bytes = bytes_of(data)},
                                 {.name = "small", .type = "F4", .shape = {128}, .bytes = bytes_of(data)}},
      {{"format", "pt"}});
  const std::string good = read_text(folder.path("good"));
  std::mt19937 random(20);
  const MemoryFile damaged;
  int refused = 0;
  int accepted = 0;
  for (int i = 0; i < 24000; ++i) {
    std::string content = good;
    const auto changes = static_cast<unsigned>(1 + random() % 3);
    for (unsigned change = 0; change < changes; ++change) damage(content, random);
    damaged.write(content);
    try {
      const SafetensorsFile file = SafetensorsFile::open(damaged.path());
      std::uint64_t total = 0;
      for (const StoredTensor& tensor : file.tensors()) {
        BOOST_REQUIRE(tensor.offset + tensor.bytes <= content.size());
        BOOST_REQUIRE(text_of(file.read(tensor)) == content.substr(tensor.offset, tensor.bytes));
        total += tensor.bytes;
      }
      BOOST_REQUIRE(total <= content.size());
      ++accepted;
    } catch (const Error& error) {
      BOOST_REQUIRE(error.code() == ErrorCode::io_failed);
      ++refused;
    }
  }
  BOOST_TEST(refused > 5000);
  BOOST_TEST(accepted > 500);  // changes of the data alone
}

}  // namespace

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ingot
