// column_sum on the CPU, in the order of templates/cast/column_sum.cuh, so that the sums have the GPU's bits.
#include <algorithm>
#include <vector>

#include "ingot/runtime/cast/cast_operations.h"
#include "ingot/runtime/core/check_tensor.h"
#include "ingot/runtime/core/visit.h"
#include "ingot/runtime/cpu/thread_pool.h"

#include "cast/column_sum.cuh"

namespace ingot {

void check(const ColumnSumSpec& spec, const ColumnSumTensors& tensors, Device device) {
  validate_spec(spec);
  const Range in = check_matrix("column_sum input", tensors.input, spec.in, device);
  const Range out = check_vector("column_sum sum", tensors.sum, spec.out, tensors.input.cols, device,
                                 "one for each column of the input");
  check_overlaps({&in, 1}, {&out, 1});
}

}  // namespace ingot

namespace ingot::cpu {
namespace {

// Rows of a chunk ascending, then chunks ascending.
template <class In, class Out>
void sum_columns(const ColumnSumTensors& tensors, i64 begin, i64 end) {
  const i64 rows = tensors.input.rows;
  const i64 chunk_rows = rows_per_chunk(rows);
  const i64 cols = end - begin;
  std::vector<float> totals(static_cast<std::size_t>(cols), 0.0F);
  std::vector<float> sums(static_cast<std::size_t>(cols));
  float* const total = totals.data();
  float* const sum = sums.data();
  for (i64 first = 0; first < rows; first += chunk_rows) {
    std::fill(sums.begin(), sums.end(), 0.0F);
    for (i64 r = first; r < std::min(first + chunk_rows, rows); ++r) {
      const In* const input = row<const In>(tensors.input, r) + begin;
      for (i64 c = 0; c < cols; ++c) sum[c] = sum[c] + to_float(input[c]);
    }
    for (i64 c = 0; c < cols; ++c) total[c] = total[c] + sum[c];
  }
  Out* const out = row<Out>(tensors.sum, 0) + begin;
  for (i64 c = 0; c < cols; ++c) out[c] = from_float<Out>(total[c]);
}

}  // namespace

void column_sum(const ColumnSumSpec& spec, const ColumnSumTensors& tensors, ThreadPool& pool) {
  visit_high_precision(spec.in, [&]<class In>(Type<In>) {
    visit_high_precision(spec.out, [&]<class Out>(Type<Out>) {
      pool.parallel_for(tensors.input.cols, 256,
                        [&](i64 begin, i64 end) { sum_columns<In, Out>(tensors, begin, end); });
    });
  });
}

}  // namespace ingot::cpu
