// Casts of experts' rows on the CPU (CastSpec::experts): a cast of each expert's rows by itself, whose transposed codes
// go to its slots or, with given scales, to its columns.
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

// The cast of one expert's rows alone, without transposed codes and scales.
CastTensors cast_of_rows(const CastSpec& spec, const CastTensors& all, const Rows& rows) {
  CastTensors part{.input = spec.gathered ? all.input : rows_of(all.input, rows),
                   .scale_inv = {},
                   .inputs = inputs_of_rows(spec, all, rows)};
  if (spec.gathered) part.row_index = {all.row_index.data + rows.begin, rows.count(), all.row_index.device};
  if (spec.codes) part.codes = rows_of(all.codes, rows);
  if (spec.result) part.result = rows_of(all.result, rows);
  return part;
}

CastSpec alone(CastSpec spec) {
  spec.experts = false;
  return spec;
}

// One expert's rows, which have `slots` from `first` on.
void cast_to_slots(const CastSpec& spec, const CastTensors& all, const Rows& rows, std::int64_t first,
                   std::int64_t slots, ThreadPool& pool) {
  const std::int64_t cols = all.input.cols;
  const Tensor& scale_inv_of_slots = spec.transposed_scale ? all.transposed_scale_inv : all.scale_inv;
  const Tensor slots_scale_inv = columns_of(scale_inv_of_slots, first * cols, slots * cols);
  const Tensor in_slots = columns_of(all.transposed, first * ExpertSlots::kRows, slots * ExpertSlots::kRows);
  CastTensors part = cast_of_rows(spec, all, rows);
  part.transposed = columns_of(in_slots, 0, rows.count());
  part.scale_inv = spec.codes ? scale_inv_of_rows(all.scale_inv, rows, cols) : slots_scale_inv;
  if (spec.codes) part.transposed_scale_inv = slots_scale_inv;
  if (rows.count() != 0) cast(alone(spec), part, pool);
  for (std::int64_t c = 0; c < cols; ++c) {
    auto* const codes = static_cast<std::byte*>(in_slots.data) + c * in_slots.row_stride;
    std::fill(codes + rows.count(), codes + in_slots.cols, std::byte{0});
  }
  if (rows.count() == 0) {
    std::fill_n(static_cast<float*>(slots_scale_inv.data), slots_scale_inv.cols, scale_inv_of_nothing(spec));
  }
}

// One expert's rows with its given scale.
void cast_by_given(const CastSpec& spec, const CastTensors& all, const Rows& rows, std::int64_t expert,
                   ThreadPool& pool) {
  CastTensors part = cast_of_rows(spec, all, rows);
  if (spec.transposed) part.transposed = columns_of(all.transposed, rows.begin, rows.count());
  part.scale_inv = columns_of(all.scale_inv, expert, 1);
  part.scales = columns_of(all.scales, expert, 1);
  part.amax = columns_of(all.amax, expert, 1);
  cast(alone(spec), part, pool);
}

}  // namespace

void cast_experts(const CastSpec& spec, const CastTensors& tensors, ThreadPool& pool) {
  const ExpertEnds& ends = tensors.ends;
  const std::int64_t rows = spec.gathered ? tensors.row_index.rows : tensors.input.rows;
  std::int64_t begin = 0;
  for (std::int64_t e = 0; e <= ends.experts; ++e) {
    const Rows own{begin, e == ends.experts ? rows : ends.data[e]};
    begin = own.end;
    if (e == ends.experts && (own.count() == 0 || has_expert_scales(spec))) break;
    if (has_expert_scales(spec)) {
      cast_by_given(spec, tensors, own, e, pool);
      continue;
    }
    cast_to_slots(spec, tensors, own, ExpertSlots::first(own.begin, e), ExpertSlots::of_rows(own.count()), pool);
  }
}

}  // namespace ingot::cpu
