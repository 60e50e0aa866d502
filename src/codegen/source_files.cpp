// The scan follows C++'s lexical rules as far as they decide what is code: spliced lines, comments, string, character
// and raw string literals, digit separators, and the digraph %: for #.
#include "ingot/codegen/source_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <set>
#include <utility>

namespace ingot {
namespace {

constexpr std::array<std::string_view, 4> kReading{"include", "include_next", "import", "embed"};
constexpr std::array<std::string_view, 3> kAsking{"__has_include", "__has_include_next", "__has_embed"};

constexpr std::array<std::string_view, 5> kDefined{"defined", "ifdef", "ifndef", "elifdef", "elifndef"};

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_space(char c) { return c == ' ' || c == '\t' || c == '\v' || c == '\f' || c == '\r'; }
bool in_word(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '$' ||
         static_cast<unsigned char>(c) >= 0x80;
}

bool is_raw_prefix(std::string_view word) {
  return word == "R" || word == "u8R" || word == "uR" || word == "UR" || word == "LR";
}

bool is_one_of(std::string_view word, const auto& words) {
  return std::ranges::find(words, word) != std::ranges::end(words);
}

// Compilers differ in what they take for a raw string (one without an end, in a group that is left out, with a spliced
// line in it). So a text is read in several ways, and what is found in any of them counts.
enum class Reading : std::uint8_t {
  exact,
  without_raw_strings,  // the quote begins an ordinary string
  everywhere,           // comments and strings, too: for texts that are not well formed
};

class Scanner {
 public:
  Scanner(std::string_view text, Reading reading) : text_(text), reading_(reading), at_(spliced(0)) {}

  FileUses scan() {
    while (!at_end()) token();
    return std::move(found_);
  }
  // Has the text a literal or a comment whose end is not clear?
  bool doubtful() const { return doubtful_; }

 private:
  // ---- characters of the text, with spliced lines joined -----------------------------------------------------------

  // The first position from `i` on that no line splice begins at.
  std::size_t spliced(std::size_t i) const {
    while (i < text_.size() && text_[i] == '\\') {
      const std::size_t end = i + 1 < text_.size() && text_[i + 1] == '\r' ? i + 2 : i + 1;
      if (end >= text_.size() || text_[end] != '\n') break;
      i = end + 1;
    }
    return i;
  }
  bool at_end() const { return at_ >= text_.size(); }
  std::size_t after(std::size_t i) const { return i < text_.size() ? spliced(i + 1) : i; }
  char peek() const { return at_end() ? '\0' : text_[at_]; }
  char second() const { return after(at_) < text_.size() ? text_[after(at_)] : '\0'; }
  char take() {
    const char c = peek();
    at_ = after(at_);
    return c;
  }
  // Asked for ever later positions.
  int line_of(std::size_t position) {
    line_ += static_cast<int>(std::ranges::count(text_.substr(counted_, position - counted_), '\n'));
    counted_ = position;
    return line_;
  }

  // ---- tokens ------------------------------------------------------------------------------------------------------

  void token() {
    const char c = peek();
    if (reading_ == Reading::everywhere) {
      const std::size_t start = at_;
      if (take_hash()) {
        hash(true, start);
      } else if (in_word(c)) {
        word();
      } else {
        take();
      }
    } else if (c == '\n') {
      take();
      line_begins_ = true;
    } else if (!skip_blank()) {
      const bool first = std::exchange(line_begins_, false);
      const std::size_t start = at_;
      if (take_hash()) {
        hash(first, start);
      } else if (c == '"' || c == '\'') {
        take();
        skip_literal(c);
      } else if (is_digit(c) || (c == '.' && is_digit(second()))) {
        skip_number();
      } else if (in_word(c)) {
        word();
      } else {
        take();
      }
    }
  }

  // White space within a line, or a comment, which may go over lines.
  bool skip_blank() {
    if (is_space(peek())) {
      take();
    } else if (peek() == '/' && second() == '/') {
      while (!at_end() && peek() != '\n') take();
    } else if (peek() == '/' && second() == '*') {
      take();
      take();
      while (!at_end() && !(peek() == '*' && second() == '/')) take();
      doubtful_ |= at_end();
      take();
      take();
    } else {
      return false;
    }
    return true;
  }
  void skip_blanks() {
    while (!at_end() && skip_blank()) {}
  }

  bool take_hash() {
    if (peek() == '%' && second() == ':') {
      take();
    } else if (peek() != '#') {
      return false;
    }
    take();
    return true;
  }

  // To the closing quote, and the suffix of the user's literal after it: in "a"R"b", R is no prefix. A quote that is
  // missing ends at the end of its line.
  void skip_literal(char quote) {
    while (!at_end() && peek() != '\n') {
      const char c = take();
      if (c == quote) {
        take_word();
        return;
      }
      if (c == '\\' && peek() != '\n') take();
    }
    doubtful_ = true;
  }

  // Lines are not spliced in a raw string.
  void skip_raw_literal() {
    constexpr std::size_t kLongestMark = 16;
    const std::size_t begin = at_ + 1;
    const std::size_t open = text_.find('(', begin);
    const std::string_view mark = open == std::string_view::npos ? text_ : text_.substr(begin, open - begin);
    if (mark.size() > kLongestMark || mark.find_first_of(" )\\\"\t\v\f\r\n") != std::string_view::npos) {
      doubtful_ = true;
      take();
      return skip_literal('"');  // not a raw string after all
    }
    const std::string ending = fmt::format("){}\"", mark);
    const std::size_t close = text_.find(ending, open);
    doubtful_ |= close == std::string_view::npos;
    at_ = close == std::string_view::npos ? text_.size() : spliced(close + ending.size());
    take_word();
  }

