// Every error message of the expression parser, with its caret.
#include <boost/test/unit_test.hpp>
#include <random>
#include <string>
#include <string_view>

#include "ingot/codegen/pointwise/pointwise.h"
#include "ingot/runtime/util/error.h"
#include "support/expect_error.h"

BOOST_AUTO_TEST_SUITE(test_pointwise_errors)

using namespace ingot;
using namespace ingot::test;

namespace {

std::string error(const std::string& text) {
  return error_of([&] { parse_pointwise(text); }, ErrorCode::invalid_spec);
}

// Returns only the sentence, after checking that the text follows on its own line, with the caret under character
// `column` (from 0).
std::string sentence(const std::string& text, std::size_t column) {
  const std::string message = error(text);
  const std::string begin = "expression: ";
  const std::string end = "\n  " + text + "\n  " + std::string(column, ' ') + "^";
  if (!message.starts_with(begin) || !message.ends_with(end)) return "(text or caret differ) " + message;
  return message.substr(begin.size(), message.size() - begin.size() - end.size());
}

const std::string kAnOperator = "expected an operator (+ - * / ^) or the end";
const std::string kAnOperand = "expected a number, a name, \"-\" or \"(\"";

}  // namespace

BOOST_AUTO_TEST_CASE(the_whole_message) {
  BOOST_TEST(error("x * foo(gate)").starts_with("expression: \"foo\" is no function; expected one of exp, expm1, "));
  BOOST_TEST(error("x * foo(gate)").ends_with(", geglu, reglu\n  x * foo(gate)\n      ^"));
  BOOST_TEST(error("x * (gate + 1") ==
             "expression: the text ends, but the \"(\" of column 5 is not closed; expected an operator (+ - * / ^) "
             "or \")\"\n"
             "  x * (gate + 1\n"
             "               ^");
}

BOOST_AUTO_TEST_CASE(texts_that_are_no_expression) {
  BOOST_TEST(sentence("", 0) == "the expression is empty; expected one such as silu(x) * gate");
  BOOST_TEST(sentence("   ", 0) == "the expression is empty; expected one such as silu(x) * gate");
  BOOST_TEST(sentence("x +", 3) == "the end of the text is unexpected; " + kAnOperand);
  BOOST_TEST(sentence("x + * 2", 4) == "\"*\" is unexpected; " + kAnOperand);
  BOOST_TEST(sentence("x ** 2", 2) == "\"**\" is no operator; write x ^ 2 for a power");
  BOOST_TEST(sentence("x * * 2", 4) == "\"*\" is unexpected; " + kAnOperand);
  BOOST_TEST(sentence("+x", 0) == "\"+\" is unexpected; " + kAnOperand);
  BOOST_TEST(sentence("()", 1) == "\")\" is unexpected; " + kAnOperand);
  BOOST_TEST(sentence("max(x, )", 7) == "\")\" is unexpected; " + kAnOperand);
  BOOST_TEST(sentence("x gate", 2) == "\"gate\" is unexpected; " + kAnOperator);
  BOOST_TEST(sentence("2x", 1) == "\"x\" is unexpected; " + kAnOperator);
  BOOST_TEST(sentence("x 1.5", 2) == "\"1.5\" is unexpected; " + kAnOperator);
  BOOST_TEST(sentence("1.5.2", 3) == "\".2\" is unexpected; " + kAnOperator);
  BOOST_TEST(sentence("(x)(gate)", 3) == "\"(\" is unexpected; " + kAnOperator);
  BOOST_TEST(sentence("x, gate", 1) == "\",\" is unexpected; " + kAnOperator);
}

BOOST_AUTO_TEST_CASE(stray_characters) {
  BOOST_TEST(sentence("x $ 2", 2) == "\"$\" is unexpected; " + kAnOperator);
  BOOST_TEST(sentence("x * .", 4) == "\".\" is unexpected; " + kAnOperand);
  // The caret counts characters, not bytes.
  BOOST_TEST(error("x * \xc3\xa9 + \xce\xbb") ==
             "expression: \"\xc3\xa9\" is unexpected; " + kAnOperand + "\n  x * \xc3\xa9 + \xce\xbb\n      ^");
  BOOST_TEST(error("b[\xc3\xa9] + 1") ==
             "expression: \"[\xc3\xa9]\" is no suffix; expected [col] or [col:f32], a value for each column, or [row], "
             "one for each row\n  b[\xc3\xa9] + 1\n   ^");
  BOOST_TEST(error("x \xc3\xa9 \xce\xbb") ==
             "expression: \"\xc3\xa9\" is unexpected; " + kAnOperator + "\n  x \xc3\xa9 \xce\xbb\n    ^");
  BOOST_TEST(error("x *\n\x01") ==
             "expression: the character of code 1 is unexpected; " + kAnOperand + "\n  x *  \n      ^");
}

