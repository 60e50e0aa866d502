// Recursive descent, one function for each line of the grammar:
//
//   sum     = product { ("+" | "-") product }
//   product = sign { ("*" | "/") sign }
//   sign    = { "-" } power
//   power   = primary [ "^" integer ]
//   primary = number | name [ "[col]" | "[col:f32]" | "[row]" ] | function "(" sum { "," sum } ")" | "(" sum ")"
//
// A built-in function is parsed from its own text, with its parameters standing for the arguments. Recursion is bounded
// by the limit on nesting, and each step is checked against the limits as it is made.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "ingot/codegen/pointwise/pointwise.h"
#include "ingot/codegen/pointwise/pointwise_functions.h"
#include "ingot/codegen/pointwise/pointwise_graph.h"
#include "ingot/runtime/util/error.h"

namespace ingot {
namespace {

using Op = PointwiseOp;
using Node = PointwiseGraph::Node;

// Independent of the locale.
bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_continuation(char c) { return (static_cast<unsigned char>(c) & 0xc0U) == 0x80U; }  // of a UTF-8 character

// The message, then the text on a separate line, so that nothing before it shifts it, and below it a caret under the
// character at `position`. A long text is cut to the part around it.
Error error_at(std::string_view text, std::size_t position, const std::string& sentence) {
  constexpr std::size_t kAround = 60;
  std::size_t begin = position > kAround ? position - kAround : 0;
  std::size_t end = std::min(text.size(), position + kAround);
  while (begin < position && is_continuation(text[begin])) ++begin;
  while (end < text.size() && is_continuation(text[end])) ++end;

  std::string shown = begin > 0 ? "..." : "";
  std::size_t column = shown.size();
  for (std::size_t i = begin; i < end; ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    shown += byte < 0x20 || byte == 0x7f ? ' ' : text[i];
    if (i < position && !is_continuation(text[i])) ++column;
  }
  if (end < text.size()) shown += "...";
  return {ErrorCode::invalid_spec, "expression", sentence + "\n  " + shown + "\n  " + std::string(column, ' ') + "^"};
}

// The word in quotes; of a long word, its beginning. A character of UTF-8 has at most three continuation bytes; more
// are no text, and cut anywhere.
std::string in_quotes(std::string_view word) {
  constexpr std::size_t kLongest = 40;
  constexpr std::size_t kMostContinuations = 3;
  if (word.size() <= kLongest) return fmt::format("\"{}\"", word);
  std::size_t end = kLongest;
  while (end + kMostContinuations > kLongest && is_continuation(word[end])) --end;
  if (is_continuation(word[end])) end = kLongest;
  return fmt::format("\"{}...\"", word.substr(0, end));
}

// The node that a parameter of a built-in function stands for.
struct Binding {
  std::string_view name;
  Node node;
};

class Parser {
 public:
  Parser(PointwiseGraph& graph, std::string_view text, std::vector<Binding> bindings = {})
      : graph_(graph), text_(text), bindings_(std::move(bindings)) {}

  Node parse() {
    skip_spaces();
    if (at_end()) fail(0, "the expression is empty; expected one such as silu(x) * gate");
    const Node result = sum();
    if (at_end()) return result;
    if (peek() == ')') fail(position_, "\")\" closes nothing; expected an operator (+ - * / ^) or the end");
    fail(position_, fmt::format("{} is unexpected; expected an operator (+ - * / ^) or the end", found()));
  }

 private:
  [[noreturn]] void fail(std::size_t position, const std::string& sentence) const {
    throw error_at(text_, position, sentence);
  }

  // ---- characters ------------------------------------------------------------------------------------------------

  bool at_end() const { return position_ == text_.size(); }
  char peek(std::size_t ahead = 0) const { return position_ + ahead < text_.size() ? text_[position_ + ahead] : '\0'; }
  void skip_spaces() {
    while (!at_end() && is_space(peek())) ++position_;
  }
  bool accept(char c) {
    if (at_end() || peek() != c) return false;
    ++position_;
    skip_spaces();
    return true;
  }

  std::string_view name_at(std::size_t position) const {
    std::size_t end = position;
    while (end < text_.size() && (is_letter(text_[end]) || (end > position && is_digit(text_[end])))) ++end;
    return text_.substr(position, end - position);
  }

  // 12, 0.5, .5, 1e-3; empty if no number begins here.
  std::string_view number_at(std::size_t position) const {
    std::size_t end = position;
    const auto skip_digits = [&] {
      while (end < text_.size() && is_digit(text_[end])) ++end;
    };
    const auto digit_at = [&](std::size_t i) { return i < text_.size() && is_digit(text_[i]); };
    if (!digit_at(end) && !(end < text_.size() && text_[end] == '.' && digit_at(end + 1))) return {};
    skip_digits();
    if (end < text_.size() && text_[end] == '.') ++end;
    skip_digits();
    if (end < text_.size() && (text_[end] == 'e' || text_[end] == 'E')) {
      const std::size_t sign = end + 1 < text_.size() && (text_[end + 1] == '+' || text_[end + 1] == '-') ? 1 : 0;
      if (digit_at(end + 1 + sign)) {
        end += 1 + sign;
        skip_digits();
      }
    }
    return text_.substr(position, end - position);
  }

