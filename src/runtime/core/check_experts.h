// What is asked of where experts end (expert_ends.h), in sentences; for casts and GEMMs.
#pragma once

#include <cstdint>

#include "ingot/runtime/core/expert_ends.h"

namespace ingot {

// Their memory, as a tensor.
Tensor bytes_of(const ExpertEnds& ends);

// The rest throws Error{invalid_argument} with `what` as its subject. All but the values.
void check_ends(const char* what, const ExpertEnds& ends, Device device);

// With a capacity: are the tensor's rows, which messages call `what`, those that experts have room for?
void check_capacity(const char* what, const Tensor& tensor, const ExpertEnds& ends);

// The values, where the host can read them: of `lines` rows or columns of `of`, called `line`.
struct ExpertLines {
  std::int64_t lines = 0;
  const char* line = "row";
  const char* of = "";
};
void check_end_values(const char* what, const ExpertEnds& ends, const ExpertLines& lines);

}  // namespace ingot
