#include "ingot/runtime/core/check_scales.h"

#include <fmt/format.h>

namespace ingot {

std::string scales_in_words(ScaleGranularity granularity, const ScaledMatrix& matrix) {
  const auto [rows, cols] = granularity;
  if (granularity == kTensorwise) return matrix.whole;
  if (granularity == kRowwise) return matrix.row;
  if (granularity == kColumnwise) return fmt::format("one for each column{}", matrix.of);
  if (cols == 0) return fmt::format("one for each {} rows{}", rows, matrix.of);
  if (rows == 0) return fmt::format("one for each {} columns{}", cols, matrix.of);
  if (rows == 1) return fmt::format("one for each group of {} {}, row by row", cols, matrix.in_row);
  if (cols == 1) {
    return fmt::format("one for each group of {0} in a column{1}, {0} rows by {0} rows", rows, matrix.of);
  }
  return fmt::format("one for each block of {} x {}{}, row by row", rows, cols, matrix.of);
}

Range check_scales(const char* what, const Tensor& tensor, Dtype dtype, ScaleGranularity granularity, std::int64_t rows,
                   std::int64_t cols, Device device, const ScaledMatrix& matrix) {
  const std::int64_t count = scale_count(granularity, rows, cols);
  // Every launch comes here: the words are put together only for a message, which a vector of this size never has.
  if (tensor.rows == 1 && tensor.cols == count) return check_vector(what, tensor, dtype, count, device, "");
  return check_vector(what, tensor, dtype, count, device, scales_in_words(granularity, matrix).c_str());
}

Range check_scale_inv(const char* what, const Tensor& scale_inv, ScaleGranularity granularity, std::int64_t rows,
                      std::int64_t cols, Device device, const ScaledMatrix& matrix, const char* groups) {
  const std::int64_t across = granularity.cols == 0 ? 1 : scale_count(granularity, 1, cols);
  if (across == 1 || (scale_inv.rows == 1 && scale_inv.cols == scale_count(granularity, rows, cols))) {
    return check_scales(what, scale_inv, Dtype::f32, granularity, rows, cols, device, matrix);
  }
  const std::int64_t in_group = scale_count({granularity.rows, 0}, rows, cols);
  if (scale_inv.rows == across && scale_inv.cols == in_group) return check_matrix(what, scale_inv, Dtype::f32, device);
  const std::string both = fmt::format("{}, or [{}, {}]: one row for each {}", scales_in_words(granularity, matrix),
                                       across, in_group, groups);
  return check_vector(what, scale_inv, Dtype::f32, scale_count(granularity, rows, cols), device, both.c_str());
}

}  // namespace ingot
