// What every family's spec is read and checked with. A line, such as "cast bf16->e4m3fn scale=row pow2": the
// first word names the operation, the next ones come in a fixed order, and the options after them in any order. Errors
// quote the word that is wrong.
#pragma once

#include <fmt/format.h>
#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
#include "ingot/codegen/types/dtype.h"
#include "ingot/codegen/types/granularity.h"
#include "ingot/runtime/util/error.h"

namespace ingot {

// "scale=row" has the key "scale" and the value "row"; "pow2" is its own key and has an empty value.
struct SpecOption {
  std::string_view word;
  std::string_view key;
  std::string_view value;

  // True for "scale=row" and "scale=".
  bool has_value() const { return key.size() < word.size(); }
};

// A function that takes a `word` says in its message that the text stands in that word; without one, or if the text is
// the whole word, the message quotes only the text.
class SpecReader {
 public:
  // Throws Error{invalid_spec} if the line is empty or leaves a quotation mark open. Refers to `line`.
  explicit SpecReader(std::string_view line);

  // Throws Error{invalid_spec} with the line as its subject.
  [[noreturn]] void fail(const std::string& message) const;

  // Word 0 names the operation.
  const std::string& word(std::size_t index) const { return words_[index]; }
  // Refuses a line of fewer than `count` words. form: what must follow the operation's name.
  void require_words(std::size_t count, std::string_view form) const;

  // Applies each word from the `first` on. `take` stores what the option gives and returns the field's name, or null
  // if the operation has no such option; giving a field twice is an error. form: the options that there are.
  using TakeOption = std::function<const char*(const SpecOption& option)>;
  void each_option(std::size_t first, std::string_view form, const TakeOption& take) const;
  // Refuses any word from the `first` on.
  void no_options(std::size_t first, std::string_view form) const;

  // Both sides of the first divider. form: what the text, or `word`, must be.
  std::pair<std::string_view, std::string_view> halves(std::string_view text, std::string_view divider,
                                                       std::string_view form, std::string_view word = {}) const;
  // Calls `take` for each part between commas; also for empty ones.
  static void each_part(std::string_view list, const std::function<void(std::string_view part)>& take);

  // A high-precision or FP8 dtype is expected.
  Dtype dtype(std::string_view text, std::string_view word = {}) const;
  Dtype dtype_among(std::string_view text, std::string_view expected) const;
  ScaleGranularity granularity(std::string_view text, std::string_view word = {},
                               std::string_view expected = "tensor, row, col or <rows>x<cols>") const;
  // Of an option such as scale=row or scale=row+col.
  void granularities(const SpecOption& option, ScaleGranularity& first, std::optional<ScaleGranularity>& second) const;
  // The value of parse(text), which is optional. The message: "<text>" is no <what>; expected <expected>.
  template <class Parse>
  auto parsed(const Parse& parse, std::string_view text, std::string_view word, std::string_view what,
              std::string_view expected) const {
    const auto value = parse(text);
    if (!value) fail_as(text, word, what, expected);
    return *value;
  }
  int number(std::string_view text, std::string_view word, std::string_view what, std::string_view expected) const;

 private:
  [[noreturn]] void fail_as(std::string_view text, std::string_view word, std::string_view what,
                            std::string_view expected) const;

  std::string_view line_;
  std::vector<std::string> words_;
};

// Takes the number up to `end` off the text, and `end` with it. '\0' as end: the number is all that is left.
std::optional<int> take_number(std::string_view& text, char end);

// Of validate_spec(): a refusal quotes the spec's line and names the field.
template <class Spec>
[[noreturn]] void refuse(const Spec& spec, const std::string& message) {
  throw Error(ErrorCode::invalid_spec, print_spec(spec), message);
}

template <class Spec>
void require_dtype(const Spec& spec, const char* field, Dtype dtype, std::span<const Dtype> allowed) {
  if (among(allowed, dtype)) return;
  refuse(spec, fmt::format("{} is {}, but must be one of {}", field, name(dtype), list(allowed)));
}

template <class Spec>
void require_scale(const Spec& spec, const char* field, ScaleGranularity scale,
                   std::span<const ScaleGranularity> allowed) {
  if (among(allowed, scale)) return;
  refuse(spec, fmt::format("{} is {}, but must be {}", field, print(scale), one_of(allowed)));
}

// Of values that are rounded to 16 bits before a list of operations takes them, if `rounded` is set. `may`: is it one
// of the specs that round? `which` says which do.
template <class Spec>
void require_rounded(const Spec& spec, Dtype in, std::optional<Dtype> rounded, bool may, const char* which) {
  if (!rounded) return;
  require_dtype(spec, "rounded", *rounded, std::array{Dtype::bf16, Dtype::f16});
  if (in != Dtype::f32) {
    refuse(spec, fmt::format("rounded is set, but in is {}: only values in f32 are rounded first", name(in)));
  }
  if (!may) refuse(spec, fmt::format("rounded is set, but {}", which));
}

template <class Spec>
void require_source(const Spec& spec, ScaleSource source) {
  if (source == ScaleSource::dynamic || source == ScaleSource::given) return;
  refuse(spec,
         fmt::format("source is {}, which is not valid; it must be dynamic or given", static_cast<unsigned>(source)));
}

}  // namespace ingot
