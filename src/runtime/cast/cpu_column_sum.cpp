// column_sum on the CPU, in the order of templates/cast/column_sum.cuh, so that the sums have the GPU's bits.
#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "ingot/runtime/cast/cast_operations.h"
#include "ingot/runtime/cast/row_index.h"
#include "ingot/runtime/core/check_experts.h"
#include "ingot/runtime/core/check_tensor.h"
#include "ingot/runtime/core/visit.h"
#include "ingot/runtime/cpu/thread_pool.h"
#include "ingot/runtime/util/error.h"

#include "cast/column_sum.cuh"
#include "expert_slots.cuh"

namespace ingot {

namespace {

constexpr const char* kEnds = "column_sum ends";
constexpr const char* kIndex = "column_sum row_index";

// Of experts.
void check_sums(const ColumnSumSpec& spec, const ColumnSumTensors& tensors, Device device) {
  const Range in = check_matrix("column_sum input", tensors.input, spec.in, device);
  const ExpertEnds& ends = tensors.ends;
  check_ends(kEnds, ends, device);
  if (ends.capacity) {
    throw Error(ErrorCode::invalid_argument, kEnds, "have a capacity, but the rows of sums follow each other");
  }
  Tensor index{};
  if (tensors.row_index) {
    const std::string fault = fault_of(*tensors.row_index, tensors.input.rows, device);
    if (!fault.empty()) throw Error(ErrorCode::invalid_argument, kIndex, fault);
    index = bytes_of(*tensors.row_index);
  }
  if (device.type == DeviceType::cpu) check_expert_values(tensors);
  const Range sum = check_matrix("column_sum sum", tensors.sum, spec.out, ends.experts, tensors.input.cols, device,
                                 "one row for each expert, of the input's columns");
  if (tensors.sum.row_stride != tensors.sum.cols && tensors.sum.rows > 1) {
    refuse("column_sum sum", tensors.sum, "its rows must follow each other: give it dense memory");
  }
  const Tensor bytes = bytes_of(ends);
  const Range inputs[] = {in,
                          {kEnds, &bytes, static_cast<std::size_t>(bytes.cols)},
                          {kIndex, &index, static_cast<std::size_t>(index.cols)}};
  check_overlaps(inputs, {&sum, 1});
}

}  // namespace

void check_expert_values(const ColumnSumTensors& tensors) {
  const std::int64_t rows = tensors.row_index ? tensors.row_index->rows : tensors.input.rows;
  check_end_values(kEnds, tensors.ends, {.lines = rows, .line = "row", .of = "the sum"});
}

void check(const ColumnSumSpec& spec, const ColumnSumTensors& tensors, Device device) {
  validate_spec(spec);
  if (spec.experts) return check_sums(spec, tensors, device);
  if (tensors.ends.data != nullptr || tensors.row_index) {
    throw Error(ErrorCode::invalid_argument, kEnds,
                "must not be given (default ExpertEnds and no row_index instead): the spec has no experts");
  }
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

// An expert's blocks of 128 rows, each in ascending order, then the blocks.
template <class In, class Out>
void sum_columns_of(const ColumnSumTensors& tensors, i64 expert) {
  const i64 cols = tensors.input.cols;
  const i64 begin = expert == 0 ? 0 : tensors.ends.data[expert - 1];
  const i64 end = tensors.ends.data[expert];
  std::vector<float> totals(static_cast<std::size_t>(cols), 0.0F);
  std::vector<float> sums(static_cast<std::size_t>(cols));
  for (i64 first = begin; first < end; first += ExpertSlots::kRows) {
    std::fill(sums.begin(), sums.end(), 0.0F);
    for (i64 r = first; r < std::min(first + ExpertSlots::kRows, end); ++r) {
      const i64 named = tensors.row_index ? tensors.row_index->data[r] : r;
      const i64 last = tensors.input.rows - 1;
      const In* const input = row<const In>(tensors.input, named < 0 ? last : std::min(named, last));
      for (i64 c = 0; c < cols; ++c) {
        float& sum = sums[static_cast<std::size_t>(c)];
        sum = sum + to_float(input[c]);
      }
    }
    for (std::size_t c = 0; c < sums.size(); ++c) totals[c] = totals[c] + sums[c];
  }
  std::ranges::transform(totals, row<Out>(tensors.sum, expert), [](float total) { return from_float<Out>(total); });
}

}  // namespace

void column_sum(const ColumnSumSpec& spec, const ColumnSumTensors& tensors, ThreadPool& pool) {
  visit_high_precision(spec.in, [&]<class In>(Type<In>) {
    visit_high_precision(spec.out, [&]<class Out>(Type<Out>) {
      if (spec.experts) {
        for (i64 e = 0; e < tensors.ends.experts; ++e) sum_columns_of<In, Out>(tensors, e);
        return;
      }
      pool.parallel_for(tensors.input.cols, 256,
                        [&](i64 begin, i64 end) { sum_columns<In, Out>(tensors, begin, end); });
    });
  });
}

}  // namespace ingot::cpu
