// Where the transposed codes of experts' rows are that share a scale with 128 neighbours along the rows, and their
// scale_inv: an expert's blocks of 128 rows begin with its first row, and each block has a slot of 128 columns, so that
// a GEMM along these rows reads whole slots. What a slot holds beyond its expert's rows are zeros.
//
// Expert e, whose rows begin at row b of all, has the slots from b / 128 + e on, as many as it has blocks, and one of
// zeros if it has no rows. Rows that no expert has follow, like those of one more expert, which may have no slot. So no
// table says where slots are, and no two experts share one; a slot between two experts may be nobody's.
#pragma once

#include "platform.cuh"

namespace ingot {

struct ExpertSlots {
  static constexpr i64 kRows = 128;

  // Of all experts together.
  INGOT_HOST_DEVICE static constexpr i64 count(i64 rows, i64 experts) { return rows / kRows + experts + 1; }
  // The most rows that so many slots have room for, wherever experts end; below 0 if they have none for so many
  // experts.
  INGOT_HOST_DEVICE static constexpr i64 most_rows(i64 slots, i64 experts) { return (slots - experts) * kRows - 1; }
  INGOT_HOST_DEVICE static constexpr i64 first(i64 begin, i64 expert) { return begin / kRows + expert; }
  // Of an expert.
  INGOT_HOST_DEVICE static constexpr i64 of_rows(i64 rows) { return max_of(ceil_div(rows, kRows), i64{1}); }
};

}  // namespace ingot
