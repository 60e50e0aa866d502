// Which rows the experts of a mixture have, for grouped GEMMs and for casts of their operands.
#pragma once

#include <cstdint>
#include <optional>

#include "ingot/api.h"
#include "ingot/runtime/core/tensor.h"

namespace ingot {

// Which rows of a (along K: which columns) each expert of a grouped GEMM has; `data` is in the device's memory. Without
// a capacity they are contiguous: data[e] is the row at which expert e's rows end, 0 <= data[0] <= data[1] ... <= M.
// With one they are masked, as for decoding under a captured graph: rows e * capacity to (e + 1) * capacity belong to
// expert e, M = experts * capacity, and 0 <= data[e] <= capacity is how many of them it uses.
//
// Along K they are contiguous, and of columns: those of expert e in a and in b end at column data[e] <= K. With
// scale_inv of groups, whose columns are in slots, they count the rows of which these columns are the transpose.
//
// A GPU's values are not seen by the host. If one is out of these bounds, which rows or columns an expert has is
// unspecified, but nothing outside of the tensors is read or written.
struct ExpertEnds {
  const std::int32_t* data = nullptr;
  std::int64_t experts = 0;  // 1 to kMostExperts
  Device device{};
  std::optional<std::int64_t> capacity{};  // none: contiguous
};

// The 128 columns wide slots of transposed codes of so many rows of experts, whose blocks of 128 rows begin with each
// expert's first (templates/expert_slots.cuh).
INGOT_API std::int64_t expert_slots(std::int64_t rows, std::int64_t experts);

}  // namespace ingot
