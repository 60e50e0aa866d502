// Which norms have a kernel that is compiled for a number of columns (templates/norm/norm_rows_full.cuh and
// norm_rows_wide.cuh); norm_rows takes all others.
#pragma once

#include <cstdint>

#include "ingot/codegen/types/dtype.h"
#include "ingot/codegen/types/granularity.h"

#include "norm/norm_rows_full.cuh"
#include "norm/norm_rows_wide.cuh"

namespace ingot {

// The NormSpec::cols that names the kernel for rows of `cols` columns that can be read in vectors; 0 if there is none.
// Spec: NormSpec, whose source includes this file.
template <class Spec>
std::int32_t norm_kernel_cols(const Spec& spec, std::int64_t cols) {
  const bool alone = spec.out && !spec.result;
  const std::int64_t bytes = size_of(spec.in);
  if (NormRowsFullLaunch::takes(cols, bytes, alone && spec.affine && spec.scale == kRowwise)) {
    return static_cast<std::int32_t>(cols);
  }
  if (!NormRowsWideLaunch::takes(cols, bytes, alone)) return 0;
  return static_cast<std::int32_t>(NormRowsWideLaunch::kernel_cols(cols));
}

// Which of the two kernels does a NormSpec::cols other than 0 name: norm_rows_full, or norm_rows_wide?
inline bool names_norm_rows_full(std::int64_t cols) { return cols <= NormRowsFullLaunch::kMaxCols; }

}  // namespace ingot
