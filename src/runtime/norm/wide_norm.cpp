#include "ingot/runtime/norm/norm_operations.h"

#include "norm/norm_rows_wide.cuh"

namespace ingot {

NormSpec wide_norm(const NormSpec& spec, std::int64_t cols) {
  const bool codes_alone = spec.out && !spec.result;
  NormSpec wide = spec;
  if (spec.cols == 0 && NormRowsWideLaunch::takes(cols, static_cast<u32>(size_of(spec.in)), codes_alone)) {
    wide.cols = static_cast<std::int32_t>(NormRowsWideLaunch::kernel_cols(cols));
  }
  return wide;
}

}  // namespace ingot