  // 1'000, 0x1p-3: a quote in a number begins no literal.
  void skip_number() {
    for (char last = take(); !at_end(); last = take()) {
      const char c = peek();
      const bool sign = (c == '+' || c == '-') && (last == 'e' || last == 'E' || last == 'p' || last == 'P');
      if (!in_word(c) && c != '.' && !sign && !(c == '\'' && in_word(second()))) return;
    }
  }

  std::string take_word() {
    std::string word;
    while (!at_end() && in_word(peek())) word += take();
    return word;
  }

  void word() {
    const std::size_t start = at_;
    const std::string word = take_word();
    if (is_raw_prefix(word) && peek() == '"' && reading_ == Reading::exact) {
      doubtful_ |= text_[at_ - 1] == '\n';
      return skip_raw_literal();
    }
    if (is_one_of(word, kAsking)) return question(word, start);
    for (const std::string_view whole : kAsking) {
      if (whole.starts_with(word)) found_.has_beginning = true;
      if (whole.ends_with(word)) found_.has_end = true;
    }
  }

  // ---- what reads files --------------------------------------------------------------------------------------------

  void hash(bool first_on_line, std::size_t start) {
    if (!first_on_line) {
      if (take_hash()) found_.joins = true;
      return;
    }
    skip_blanks();
    const std::size_t after_hash = at_;
    const std::string directive = take_word();
    if (is_one_of(directive, kReading)) {
      add(fmt::format("#{} ", directive), start);
    } else {
      at_ = after_hash;
    }
  }

  // `defined(__has_include)` and #ifdef ask for no file.
  void question(const std::string& word, std::size_t start) {
    skip_blanks();
    if (peek() == '(') {
      take();
      add(fmt::format("{}(", word), start);
      found_.uses.back().words += ')';
    } else if (!asked_if_defined(start)) {
      found_.uses.push_back({.words = word, .name = {}, .line = line_of(start)});
    }
  }

  bool asked_if_defined(std::size_t start) const {
    std::string_view before = text_.substr(0, start);
    const auto trim = [&before] {
      while (!before.empty() && is_space(before.back())) before.remove_suffix(1);
    };
    trim();
    if (before.ends_with('(')) {
      before.remove_suffix(1);
      trim();
    }
    return std::ranges::any_of(kDefined, [before](std::string_view word) {
      return before.ends_with(word) &&
             (before.size() == word.size() || !in_word(before[before.size() - word.size() - 1]));
    });
  }

  // A name in quotes or angle brackets, or whatever the rest of the line holds instead.
  void add(const std::string& before, std::size_t start) {
    skip_blanks();
    const char open = peek();
    FileUse use{.words = before, .name = {}, .line = line_of(start)};
    if (open == '"' || open == '<') {
      const char close = open == '"' ? '"' : '>';
      std::string name;
      for (take(); !at_end() && peek() != '\n' && peek() != close;) name += take();
      if (peek() == close) take();
      use.words += open + name + close;
      use.name = name;
    } else {
      use.words += take_word();
    }
    found_.uses.push_back(std::move(use));
  }

  std::string_view text_;
  Reading reading_;
  std::size_t at_;
  bool doubtful_ = false;
  bool line_begins_ = true;
  int line_ = 1;  // of the position counted_
  std::size_t counted_ = 0;
  FileUses found_;
};

constexpr std::string_view kJoined = "a macro with ##, which could make a __has_include";

}  // namespace

FileUses file_uses(std::string_view text) {
  Scanner exact(text, Reading::exact);
  FileUses found = exact.scan();
  const auto add = [&found](const FileUses& more) {
    for (const FileUse& use : more.uses) {
      if (std::ranges::find(found.uses, use) == found.uses.end()) found.uses.push_back(use);
    }
    found.joins |= more.joins;
    found.has_beginning |= more.has_beginning;
    found.has_end |= more.has_end;
  };
  if (text.find('R') != std::string_view::npos) add(Scanner(text, Reading::without_raw_strings).scan());
  if (exact.doubtful()) add(Scanner(text, Reading::everywhere).scan());
  return found;
}

ForeignFiles::ForeignFiles(const TemplateFiles& templates) {
  for (const auto& [name, text] : templates) templates_.emplace(name, file_uses(text));
}

std::optional<ForeignFile> ForeignFiles::first(std::string_view source) const {
  const FileUses own = file_uses(source);
  std::set<std::string_view> seen;
  FileUses all;
  std::function<std::optional<ForeignFile>(std::string_view, const FileUses&)> look =
      [&](std::string_view file, const FileUses& uses) -> std::optional<ForeignFile> {
    all.joins |= uses.joins;
    all.has_beginning |= uses.has_beginning;
    all.has_end |= uses.has_end;
    for (const FileUse& use : uses.uses) {
      const auto found = templates_.find(use.name);
      if (found == templates_.end()) return ForeignFile{std::string(file), use.words, use.line};
      if (!seen.insert(found->first).second) continue;
      if (auto foreign = look(found->first, found->second)) return foreign;
    }
    return std::nullopt;
  };
  if (auto foreign = look("", own)) return foreign;
  if (all.joins && all.has_beginning && all.has_end) return ForeignFile{{}, std::string(kJoined), 0};
  return std::nullopt;
}

}  // namespace ingot
