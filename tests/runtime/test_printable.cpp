// printable(): makes text from outside safe to print on a terminal. count_of(): numbers of things in messages.
#include "ingot/runtime/util/text.h"

#include <boost/test/unit_test.hpp>
#include <cstddef>
#include <cstdint>
#include <string>

#include "ingot/runtime/util/count_of.h"

BOOST_AUTO_TEST_SUITE(test_printable)

using ingot::printable;
using ingot::without_controls;

BOOST_AUTO_TEST_CASE(letters_are_shown_as_they_are) {
  BOOST_TEST(printable("").empty());
  BOOST_TEST(printable("layers.0.wq \"x\" ~") == "layers.0.wq \"x\" ~");
  const std::string longest(160, 'a');
  BOOST_TEST(printable(longest) == longest);
}

BOOST_AUTO_TEST_CASE(what_moves_a_terminal_is_not) {
  BOOST_TEST(printable("a\nb\x1b[2Jc\x7f\xc3\xa4") == "a?b?[2Jc???");
  BOOST_TEST(printable(std::string("a\0b", 3)) == "a?b");
  std::string cut(160, 'a');
  cut += "...";
  BOOST_TEST(printable(std::string(161, 'a')) == cut);
}

BOOST_AUTO_TEST_CASE(a_whole_text_keeps_its_letters_and_lines) {
  BOOST_TEST(without_controls("a\n\tb\x1b[2J\r\x7f") == "a\n\tb?[2J??");
  BOOST_TEST(without_controls("\xc3\xa4\xc2\x9b\xc2\xa0") == "\xc3\xa4??\xc2\xa0");
  // Stray, cut, overlong, surrogate and beyond Unicode; and letters of two, three and four bytes.
  BOOST_TEST(without_controls("\xff \xc3 \xe2\x82 \xc0\xaf \xe0\x80\x80 \xed\xa0\x80 \xf4\x90\x80\x80 \xe2\x82") ==
             "? ? ?? ?? ??? ??? ???? ??");
  BOOST_TEST(without_controls("\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80") == "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80");
  const std::string longest(5000, 'a');
  BOOST_TEST(without_controls(longest) == longest);
}

BOOST_AUTO_TEST_CASE(one_thing_has_no_plural) {
  using ingot::count_of;
  BOOST_TEST(count_of(0, "row") == "0 rows");
  BOOST_TEST(count_of(1, "row") == "1 row");
  BOOST_TEST(count_of(std::size_t{2}, "tuning record") == "2 tuning records");
  BOOST_TEST(count_of(std::int64_t{-1}, "row") == "-1 rows");
}

BOOST_AUTO_TEST_SUITE_END()
