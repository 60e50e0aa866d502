// The kernels that one spec takes, one launch each: stages of its work, each in a variant of its kernel.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ingot {

// In the order of their launches. first: computes what the main stage builds on, such as the maxima that a tensorwise
// cast needs before it. main: every spec has it. finish: combines what the main stage left in parts, such as column
// sums.
enum class Stage : std::uint8_t { first, main, finish };

// All variants give the same bits; the tensors choose. whole: one launch is both the first and the main stage, of
// matrices that are small enough (templates/cast/cast_whole.cuh), or of stacked ones whose rows fit a block
// (cast_rows_columns.cuh). unaligned: for matrices whose rows do not start at
// multiples of 16 bytes. wide: goes along rows that have a block or a cluster each. keeping and kept: of a costly
// expression whose values are neither few nor too many, the first stage also writes them (keeping) and the main one
// reads them (kept).
enum class Variant : std::uint8_t { standard, whole, unaligned, wide, keeping, kept };

struct Pass {
  Stage stage = Stage::main;
  Variant variant = Variant::standard;
  constexpr bool operator==(const Pass&) const = default;
  // A small number that no other pass has.
  constexpr std::size_t number() const {
    return static_cast<std::size_t>(stage) + 3 * static_cast<std::size_t>(variant);
  }

  static const Pass first, main, finish, whole, unaligned, wide, first_wide, keeping, kept;
};

inline constexpr Pass Pass::first{.stage = Stage::first};
inline constexpr Pass Pass::main{};
inline constexpr Pass Pass::finish{.stage = Stage::finish};
inline constexpr Pass Pass::whole{.variant = Variant::whole};
inline constexpr Pass Pass::unaligned{.variant = Variant::unaligned};
inline constexpr Pass Pass::wide{.variant = Variant::wide};
inline constexpr Pass Pass::first_wide{.stage = Stage::first, .variant = Variant::wide};
inline constexpr Pass Pass::keeping{.stage = Stage::first, .variant = Variant::keeping};
inline constexpr Pass Pass::kept{.variant = Variant::kept};

// The passes that a spec may take in addition to the main one.
struct ExtraPasses {
  bool first = false;
  bool finish = false;
  bool whole = false;
  bool unaligned = false;
  bool wide = false;
  bool first_wide = false;
  bool kept = false;  // and keeping
};

}  // namespace ingot
