#include "ingot/codegen/types/spec_reader.h"
#include <fmt/format.h>
#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>
#include <system_error>
#include <vector>
#include "ingot/runtime/util/error.h"

namespace ingot {
namespace {

constexpr std::string_view kSpaces = " \t\r\n\v\f";

bool is_space(char c) { return kSpaces.find(c) != std::string_view::npos; }

// Spaces divide words, except next to "->", "*", "=" and ",", so that "bf16 -> e4m3fn" is one word, and except between
// quotation marks, which are dropped: of="x + bias[col]".
std::vector<std::string> split_words(std::string_view line) {
  std::vector<std::string> words;
  bool open = false;  // does the next character continue the last word?
  bool quoted = false;
  for (std::size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (c == '"' && !words.empty()) {
      quoted = !quoted;
      open = true;
      continue;
    }
    if (quoted) {
      words.back().push_back(c);
      continue;
    }
    if (is_space(c)) {
      open = open && std::string_view(">*=,").find(words.back().back()) != std::string_view::npos;
      continue;
    }
    const bool joins = words.size() > 1 && (line.substr(i).starts_with("->") || c == '*' || c == '=' || c == ',');
    if (!open && !joins) words.emplace_back();
    words.back().push_back(c);
    open = true;
  }
  return words;
}

SpecOption option_of(std::string_view word) {
  const auto equals = word.find('=');
  return {.word = word,
          .key = word.substr(0, equals),
          .value = equals == std::string_view::npos ? std::string_view() : word.substr(equals + 1)};
}

std::optional<int> parse_number(std::string_view text) {
  int value = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || stop != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace

std::optional<int> take_number(std::string_view& text, char end) {
  const auto stop = end == '\0' ? text.size() : text.find(end);
  if (stop == std::string_view::npos || text.starts_with('-')) return std::nullopt;
  const std::optional<int> value = parse_number(text.substr(0, stop));
  if (value) text.remove_prefix(end == '\0' ? stop : stop + 1);
  return value;
}

SpecReader::SpecReader(std::string_view line) : line_(line), words_(split_words(line)) {
  if (words_.empty()) fail("the line is empty; expected a kernel such as \"cast bf16->e4m3fn scale=row out=codes\"");
  if (std::ranges::count(line, '"') % 2 != 0) fail("a quotation mark is opened and not closed");
}

void SpecReader::fail(const std::string& message) const {
  throw Error(ErrorCode::invalid_spec, words_.empty() ? "kernel spec" : std::string(line_), message);
}

void SpecReader::fail_as(std::string_view text, std::string_view word, std::string_view what,
                         std::string_view expected) const {
  const std::string in_word = word.empty() || text == word ? std::string() : fmt::format(" in \"{}\"", word);
  fail(fmt::format("\"{}\"{} is no {}; expected {}", text, in_word, what, expected));
}

void SpecReader::require_words(std::size_t count, std::string_view form) const {
  if (words_.size() < count) fail(fmt::format("\"{}\" must be followed by {}", words_[0], form));
}

void SpecReader::each_option(std::size_t first, std::string_view form, const TakeOption& take) const {
  std::vector<std::string_view> seen;
  for (const std::string& word : std::span(words_).subspan(first)) {
    const char* const field = take(option_of(word));
    if (field == nullptr) fail(fmt::format("\"{}\" is no word of {}; expected {}", word, words_[0], form));
    if (std::ranges::find(seen, field) != seen.end()) fail(fmt::format("\"{}\" gives {} a second time", word, field));
    seen.emplace_back(field);
  }
}

void SpecReader::no_options(std::size_t first, std::string_view form) const {
  each_option(first, form, [](const SpecOption&) { return nullptr; });
}

std::pair<std::string_view, std::string_view> SpecReader::halves(std::string_view text, std::string_view divider,
                                                                 std::string_view form, std::string_view word) const {
  const auto at = text.find(divider);
  if (at == std::string_view::npos) fail(fmt::format("\"{}\" must be {}", word.empty() ? text : word, form));
  return {text.substr(0, at), text.substr(at + divider.size())};
}

void SpecReader::each_part(std::string_view list, const std::function<void(std::string_view part)>& take) {
  while (true) {
    const std::string_view part = list.substr(0, list.find(','));
    take(part);
    if (part.size() == list.size()) return;
    list.remove_prefix(part.size() + 1);
  }
}

Dtype SpecReader::dtype(std::string_view text, std::string_view word) const {
  if (const auto dtype = parse_dtype(text)) return *dtype;
  fail_as(text, word, "dtype", list(kHighPrecisionDtypes) + ", " + list(kFp8Dtypes));
}

Dtype SpecReader::dtype_among(std::string_view text, std::string_view expected) const {
  return parsed(parse_dtype, text, {}, "dtype", expected);
}

ScaleGranularity SpecReader::granularity(std::string_view text, std::string_view word,
                                         std::string_view expected) const {
  return parsed(parse_granularity, text, word, "granularity", expected);
}

void SpecReader::granularities(const SpecOption& option, ScaleGranularity& first,
                               std::optional<ScaleGranularity>& second) const {
  const auto plus = option.value.find('+');
  first = granularity(option.value.substr(0, plus), option.word);
  if (plus != std::string_view::npos) second = granularity(option.value.substr(plus + 1), option.word);
}

int SpecReader::number(std::string_view text, std::string_view word, std::string_view what,
                       std::string_view expected) const {
  return parsed(parse_number, text, word, what, expected);
}

}  // namespace ingot
