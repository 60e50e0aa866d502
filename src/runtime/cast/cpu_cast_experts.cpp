// Casts of experts' rows on the CPU (CastSpec::experts): a cast of each expert's rows by itself, whose transposed codes
// go to its slots.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "ingot/codegen/pointwise/pointwise.h"
#include "ingot/runtime/cast/cast_operations.h"
#include "ingot/runtime/cast/cast_tensors.h"
#include "ingot/runtime/core/visit.h"

#include "expert_slots.cuh"
#include "scaling.cuh"

namespace ingot::cpu {
namespace {

struct Rows {
  std::int64_t begin, end;
  std::int64_t count() const { return end - begin; }
};

Tensor rows_of(const Tensor& all, const Rows& rows) {
  Tensor part = all;
  part.data = static_cast<std::byte*>(all.data) + rows.begin * all.row_stride * size_of(all.dtype);
  part.rows = rows.count();
  return part;
}

Tensor columns_of(const Tensor& all, std::int64_t begin, std::int64_t count) {
  Tensor part = all;
  part.data = static_cast<std::byte*>(all.data) + begin * size_of(all.dtype);
  part.cols = count;
  return part;
}

// The codes' scale_inv, of 1x128 groups, in either order.
Tensor scale_inv_of_rows(const Tensor& all, const Rows& rows, std::int64_t cols) {
  const std::int64_t step = scale_inv_strides(all, kRowGroups, cols).row;
  return columns_of(all, rows.begin * step, rows.count() * step);
}

std::array<Tensor, kMaxPointwiseInputs> inputs_of_rows(const CastSpec& spec, const CastTensors& tensors,
                                                       const Rows& rows) {
  std::array<Tensor, kMaxPointwiseInputs> part = tensors.inputs;
  const auto inputs = spec.pointwise.inputs();
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].kind == PointwiseInput::Kind::matrix) part[i] = rows_of(part[i], rows);
    if (inputs[i].kind == PointwiseInput::Kind::row) part[i] = columns_of(part[i], rows.begin, rows.count());
  }
  return part;
}

float scale_inv_of_nothing(const CastSpec& spec) {
  return visit_fp8(spec.out,
                   [&]<class Out>(Type<Out>) { return factor_from_scale(scale_from_amax<Out>(0.0F, spec.pow2)); });
}

// One expert's rows, which have `slots` from `first` on.
void cast_rows(const CastSpec& spec, const CastTensors& all, const Rows& rows, std::int64_t first, std::int64_t slots,
               ThreadPool& pool) {
  const std::int64_t cols = all.input.cols;
  const Tensor& scale_inv_of_slots = spec.transposed_scale ? all.transposed_scale_inv : all.scale_inv;
  const Tensor slots_scale_inv = columns_of(scale_inv_of_slots, first * cols, slots * cols);
  const Tensor in_slots = columns_of(all.transposed, first * ExpertSlots::kRows, slots * ExpertSlots::kRows);
  CastSpec alone = spec;
  alone.experts = false;
  CastTensors part{.input = spec.gathered ? all.input : rows_of(all.input, rows),
                   .transposed = columns_of(in_slots, 0, rows.count()),
                   .scale_inv = slots_scale_inv,
                   .inputs = inputs_of_rows(spec, all, rows)};
  if (spec.gathered) part.row_index = {all.row_index.data + rows.begin, rows.count(), all.row_index.device};
  if (spec.codes) {
    part.codes = rows_of(all.codes, rows);
    part.scale_inv = scale_inv_of_rows(all.scale_inv, rows, cols);
    part.transposed_scale_inv = slots_scale_inv;
  }
  if (spec.result) part.result = rows_of(all.result, rows);
  if (rows.count() != 0) cast(alone, part, pool);
  for (std::int64_t c = 0; c < cols; ++c) {
    auto* const codes = static_cast<std::byte*>(in_slots.data) + c * in_slots.row_stride;
    std::fill(codes + rows.count(), codes + in_slots.cols, std::byte{0});
  }
  if (rows.count() == 0) {
    std::fill_n(static_cast<float*>(slots_scale_inv.data), slots_scale_inv.cols, scale_inv_of_nothing(spec));
  }
}

}  // namespace

void cast_experts(const CastSpec& spec, const CastTensors& tensors, ThreadPool& pool) {
  const ExpertEnds& ends = tensors.ends;
  const std::int64_t rows = spec.gathered ? tensors.row_index.rows : tensors.input.rows;
  std::int64_t begin = 0;
  for (std::int64_t e = 0; e <= ends.experts; ++e) {
    const Rows own{begin, e == ends.experts ? rows : ends.data[e]};
    begin = own.end;
    if (e == ends.experts && own.count() == 0) break;  // every row has an expert
    cast_rows(spec, tensors, own, ExpertSlots::first(own.begin, e), ExpertSlots::of_rows(own.count()), pool);
  }
}

}  // namespace ingot::cpu
