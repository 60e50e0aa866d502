// Maxima of |x| over rows, in the integer form of templates/scaling.cuh: NaN is kept, and the order does not matter.
#pragma once

#include <algorithm>
#include <atomic>

#include "ingot/runtime/cpu/thread_pool.h"
#include "ingot/runtime/cpu/visit.h"

#include "scaling.cuh"

namespace ingot::cpu {

// Rows per range of a loop over a matrix: some 64 Ki elements, so that handing out a range costs nothing beside it.
inline i64 rows_per_range(i64 cols) { return std::max<i64>(1, 65536 / std::max<i64>(1, cols)); }

template <class T>
u32 row_amax_bits(const T* elements, i64 cols) {
  u32 largest = 0;
  for (i64 c = 0; c < cols; ++c) largest = std::max(largest, amax_bits(to_float(elements[c])));
  return largest;
}

template <class T>
u32 tensor_amax_bits(const Tensor& input, ThreadPool& pool) {
  if (input.empty()) return 0;
  std::atomic<u32> largest{0};
  pool.parallel_for(input.rows, rows_per_range(input.cols), [&](i64 begin, i64 end) {
    u32 mine = 0;
    for (i64 r = begin; r < end; ++r) mine = std::max(mine, row_amax_bits(row<const T>(input, r), input.cols));
    u32 seen = largest.load();
    while (seen < mine && !largest.compare_exchange_weak(seen, mine)) {}
  });
  return largest.load();
}

}  // namespace ingot::cpu
