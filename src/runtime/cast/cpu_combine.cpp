// combine on the CPU: what it asks of its tensors, and its values.
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "ingot/runtime/cast/cast_operations.h"
#include "ingot/runtime/cast/row_index.h"
#include "ingot/runtime/core/check_tensor.h"
#include "ingot/runtime/core/visit.h"
#include "ingot/runtime/cpu/thread_pool.h"
#include "ingot/runtime/util/count_of.h"

#include "numerics.cuh"

namespace ingot {

void check(const CombineSpec& spec, const CombineTensors& tensors, Device device) {
  validate_spec(spec);
  const auto refuse_index = [](const std::string& why) {
    throw Error(ErrorCode::invalid_argument, "combine index", why);
  };
  const Range in = check_matrix("combine input", tensors.input, spec.in, device);
  const Range out = check_matrix("combine output", tensors.output, spec.in, device);
  if (tensors.output.cols != tensors.input.cols) {
    refuse("combine output", tensors.output,
           fmt::format("it must have {}, as the input", count_of(tensors.input.cols, "column")));
  }
  const RowIndex& index = tensors.index;
  const std::int64_t tokens = tensors.output.rows;
  constexpr std::int64_t kAny = 1;  // what names no row counts as nothing, also where there are none
  const std::string fault = fault_of(index, kAny, device);
  if (!fault.empty()) refuse_index(fault);
  if (tokens == 0 ? index.rows != 0 : index.rows % tokens != 0) {
    refuse_index(fmt::format("has {}, but must have as many for each of the output's {} rows",
                             count_of(index.rows, "row"), tokens));
  }
  const Tensor bytes = bytes_of(index);
  const Range named{.what = "combine index", .tensor = &bytes, .bytes = static_cast<std::size_t>(bytes.cols)};
  check_overlaps({&named, 1}, {&out, 1});
  check_overlaps({&in, 1}, {&out, 1});
}

}  // namespace ingot

namespace ingot::cpu {
namespace {

template <class In>
void combine_token(const CombineTensors& tensors, i64 token, i64 choices, std::vector<float>& sums) {
  const i64 cols = tensors.input.cols;
  std::ranges::fill(sums, 0.0F);
  for (i64 j = 0; j < choices; ++j) {
    const i64 named = tensors.index.data[token * choices + j];
    if (named < 0 || named >= tensors.input.rows) continue;
    const In* const input = row<const In>(tensors.input, named);
    for (i64 c = 0; c < cols; ++c) {
      float& sum = sums[static_cast<std::size_t>(c)];
      sum = sum + to_float(input[c]);
    }
  }
  std::ranges::transform(sums, row<In>(tensors.output, token), from_float<In>);
}

}  // namespace

void combine(const CombineSpec& spec, const CombineTensors& tensors, ThreadPool& pool) {
  const i64 tokens = tensors.output.rows;
  if (tokens == 0 || tensors.output.cols == 0) return;
  const i64 choices = tensors.index.rows / tokens;
  visit_high_precision(spec.in, [&]<class In>(Type<In>) {
    pool.parallel_for(tokens, 64, [&](i64 begin, i64 end) {
      std::vector<float> sums(static_cast<std::size_t>(tensors.input.cols));
      for (i64 token = begin; token < end; ++token) combine_token<In>(tensors, token, choices, sums);
    });
  });
}

}  // namespace ingot::cpu
