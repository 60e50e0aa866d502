// The check of cast_stats's tensors.
#include <cstdint>

#include "ingot/runtime/cast/cast_stats.h"
#include "ingot/runtime/cast/cast_stats_operation.h"
#include "ingot/runtime/cast/scaled_input.h"
#include "ingot/runtime/check_tensor.h"

namespace ingot {

void check(const CastStatsSpec& spec, const CastStatsTensors& tensors, Device device) {
  validate_spec(spec);
  const Tensor& input = tensors.input;
  constexpr const char* kNoCodes = "the spec has no codes";
  const Range inputs[] = {check_matrix("cast_stats input", input, spec.in, device),
                          !spec.out         ? check_absent("cast_stats codes", tensors.codes, kNoCodes)
                          : spec.transposed ? check_matrix("cast_stats codes", tensors.codes, *spec.out, input.cols,
                                                           input.rows, device, "the input's shape, transposed")
                                            : check_matrix("cast_stats codes", tensors.codes, *spec.out, input.rows,
                                                           input.cols, device, "the input's shape"),
                          !spec.out ? check_absent("cast_stats factors", tensors.factors, kNoCodes)
                          : spec.scale == kRowGroups
                              ? check_factors("cast_stats factors", tensors.factors, spec.scale, input.rows, input.cols,
                                              device, kScaledInput, "group of columns")
                              : check_scales("cast_stats factors", tensors.factors, Dtype::f32, spec.scale, input.rows,
                                             input.cols, device, kScaledInput)};
  const Range stats = check_vector("cast_stats stats", tensors.stats, Dtype::f32, kCastStatsWords, device,
                                   "the bytes of one CastStats");
  if (reinterpret_cast<std::uintptr_t>(tensors.stats.data) % alignof(CastStats) != 0) {
    refuse("cast_stats stats", tensors.stats,
           "it must start at a multiple of 8 bytes, as it holds integers of 64 bits");
  }
  check_overlaps(inputs, {&stats, 1});
}

}  // namespace ingot
