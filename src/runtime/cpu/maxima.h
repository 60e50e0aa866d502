// Maxima of |x| over the extents of a granularity, in the integer form of templates/scaling.cuh: NaN is kept, and the
// order does not matter.
#pragma once

#include <algorithm>
#include <mutex>
#include <vector>

#include "ingot/codegen/granularity.h"
#include "ingot/runtime/cpu/thread_pool.h"
#include "ingot/runtime/cpu/visit.h"

#include "scaling.cuh"

namespace ingot::cpu {

// Rows per range of a loop over a matrix: some 64 Ki elements, so that handing out a range costs nothing beside it.
inline i64 rows_per_range(i64 cols) { return std::max<i64>(1, 65536 / std::max<i64>(1, cols)); }

// Which extent an element belongs to: extents are numbered row by row.
class Extents {
 public:
  Extents(const ScaleGranularity& granularity, i64 rows, i64 cols)
      : count_(scale_count(granularity, rows, cols)),
        rows_(granularity.rows == 0 ? std::max<i64>(1, rows) : granularity.rows),
        cols_(granularity.cols == 0 ? std::max<i64>(1, cols) : granularity.cols),
        across_(granularity.cols == 0 ? 1 : ceil_div(cols, cols_)) {}

  i64 count() const { return count_; }
  i64 cols() const { return cols_; }
  i64 index(i64 row, i64 col) const { return row / rows_ * across_ + col / cols_; }

 private:
  i64 count_;
  i64 rows_, cols_;  // of one extent
  i64 across_;
};

template <class T>
u32 amax_bits_of(const T* elements, i64 count) {
  u32 largest = 0;
  for (i64 c = 0; c < count; ++c) largest = std::max(largest, amax_bits(to_float(elements[c])));
  return largest;
}

template <class T>
std::vector<u32> maxima_of(const Extents& extents, const Tensor& input, ThreadPool& pool) {
  std::vector<u32> maxima(static_cast<std::size_t>(extents.count()), 0U);
  if (input.empty()) return maxima;
  std::mutex merging;
  pool.parallel_for(input.rows, rows_per_range(input.cols), [&](i64 begin, i64 end) {
    // This range's extents are neighbours, and may reach into the ranges beside it.
    const i64 first = extents.index(begin, 0);
    const i64 last = extents.index(end - 1, input.cols - 1);
    std::vector<u32> mine(static_cast<std::size_t>(last - first + 1), 0U);
    for (i64 r = begin; r < end; ++r) {
      for (i64 c = 0; c < input.cols; c += extents.cols()) {
        u32& maximum = mine[static_cast<std::size_t>(extents.index(r, c) - first)];
        maximum = std::max(maximum, amax_bits_of(row<const T>(input, r) + c, std::min(extents.cols(), input.cols - c)));
      }
    }
    const std::lock_guard lock(merging);
    for (std::size_t i = 0; i < mine.size(); ++i) {
      u32& maximum = maxima[static_cast<std::size_t>(first) + i];
      maximum = std::max(maximum, mine[i]);
    }
  });
  return maxima;
}

}  // namespace ingot::cpu
