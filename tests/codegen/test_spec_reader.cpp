// SpecReader: how a line is divided into words and options, and the errors about them.
#include "ingot/codegen/types/spec_reader.h"

#include <boost/test/unit_test.hpp>

#include <optional>
#include <string>
#include <vector>

#include "tests/support/spec_errors.h"

BOOST_AUTO_TEST_SUITE(test_spec_reader)

using namespace ingot;
using test::message_of;

namespace {

std::vector<std::string> words(const char* line, std::size_t count) {
  const SpecReader reader(line);
  std::vector<std::string> all;
  for (std::size_t i = 0; i < count; ++i) all.push_back(reader.word(i));
  return all;
}

std::string options_error(const char* line) {
  return message_of([&] {
    SpecReader(line).each_option(1, "big or size=<number>", [](const SpecOption& option) -> const char* {
      if (option.word == "big") return "big";
      return option.key == "size" ? "size" : nullptr;
    });
  });
}

}  // namespace

BOOST_AUTO_TEST_CASE(words_are_divided_by_spaces) {
  BOOST_TEST((words(" op  bf16 -> f32 size = 1 , 2", 3) == std::vector<std::string>{"op", "bf16->f32", "size=1,2"}));
  BOOST_TEST((words("op of=\"x + 1\" big", 3) == std::vector<std::string>{"op", "of=x + 1", "big"}));
  for (const char* blank : {"", " \t"}) {
    BOOST_TEST(message_of([&] { SpecReader{blank}; }).starts_with("kernel spec: the line is empty; expected a kernel"));
  }
  BOOST_TEST(message_of([] { SpecReader("op \"x"); }) == "op \"x: a quotation mark is opened and not closed");
}

BOOST_AUTO_TEST_CASE(options_come_in_any_order_and_once) {
  BOOST_TEST(options_error("op size=1 big") == "no error");
  BOOST_TEST(options_error("op big=1") == "op big=1: \"big=1\" is no word of op; expected big or size=<number>");
  BOOST_TEST(options_error("op size=1 size=2") == "op size=1 size=2: \"size=2\" gives size a second time");
  BOOST_TEST(message_of([] { SpecReader("op a b").no_options(2, "nothing more"); }) ==
             "op a b: \"b\" is no word of op; expected nothing more");
  BOOST_TEST(message_of([] { SpecReader("op").require_words(2, "a dtype"); }) ==
             "op: \"op\" must be followed by a dtype");
}

// An option without "=" has an empty value. An operation reads that, and says what is missing, or has no such option.
BOOST_AUTO_TEST_CASE(key_without_a_value) {
  std::optional<SpecOption> read;
  const SpecReader reader("op size");
  reader.each_option(1, "size=<number>", [&](const SpecOption& option) { return read = option, "size"; });
  BOOST_REQUIRE(read.has_value());
  BOOST_TEST(read->key == "size");
  BOOST_TEST(read->value == "");
  BOOST_TEST(!read->has_value());
  BOOST_TEST(test::parse_error("cast bf16->e4m3fn scale") ==
             "\"\" in \"scale\" is no granularity; expected tensor, row, col or <rows>x<cols>");
  BOOST_TEST(
      test::parse_error("norm rms bf16->e4m3fn scale") ==
      "\"scale\" is no word of norm; expected affine, scale=<granularity>, out=codes,result,stats, given, pow2 or "
      "cols=<columns>");
  BOOST_TEST(test::parse_error("norm_backward rms bf16 affine sums") ==
             "\"sums\" is no word of norm_backward; expected affine, zero_centred or sums=<dtype>");
  BOOST_TEST(test::parse_error("dequant_matmul bf16*e4m3fn->bf16 kernel") ==
             "\"kernel\" is no word of dequant_matmul; expected packed, packed_f16, row_major, scale=<granularity>, "
             "factors=<dtype>, bias, epilogue=<expression>, batch_invariant, experts or kernel=<kernel>");
}

BOOST_AUTO_TEST_CASE(parts_of_a_list) {
  std::vector<std::string> parts;
  SpecReader::each_part("a,,b,", [&](std::string_view part) { parts.emplace_back(part); });
  BOOST_TEST((parts == std::vector<std::string>{"a", "", "b", ""}));
}

BOOST_AUTO_TEST_CASE(values_and_what_was_expected) {
  const SpecReader reader("op");
  BOOST_TEST((reader.dtype("f16") == Dtype::f16));
  BOOST_TEST((reader.granularity("1x128") == kRowGroups));
  BOOST_TEST(reader.number("12", "n=12", "number", "a number") == 12);
  BOOST_TEST((reader.halves("a->b", "->", "<a>-><b>") == std::pair<std::string_view, std::string_view>("a", "b")));
  BOOST_TEST(message_of([&] { reader.number("1x", "n=1x", "number", "0 to 7"); }) ==
             "op: \"1x\" in \"n=1x\" is no number; expected 0 to 7");
  BOOST_TEST(message_of([&] { reader.dtype_among("f8", "bf16 or f16"); }) ==
             "op: \"f8\" is no dtype; expected bf16 or f16");
  BOOST_TEST(message_of([&] { reader.halves("ab", "->", "<a>-><b>"); }) == "op: \"ab\" must be <a>-><b>");
}

BOOST_AUTO_TEST_SUITE_END()
