// JSON from anywhere: what the check refuses, and what each kind of field may be.
#include "ingot/runtime/util/json_text.h"

#include <boost/test/unit_test.hpp>

#include <nlohmann/json.hpp>
#include <string>

BOOST_AUTO_TEST_SUITE(test_json_text)

using namespace ingot;
using Json = nlohmann::json;

namespace {

std::string fault_of(const auto& read) {
  try {
    read();
  } catch (const JsonFault& fault) {
    return fault.what();
  }
  return "none";
}

}  // namespace

BOOST_AUTO_TEST_CASE(text_is_checked_before_it_is_parsed) {
  BOOST_TEST(json_fault(R"({"a":[{"a":1},{"a":-2.5e3}],"b":null,"c":"é","d":true})", 3) == "");
  const std::pair<std::string, std::string> cases[] = {{"", "line 1, column 1"},
                                                       {"{", "line 1, column 2"},
                                                       {"[1,]", "line 1, column 4"},
                                                       {"{\"a\":\"\xff\"}", "line 1, column 7"},
                                                       {"{} {}", "line 1, column 4"},
                                                       {"nan", "line 1, column 2"},
                                                       {"{\n \"a\": 1,\n}", "line 3, column 1"}};
  for (const auto& [text, place] : cases) BOOST_TEST(json_fault(text, 3) == "is not JSON (" + place + ")", text);
  BOOST_TEST(json_fault("[1e999]", 3) == "has a number that is too large (line 1, column 6)");
  BOOST_TEST(json_fault("[[[1]]]", 3) == "");
  BOOST_TEST(json_fault("[[[{}]]]", 3) == "is nested deeper than 3 levels");
  for (const char* const open : {"[", "{\"a\":"}) {
    std::string deep;
    for (int level = 0; level < 100000; ++level) deep += open;
    BOOST_TEST(json_fault(deep, 64) == "is nested deeper than 64 levels");
  }
  BOOST_TEST(json_fault(R"({"a":{"b":1,"c":2,"b":3}})", 3) == "has the name \"b\" twice");
  BOOST_TEST(json_fault(R"({"\u001b":1,"\u001b":1})", 3) == "has the name \"?\" twice");
}

BOOST_AUTO_TEST_CASE(fields_are_named_that_do_not_fit) {
  const Json json =
      Json::parse(R"({"n":5,"huge":1e22,"more":9223372036854775808,"half":2.5,"t":"x","a":[1],"o":{},"b":true})");
  BOOST_TEST(json_integer(json, "n") == 5);
  BOOST_TEST(json_integer(json, "n", 5, 5) == 5);
  BOOST_TEST(json_number(json, "huge") == 1e22);
  BOOST_TEST(json_string(json, "t") == "x");
  BOOST_TEST(json_array(json, "a").size() == 1U);
  BOOST_TEST(json_boolean(json, "b"));
  const auto integer = [&](const char* name) { return fault_of([&] { json_integer(json, name, 1, 10); }); };
  BOOST_TEST(integer("huge") == "has \"huge\": 1e+22, which is not a whole number from 1 to 10");
  BOOST_TEST(integer("more") == "has \"more\": 9223372036854775808, which is not a whole number from 1 to 10");
  BOOST_TEST(integer("half") == "has \"half\": 2.5, which is not a whole number from 1 to 10");
  BOOST_TEST(integer("t") == "has \"t\": \"x\", which is not a whole number from 1 to 10");
  BOOST_TEST(integer("a") == "has \"a\": an array, which is not a whole number from 1 to 10");
  BOOST_TEST(integer("none") == "lacks \"none\"");
  BOOST_TEST(fault_of([&] { json_integer(json, "n", 6); }) ==
             "has \"n\": 5, which is not a whole number from 6 to 9223372036854775807");
  BOOST_TEST(fault_of([&] { json_number(json, "t"); }) == "has \"t\": \"x\", which is not a number");
  BOOST_TEST(fault_of([&] { json_string(json, "n"); }) == "has \"n\": 5, which is not a text");
  BOOST_TEST(fault_of([&] { json_boolean(json, "n"); }) == "has \"n\": 5, which is not true or false");
  BOOST_TEST(fault_of([&] { json_array(json, "o"); }) == "has \"o\": an object, which is not an array");
  BOOST_TEST(fault_of([&] { json_field(json.at("a"), "n"); }) == "is not a JSON object");
}

BOOST_AUTO_TEST_SUITE_END()
