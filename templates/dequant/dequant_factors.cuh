// The scale_inv of weights that are stored as codes (value = code * scale_inv): their kinds, and which scale_inv
// belongs to which code.
#pragma once

#include "formats.cuh"
#include "granularity.cuh"
#include "numerics.cuh"
#include "platform.cuh"

namespace ingot {

// A template argument: which codes of the weight [N, K] share a scale_inv, and how these are stored. Those of groups
// and blocks go row by row: [rows, groups].
struct DequantFactors {
  Granularity scale{};
  bool e8m0 = false;  // scale_inv are e8m0fnu; else f32
  // scale_inv (e8m0) are multiplied into the codes instead of the sums (kTakesMxFactors, dequant_fragment.cuh).
  bool into_codes = false;
  bool operator==(const DequantFactors&) const = default;
};

// The scale_inv that the kernels support.
INGOT_HOST_DEVICE constexpr bool has_dequant_factors(const DequantFactors& f) {
  const Granularity s = f.scale;
  if (f.e8m0) return s == Granularity{1, 32};
  if (f.into_codes) return false;
  return is_tensorwise(s) || is_rowwise(s) || s == Granularity{128, 128} ||
         (s.rows == 1 && (s.cols == 128 || s.cols == 64 || s.cols == 32));
}

// The number of k whose sum has its own scale_inv; 0: none has.
INGOT_HOST_DEVICE constexpr u32 dequant_group(const DequantFactors& f) { return f.into_codes ? 0 : f.scale.cols; }

// The scale_inv of a row's group, if they are of groups or blocks. stride: elements from one row (blocks: from one row
// of blocks) to the next.
template <DequantFactors F>
INGOT_HOST_DEVICE float group_factor(const void* factors, u64 stride, u32 row, u32 group) {
  const u64 at = row / F.scale.rows * stride + group;
  if constexpr (F.e8m0) {
    return decode(static_cast<const e8m0fnu*>(factors)[at]);
  } else {
    return static_cast<const float*>(factors)[at];
  }
}

// The scale_inv by which a row's whole sum is multiplied.
template <DequantFactors F>
INGOT_HOST_DEVICE float row_factor(const void* factors, u32 row) {
  if constexpr (has_extents(F.scale)) {
    return 1.0F;
  } else {
    return static_cast<const float*>(factors)[is_rowwise(F.scale) ? row : 0];
  }
}

}  // namespace ingot