BOOST_AUTO_TEST_CASE(bytes_that_are_no_text) {
  const std::string bytes(50, '\x80'), shown(50, '?');
  BOOST_TEST(error("x " + bytes).starts_with("expression: \"" + shown.substr(0, 40) + "...\" is unexpected; "));
  BOOST_TEST(error(bytes).starts_with("expression: \"" + shown.substr(0, 40) + "...\" is unexpected; "));
  BOOST_TEST(error("b[" + bytes + "]").starts_with("expression: \"[" + shown.substr(0, 39) + "...\" is no suffix; "));
  // A character that the cut would divide is left out whole.
  const std::string letters = std::string(37, '.') + "\xf0\x9f\x98\x80";
  BOOST_TEST(
      error("b[" + letters + "]").starts_with("expression: \"[" + letters.substr(0, 37) + "...\" is no suffix; "));
}

// An expression or an Error; what the sanitizers find is the rest of this test.
BOOST_AUTO_TEST_CASE(random_bytes_give_an_expression_or_an_error) {
  const std::string_view alphabet("x([^])*+-/,.0e9_gate:col\x80\xbf\xc3\xff\x00\n\x1f\x7f\"\\", 34);
  std::mt19937 random(1);
  std::uniform_int_distribution<std::size_t> letter(0, alphabet.size() - 1);
  std::uniform_int_distribution<int> of_256(0, 255);
  int errors = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string text;
    while (of_256(random) >= 6) {
      const bool run = of_256(random) < 8;
      const char next = of_256(random) < 200 ? alphabet[letter(random)] : static_cast<char>(of_256(random));
      text.append(run ? 50 : 1, next);
    }
    try {
      parse_pointwise(text);
    } catch (const Error&) {
      ++errors;
    }
  }
  BOOST_TEST(errors > 10000);
}

BOOST_AUTO_TEST_CASE(parentheses) {
  BOOST_TEST(
      sentence("silu(x * gate", 13) ==
      "the text ends, but the \"(\" of column 5 is not closed; expected an operator (+ - * / ^), \",\" or \")\"");
  BOOST_TEST(sentence("(x + (gate)", 11) ==
             "the text ends, but the \"(\" of column 1 is not closed; expected an operator (+ - * / ^) or \")\"");
  BOOST_TEST(sentence("(x 2)", 3) == "\"2\" is unexpected; expected an operator (+ - * / ^) or \")\"");
  BOOST_TEST(sentence("(x, 2)", 2) == "\",\" is unexpected; expected an operator (+ - * / ^) or \")\"");
  BOOST_TEST(sentence("max(x 2)", 6) == "\"2\" is unexpected; expected an operator (+ - * / ^), \",\" or \")\"");
  BOOST_TEST(sentence("x)", 1) == "\")\" closes nothing; " + kAnOperator);
}

BOOST_AUTO_TEST_CASE(functions) {
  BOOST_TEST(sentence("x + max(x)", 4) == "max is given 1 argument; expected 2: max(a, b)");
  BOOST_TEST(sentence("exp()", 0) == "exp is given 0 arguments; expected 1: exp(a)");
  BOOST_TEST(sentence("silu(x, gate)", 0) == "silu is given 2 arguments; expected 1: silu(x)");
  BOOST_TEST(sentence("swiglu(x)", 0) == "swiglu is given 1 argument; expected 2: swiglu(x, gate)");
  BOOST_TEST(sentence("leaky_relu(x)", 0) == "leaky_relu is given 1 argument; expected 2: leaky_relu(x, slope)");
  BOOST_TEST(sentence("1 + exp * 2", 4) == "\"exp\" is a function; expected its arguments in parentheses: exp(a)");
  BOOST_TEST(sentence("1 + pow(x, 2)", 4) == "\"pow\" is no function; write x ^ 2 for a power");
  BOOST_TEST(sentence("max", 0) == "\"max\" is a function; expected its arguments in parentheses: max(a, b)");
  BOOST_TEST(sentence("gelu + 1", 0) == "\"gelu\" is a function; expected its arguments in parentheses: gelu(x)");
}

