// The launches that a cast is made of.
#pragma once

#include <cstdint>

#include "ingot/codegen/cast/cast_spec.h"

namespace ingot {

// rows: each row stays on the chip, in one launch (templates/cast/cast_rows.cuh, cast_rows_wide.cuh).
// row_groups: likewise with 1 x 128 groups (templates/cast/cast_row_groups.cuh).
// rows_then_tiles: first the codes by rows, which also finds the maxima that the transposed codes share; then the
// transposed codes in tiles (templates/cast/cast_tiles.cuh).
// tiles: everything in tiles, after a pass for the maxima that no tile sees whole.
enum class CastSchedule : std::uint8_t { rows, row_groups, rows_then_tiles, tiles };
CastSchedule cast_schedule(const CastSpec& spec);

// The maxima that a cast in tiles needs beforehand, and the kernel that finds them: none, amax_partials (one maximum
// per block), amax_rows, or amax_tiles (raises maxima that must be cleared first).
struct FirstPass {
  enum class Kind : std::uint8_t { none, partials, rows, tiles };
  bool tensor = false;
  bool rows = false;
  bool columns = false;
  Kind kind() const;
};
FirstPass first_pass(const CastSpec& spec);

// Do a cast's dynamic scales of this granularity come from such a pass? Otherwise each tile finds them.
constexpr bool from_first_pass(ScaleGranularity scale) {
  return scale == kTensorwise || scale == kRowwise || scale == kColumnwise;
}

}  // namespace ingot
