// amax, amax_scales and amax_history: the checks of their tensors, and all three on the CPU. amax: the largest |x| of
// every extent, which is the tensor, a row, a group or a block that shares a scale. amax_scales: the scales that follow
// from such maxima. amax_history: the step of delayed scaling, slot by slot, as templates/cast/amax_history.cuh.
#include <algorithm>
#include <cstdint>

#include "ingot/runtime/cast/cast_operations.h"
#include "ingot/runtime/cast/cpu_values.h"
#include "ingot/runtime/core/check_tensor.h"
#include "ingot/runtime/core/visit.h"
#include "ingot/runtime/cpu/thread_pool.h"

#include "scaling.cuh"

namespace ingot {

void check(const AmaxSpec& spec, const AmaxTensors& tensors, Device device) {
  validate_spec(spec);
  if (spec.list) {
    throw Error(ErrorCode::invalid_argument, print_spec(spec),
                "this is the spec of a list: make one with make_amax_list(), or leave `list` out");
  }
  check_tensors(spec, tensors, device);
}

void check_tensors(const AmaxSpec& spec, const AmaxTensors& tensors, Device device) {
  const Tensor& input = tensors.input;
  const Range in = check_matrix("amax input", input, spec.in, device);
  const Range outs[] = {
      check_scales("amax amax", tensors.amax, Dtype::f32, spec.scale, input.rows, input.cols, device, kScaledInput),
      spec.second_scale ? check_scales("amax second_amax", tensors.second_amax, Dtype::f32, *spec.second_scale,
                                       input.rows, input.cols, device, kScaledInput)
                        : check_absent("amax second_amax", tensors.second_amax, "the spec has no second_scale")};
  check_overlaps({&in, 1}, outs);
}

void check(const AmaxScalesSpec& spec, const AmaxScalesTensors& tensors, Device device) {
  validate_spec(spec);
  const Range in =
      check_vector("amax_scales amax", tensors.amax, Dtype::f32, tensors.amax.cols, device, "one row of maxima");
  const Range out =
      check_vector("amax_scales scale", tensors.scale, Dtype::f32, tensors.amax.cols, device, "one for each amax");
  if (!in_place(tensors.amax, tensors.scale)) check_overlaps({&in, 1}, {&out, 1});
}

void check(const AmaxHistorySpec& spec, const AmaxHistoryTensors& tensors, Device device) {
  validate_spec(spec);
  const Range history = check_matrix("amax_history history", tensors.history, Dtype::f32, device);
  const std::int64_t slots = tensors.history.rows;
  if (slots != 0 && tensors.history.cols == 0) {
    refuse("amax_history history", tensors.history, "it must have a column for each step that it keeps, at least one");
  }
  const auto check_slots = [&](const char* what, const Tensor& tensor) {
    return check_vector(what, tensor, Dtype::f32, slots, device, "one for each row of the history");
  };
  const Range inputs[] = {check_slots("amax_history limits", tensors.limits),
                          check_slots("amax_history pow2", tensors.pow2),
                          tensors.known.data == nullptr ? Range{} : check_slots("amax_history known", tensors.known)};
  const Range outputs[] = {check_slots("amax_history amax", tensors.amax), history,
                           check_slots("amax_history scale", tensors.scale)};
  check_overlaps(inputs, outputs);
}

}  // namespace ingot

namespace ingot::cpu {

void amax(const AmaxSpec& spec, const AmaxTensors& tensors, ThreadPool& pool) {
  visit_high_precision(spec.in, [&]<class T>(Type<T>) {
    const Values<T> values(tensors.input, spec.rounded);
    const auto find = [&](ScaleGranularity scale, const Tensor& amax) {
      const std::vector<u32> maxima = maxima_of<T>(Extents(scale, values.rows(), values.cols()), values, pool);
      std::transform(maxima.begin(), maxima.end(), row<float>(amax, 0), amax_from_bits);
    };
    find(spec.scale, tensors.amax);
    if (spec.second_scale) find(*spec.second_scale, tensors.second_amax);
  });
}

void amax_scales(const AmaxScalesSpec& spec, const AmaxScalesTensors& tensors, ThreadPool& pool) {
  pool.parallel_for(tensors.amax.cols, 65536, [&](i64 begin, i64 end) {
    for (i64 i = begin; i < end; ++i) {
      const float amax = amax_from_bits(amax_bits(row<float>(tensors.amax, 0)[i]));
      row<float>(tensors.scale, 0)[i] = scale_from_amax(amax, fp8_max(spec.out), spec.pow2);
    }
  });
}

namespace {

void update(const AmaxHistorySpec& spec, const AmaxHistoryTensors& tensors, i64 slot) {
  float& amax = row<float>(tensors.amax, 0)[slot];
  float* const history = row<float>(tensors.history, slot);
  float* const end = history + tensors.history.cols;
  u32 newest = amax_bits(amax);
  if (spec.finite && newest >= kF32Inf) newest = 0;
  std::copy_backward(history, end - 1, end);
  *history = amax_from_bits(newest);
  amax = 0.0F;
  float& scale = row<float>(tensors.scale, 0)[slot];
  if (tensors.known.data != nullptr && has_scale(row<float>(tensors.known, 0)[slot])) {
    scale = row<float>(tensors.known, 0)[slot];
    return;
  }
  u32 largest = newest;
  if (spec.reduction == AmaxReduction::max) {
    for (const float* at = history; at != end; ++at) largest = std::max(largest, amax_bits(*at));
  }
  if (largest == 0) return;
  scale = scale_from_amax(amax_from_bits(largest), row<float>(tensors.limits, 0)[slot],
                          row<float>(tensors.pow2, 0)[slot] != 0.0F);
}

}  // namespace

void amax_history(const AmaxHistorySpec& spec, const AmaxHistoryTensors& tensors, ThreadPool& pool) {
  const i64 grain = std::max<i64>(1, 65536 / std::max<i64>(1, tensors.history.cols));
  pool.parallel_for(tensors.history.rows, grain, [&](i64 begin, i64 end) {
    for (i64 slot = begin; slot < end; ++slot) update(spec, tensors, slot);
  });
}

}  // namespace ingot::cpu
