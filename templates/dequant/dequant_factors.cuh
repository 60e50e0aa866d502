// The factors of weights that are stored as codes (value = code * factor): the kinds of factors, and which factor
// belongs to which code.
#pragma once

#include "formats.cuh"
#include "numerics.cuh"
#include "platform.cuh"

namespace ingot {

// tensor: one factor. row: one per row of the weight. groups128, groups64, groups32: one f32 per so many k of a row,
// stored [rows, groups]. blocks128: one f32 per 128 rows x 128 k, likewise. mx32: one e8m0fnu per 32 k of a row.
// mx32_codes: the same factors, multiplied into the codes instead of the sums (kTakesMxFactors, dequant_fragment.cuh).
enum class DequantFactors : u32 { tensor, row, groups128, groups64, groups32, blocks128, mx32, mx32_codes };

// The number of k whose sum has its own factor; 0: none has.
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

// The factor of a row's group, for a kind with groups. stride: factors from one row (blocks128: from one 128 rows) to
// the next.
template <DequantFactors Kind>
INGOT_HOST_DEVICE float group_factor(const void* factors, u64 stride, u32 row, u32 group) {
  if constexpr (Kind == DequantFactors::mx32) {
    return decode(static_cast<const e8m0fnu*>(factors)[row * stride + group]);
  } else {
    return static_cast<const float*>(factors)[(Kind == DequantFactors::blocks128 ? row / 128 : row) * stride + group];
  }
}

// The factor by which a row's whole sum is multiplied.
template <DequantFactors Kind>
INGOT_HOST_DEVICE float row_factor(const void* factors, u32 row) {
  if constexpr (dequant_group(Kind) != 0 || Kind == DequantFactors::mx32_codes) {
    return 1.0F;
  } else {
    return static_cast<const float*>(factors)[Kind == DequantFactors::row ? row : 0];
  }
}

}  // namespace ingot