BOOST_AUTO_TEST_CASE(numbers_and_exponents) {
  BOOST_TEST(sentence("x * 1e39", 4) == "\"1e39\" is outside the range of f32 (1.4e-45 to 3.4e38)");
  BOOST_TEST(sentence("1e-60", 0) == "\"1e-60\" is outside the range of f32 (1.4e-45 to 3.4e38)");
  const std::string no_exponent =
      " is no exponent; expected an integer from 0 to 64 (for a root use sqrt, for 1/x divide)";
  BOOST_TEST(sentence("x^2.5", 2) == "\"2.5\"" + no_exponent);
  BOOST_TEST(sentence("x^-1", 2) == "\"-\"" + no_exponent);
  BOOST_TEST(sentence("x^65", 2) == "\"65\"" + no_exponent);
  BOOST_TEST(sentence("x^99999999999", 2) == "\"99999999999\"" + no_exponent);
  BOOST_TEST(sentence("x^1e1", 2) == "\"1e1\"" + no_exponent);
  BOOST_TEST(sentence("x^gate", 2) == "\"gate\"" + no_exponent);
  BOOST_TEST(sentence("x^", 2) == "the end of the text" + no_exponent);
  BOOST_TEST(sentence("x^2^3", 3) == "a power has one exponent; write (a^m)^n for a power of a power");
}

BOOST_AUTO_TEST_CASE(inputs) {
  const std::string no_suffix =
      " is no suffix; expected [col] or [col:f32], a value for each column, or [row], one for each row";
  for (const char* const suffix :
       {"[row:f32]", "[col:f16]", "[col:]", "[col f32]", "[col:f32 1]", "[col:f321]", "[:f32]"}) {
    BOOST_TEST(sentence(std::string("bias") + suffix, 4) == '"' + std::string(suffix) + '"' + no_suffix);
  }
  BOOST_TEST(sentence("bias[col:f32", 4) == "\"[\"" + no_suffix);
  BOOST_TEST(sentence("a[col:f32] * a[col]", 13) ==
             "\"a\" is a vector [col] here, but a vector [col:f32] before; expected one kind for one name");
  BOOST_TEST(sentence("bias[foo] + x", 4) == "\"[foo]\"" + no_suffix);
  BOOST_TEST(sentence("bias[]", 4) == "\"[]\"" + no_suffix);
  BOOST_TEST(sentence("bias[col", 4) == "\"[\"" + no_suffix);
  BOOST_TEST(sentence("bias[col 1]", 4) == "\"[col 1]\"" + no_suffix);
  BOOST_TEST(sentence("x[col]", 1) == "x is the element of the main input, which is a matrix; expected no suffix");
  BOOST_TEST(sentence("2[col]", 1) == "\"[\" is unexpected; " + kAnOperator);
  BOOST_TEST(sentence("x + a + a[col]", 8) ==
             "\"a\" is a vector [col] here, but a matrix before; expected one kind for one name");
  BOOST_TEST(sentence("a[row] * a[col]", 9) ==
             "\"a\" is a vector [col] here, but a vector [row] before; expected one kind for one name");
  BOOST_TEST(sentence("a[row] * a", 9) ==
             "\"a\" is a matrix here, but a vector [row] before; expected one kind for one name");
  BOOST_TEST(sentence("a + b + c + d + x + e", 20) == "\"e\" is one input too many; expected at most 4 besides x");
  BOOST_TEST(error(std::string(65, 'n'))
                 .find("\"nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn...\" is a name of 65 "
                       "characters; expected at most 64\n  " +
                       std::string(60, 'n') + "...\n  ^") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(of_a_long_text_the_neighbourhood_is_shown) {
  std::string text = "x";
  for (int i = 0; i < 40; ++i) text += " + gate";
  const std::string wrong = text + " + $" + text.substr(1);
  BOOST_TEST(error(wrong) == "expression: \"$\" is unexpected; " + kAnOperand + "\n  ..." +
                                 text.substr(text.size() - 57) + " + $" + text.substr(1, 59) + "...\n" +
                                 std::string(65, ' ') + "^");
}

BOOST_AUTO_TEST_SUITE_END()