  // The word at the position, for a message.
  std::string found() const {
    if (at_end()) return "the end of the text";
    if (const auto name = name_at(position_); !name.empty()) return in_quotes(name);
    if (const auto number = number_at(position_); !number.empty()) return in_quotes(number);
    const auto byte = static_cast<unsigned char>(peek());
    if (byte < 0x20 || byte == 0x7f) return fmt::format("the character of code {}", byte);
    std::size_t length = 1;
    while (is_continuation(peek(length))) ++length;
    return in_quotes(text_.substr(position_, length));
  }

  // ---- steps -----------------------------------------------------------------------------------------------------

  Node checked(Node node, std::size_t position) const {
    if (const std::string excess = graph_.excess(node); !excess.empty()) fail(position, "the expression " + excess);
    return node;
  }

  Node sum() {
    Node left = product();
    for (;;) {
      const std::size_t position = position_;
      if (accept('+')) {
        left = checked(graph_.make(Op::add, left, product()), position);
      } else if (accept('-')) {
        left = checked(graph_.make(Op::subtract, left, product()), position);
      } else {
        return left;
      }
    }
  }

  Node product() {
    Node left = sign();
    for (;;) {
      const std::size_t position = position_;
      if (accept('*')) {
        if (text_.substr(position, 2) == "**") {
          fail(position, "\"**\" is no operator; write x ^ 2 for a power");
        }
        left = checked(graph_.make(Op::multiply, left, sign()), position);
      } else if (accept('/')) {
        left = checked(graph_.make(Op::divide, left, sign()), position);
      } else {
        return left;
      }
    }
  }

  Node sign() {
    const std::size_t position = position_;
    bool minus = false;
    while (accept('-')) minus = !minus;
    const Node value = power();
    return minus ? checked(graph_.make(Op::negate, value), position) : value;
  }

  Node power() {
    const Node base = primary();
    const std::size_t position = position_;
    if (!accept('^')) return base;
    const Node result = graph_.power(base, exponent());
    if (peek() == '^') fail(position_, "a power has one exponent; write (a^m)^n for a power of a power");
    return checked(result, position);
  }

  std::uint32_t exponent() {
    const std::size_t start = position_;
    std::size_t end = start;
    while (end < text_.size() && is_digit(text_[end])) ++end;
    std::uint32_t value = 0;
    const auto [stop, error] = std::from_chars(text_.data() + start, text_.data() + end, value);
    const std::string_view number = number_at(start);
    if (error != std::errc{} || number.size() != end - start || value > kMaxPointwiseExponent) {
      fail(start, fmt::format("{} is no exponent; expected an integer from 0 to {} (for a root use sqrt, for 1/x "
                              "divide)",
                              number.empty() ? found() : in_quotes(number), kMaxPointwiseExponent));
    }
    position_ = end;
    skip_spaces();
    return value;
  }

  Node primary() {
    const std::size_t start = position_;
    if (const std::string_view digits = number_at(start); !digits.empty()) return number(digits);
    if (const std::string_view name = name_at(start); !name.empty()) {
      position_ += name.size();
      skip_spaces();
      return peek() == '(' ? call(name, start) : variable(name, start);
    }
    if (peek() == '(') return nested([&] { return parenthesised(start); });
    fail(start, fmt::format("{} is unexpected; expected a number, a name, \"-\" or \"(\"", found()));
  }

  template <class Part>
  Node nested(const Part& part) {
    if (nesting_ == kMaxPointwiseDepth) {
      fail(position_, fmt::format("the expression is nested too deeply: more than {} parentheses within each other",
                                  kMaxPointwiseDepth));
    }
    ++nesting_;
    const Node node = part();
    --nesting_;
    return node;
  }

  Node parenthesised(std::size_t opening) {
    accept('(');
    const Node node = sum();
    expect_closing(opening, "an operator (+ - * / ^) or \")\"");
    return node;
  }

  void expect_closing(std::size_t opening, const char* expected) {
    if (accept(')')) return;
    if (at_end()) {
      fail(position_,
           fmt::format("the text ends, but the \"(\" of column {} is not closed; expected {}", opening + 1, expected));
    }
    fail(position_, fmt::format("{} is unexpected; expected {}", found(), expected));
  }

