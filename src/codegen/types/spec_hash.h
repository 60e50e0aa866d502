// Hashes of specs, for tables in memory: nothing that is stored depends on them.
#pragma once

#include <cstdint>
#include <string_view>

#include "ingot/codegen/types/granularity.h"

namespace ingot {

// One byte for each small field, the first one lowest.
template <class... Fields>
constexpr std::uint64_t pack(Fields... fields) {
  static_assert(sizeof...(fields) <= 8);
  std::uint64_t word = 0;
  int shift = 0;
  ((word |= std::uint64_t{static_cast<std::uint8_t>(fields)} << shift, shift += 8), ...);
  return word;
}

// The finaliser of SplitMix64: every input bit reaches every output bit.
constexpr std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31);
}

constexpr std::uint64_t bits(ScaleGranularity scale) {
  return (std::uint64_t{static_cast<std::uint32_t>(scale.rows)} << 32) | static_cast<std::uint32_t>(scale.cols);
}

// Keeps specs of different operations apart (FNV-1a of the operation's word).
template <class Spec>
consteval std::uint64_t seed() {
  std::uint64_t hash = 0xcbf29ce484222325U;
  for (const char c : Spec::kWord) hash = (hash ^ static_cast<std::uint8_t>(c)) * 0x100000001b3U;
  return hash;
}

}  // namespace ingot
