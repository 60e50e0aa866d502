// The part of a long list of cases that CI runs: the same one every day and on every machine. Whether a case belongs to
// it follows from the hash of its name, so a new case moves no other; of a kind that would have none, it has the
// case with the smallest hash. With `-- nightly` as arguments a program runs all cases.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ingot::test {

// FNV-1a, folded: its low bits alone would depend on the low bits of the name's characters only.
constexpr std::uint32_t stable_hash(std::string_view name) {
  std::uint64_t hash = 0xcbf29ce484222325U;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
  return static_cast<std::uint32_t>(hash ^ hash >> 32U);
}

struct NamedCase {
  std::string name;
  std::vector<std::string> kinds{""};  // CI has one of each, at least
  std::uint32_t rarer = 1;             // CI's part of such cases is this many times smaller
};

// The kinds of a case that is named in words, as in "cast bf16->e4m3fn scale=row 8x8": its first word with each other
// one, which is a pair of formats, a granularity, a shape, an input or a padding.
std::vector<std::string> kinds_of_words(const std::string& name);

class FixedSet {
 public:
  // Every `one_of`-th case, or all if the arguments of this program say so.
  explicit FixedSet(std::uint32_t one_of);

  // Whether a case runs now, whatever its kind.
  bool has(std::string_view name, std::uint32_t rarer = 1) const {
    return one_of_ == 1 || stable_hash(name) % (one_of_ * rarer) == 0;
  }

  // Which cases of a list run now, in its order.
  std::vector<std::size_t> of(const std::vector<NamedCase>& cases) const;

 private:
  std::uint32_t one_of_;
};

// Whether the arguments of this program say that it runs everything.
bool runs_nightly();

}  // namespace ingot::test
