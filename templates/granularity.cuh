// Which elements of a matrix share a scale, as a template argument. codegen's ScaleGranularity has the same two numbers
// (src/codegen/types/template_types.h), so that a kernel's text says {.rows = 1, .cols = 128} and no name.
#pragma once

#include "platform.cuh"

namespace ingot {

// rows x cols elements share a scale; 0 is the whole dimension. {0, 0}: one scale for the tensor; {1, 0}: one for each
// row; {1, 128}: one for each group of 128 neighbours in a row; {128, 128}: one for each block. Groups and blocks start
// at multiples of their extents; the last may be cut short.
struct Granularity {
  u32 rows = 0, cols = 0;
  bool operator==(const Granularity&) const = default;
};

// One scale for all elements.
INGOT_HOST_DEVICE constexpr bool is_tensorwise(Granularity g) { return g.rows == 0 && g.cols == 0; }
// One scale for each whole row (column).
INGOT_HOST_DEVICE constexpr bool is_rowwise(Granularity g) { return g.rows == 1 && g.cols == 0; }
INGOT_HOST_DEVICE constexpr bool is_columnwise(Granularity g) { return g.rows == 0 && g.cols == 1; }
// No two rows (columns) share a scale, be they whole or in groups.
INGOT_HOST_DEVICE constexpr bool by_row(Granularity g) { return g.rows == 1; }
INGOT_HOST_DEVICE constexpr bool by_column(Granularity g) { return g.cols == 1; }
// Groups or blocks of an extent that does not depend on the matrix.
INGOT_HOST_DEVICE constexpr bool has_extents(Granularity g) { return g.rows != 0 && g.cols != 0; }

}  // namespace ingot
