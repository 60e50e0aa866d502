// The factors of weights that are held as codes: value = code * factor. What kinds there are, and which of the factors
// belongs to which code.
#pragma once

#include "formats.cuh"
#include "numerics.cuh"
#include "platform.cuh"

namespace ingot {

// tensor: one; row: one for each row of the weight; groups: f32, one for each so many k of a row, [rows, groups] row by
// row; blocks128: f32, one for each 128 rows and 128 k, likewise; mx32: e8m0fnu, one for each 32 k of a row;
// mx32_codes: the same, multiplied into the codes and not into sums (kTakesMxFactors, dequant_fragment.cuh).
enum class DequantFactors : u32 { tensor, row, groups128, groups64, groups32, blocks128, mx32, mx32_codes };

// k whose sum has a factor of its own, 0: none has.
INGOT_HOST_DEVICE constexpr u32 dequant_group(DequantFactors kind) {
  switch (kind) {
    case DequantFactors::groups128:
    case DequantFactors::blocks128: return 128;
    case DequantFactors::groups64: return 64;
    case DequantFactors::groups32:
    case DequantFactors::mx32: return 32;
    default: return 0;
  }
}

// The factor of a row's group, of a kind that has groups. stride: factors from one row (of 128 rows) to the next.
template <DequantFactors Kind>
INGOT_HOST_DEVICE float group_factor(const void* factors, u64 stride, u32 row, u32 group) {
  if constexpr (Kind == DequantFactors::mx32) {
    return decode(static_cast<const e8m0fnu*>(factors)[row * stride + group]);
  } else {
    return static_cast<const float*>(factors)[(Kind == DequantFactors::blocks128 ? row / 128 : row) * stride + group];
  }
}

// Of a row: what its whole sum is multiplied by.
template <DequantFactors Kind>
INGOT_HOST_DEVICE float row_factor(const void* factors, u32 row) {
  if constexpr (dequant_group(Kind) != 0 || Kind == DequantFactors::mx32_codes) {
    return 1.0F;
  } else {
    return static_cast<const float*>(factors)[Kind == DequantFactors::row ? row : 0];
  }
}

}  // namespace ingot