  Node number(std::string_view digits) {
    float value = 0;
    const auto [stop, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (error != std::errc{} || !std::isfinite(value)) {
      fail(position_, fmt::format("{} is outside the range of f32 (1.4e-45 to 3.4e38)", in_quotes(digits)));
    }
    position_ += digits.size();
    skip_spaces();
    return graph_.constant(value);
  }

  // ---- names -----------------------------------------------------------------------------------------------------

  Node variable(std::string_view name, std::size_t start) {
    if (const auto bound = std::ranges::find(bindings_, name, &Binding::name); bound != bindings_.end()) {
      return bound->node;
    }
    if (find_primitive(name) != nullptr || find_built_in(name) != nullptr) {
      fail(start, fmt::format("\"{0}\" is a function; expected its arguments in parentheses: {0}({1})", name,
                              parameters(name)));
    }
    const bool has_suffix = peek() == '[';
    const std::size_t suffix_start = position_;
    const auto kind = has_suffix ? suffix() : PointwiseInput::Kind::matrix;
    if (name == "x") {
      if (has_suffix) fail(suffix_start, "x is the element of the main input, which is a matrix; expected no suffix");
      return graph_.x();
    }
    if (name.size() > kMaxPointwiseName) {
      fail(start, fmt::format("{} is a name of {} characters; expected at most {}", in_quotes(name), name.size(),
                              kMaxPointwiseName));
    }
    return input({std::string(name), kind}, start);
  }

  PointwiseInput::Kind suffix() {
    const std::size_t start = position_;
    accept('[');
    const auto accept_word = [&](std::string_view word) {
      if (name_at(position_) != word) return false;
      position_ += word.size();
      skip_spaces();
      return true;
    };
    const bool row = accept_word("row");
    const bool col = !row && accept_word("col");
    const bool in_f32 = col && accept(':');
    if (!(row || col) || (in_f32 && !accept_word("f32")) || !accept(']')) {
      const std::size_t end = text_.find(']', start);
      const auto shown =
          end == std::string_view::npos ? std::string("\"[\"") : in_quotes(text_.substr(start, end + 1 - start));
      fail(start,
           fmt::format(
               "{} is no suffix; expected [col] or [col:f32], a value for each column, or [row], one for each row",
               shown));
    }
    if (row) return PointwiseInput::Kind::row;
    return in_f32 ? PointwiseInput::Kind::column_f32 : PointwiseInput::Kind::column;
  }

  Node input(const PointwiseInput& input, std::size_t start) {
    const auto known = std::ranges::find(graph_.inputs(), input.name, &PointwiseInput::name);
    if (known == graph_.inputs().end() && graph_.inputs().size() == kMaxPointwiseInputs) {
      fail(start, fmt::format("{} is one input too many; expected at most {} besides x", in_quotes(input.name),
                              kMaxPointwiseInputs));
    }
    if (known != graph_.inputs().end() && known->kind != input.kind) {
      fail(start, fmt::format("{} is {} here, but {} before; expected one kind for one name", in_quotes(input.name),
                              kind_name(input.kind), kind_name(known->kind)));
    }
    return graph_.input(input);
  }

  static const char* kind_name(PointwiseInput::Kind kind) {
    switch (kind) {
      case PointwiseInput::Kind::matrix: return "a matrix";
      case PointwiseInput::Kind::column: return "a vector [col]";
      case PointwiseInput::Kind::column_f32: return "a vector [col:f32]";
      case PointwiseInput::Kind::row: return "a vector [row]";
    }
    return "of no kind";
  }

  // ---- calls -----------------------------------------------------------------------------------------------------

  static std::string_view parameters(std::string_view function) {
    if (const PointwiseFunction* built_in = find_built_in(function)) return built_in->parameters;
    return arity(find_primitive(function)->op) == 1 ? "a" : "a, b";
  }

  Node call(std::string_view name, std::size_t start) {
    const PrimitiveFunction* primitive = find_primitive(name);
    const PointwiseFunction* built_in = find_built_in(name);
    if (name == "pow") fail(start, "\"pow\" is no function; write x ^ 2 for a power");
    if (primitive == nullptr && built_in == nullptr) {
      fail(start, fmt::format("{} is no function; expected one of {}", in_quotes(name), all_function_names()));
    }
    std::vector<Node> values;
    nested([&] {
      values = arguments();
      return Node{0};
    });
    const std::size_t expected =
        primitive != nullptr ? static_cast<std::size_t>(arity(primitive->op)) : parameter_names(*built_in).size();
    if (values.size() != expected) {
      fail(start, fmt::format("{} is given {} argument{}; expected {}: {}({})", name, values.size(),
                              values.size() == 1 ? "" : "s", expected, name, parameters(name)));
    }
    if (built_in != nullptr) return checked(expand(*built_in, values), start);
    return checked(graph_.make(primitive->op, values.front(), values.back()), start);
  }

  std::vector<Node> arguments() {
    const std::size_t opening = position_;
    accept('(');
    if (accept(')')) return {};
    std::vector<Node> values{sum()};
    while (accept(',')) values.push_back(sum());
    expect_closing(opening, "an operator (+ - * / ^), \",\" or \")\"");
    return values;
  }

  Node expand(const PointwiseFunction& function, const std::vector<Node>& values) {
    std::vector<Binding> bindings;
    for (const std::string_view name : parameter_names(function)) bindings.push_back({name, values[bindings.size()]});
    return Parser(graph_, function.text, std::move(bindings)).parse();
  }

  PointwiseGraph& graph_;
  std::string_view text_;
  std::vector<Binding> bindings_;
  std::size_t position_ = 0;
  std::size_t nesting_ = 0;
};

}  // namespace

Pointwise parse_pointwise(std::string_view text) {
  PointwiseGraph graph;
  return graph.finish(Parser(graph, text).parse());
}

}  // namespace ingot
