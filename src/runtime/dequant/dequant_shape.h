// Sizes of a dequant_matmul, from checked tensors.
#pragma once

#include <cstdint>

#include "ingot/codegen/types/matmul_size.h"
#include "ingot/runtime/backend.h"

namespace ingot {

inline MatmulSize dequant_size(const DequantMatmulTensors& tensors) {
  return {.m = tensors.x.rows, .n = tensors.out.cols, .k = tensors.x.cols};
}

// Elements from the factor of one row (or 128 of them) to that of the next, and from that of one group of K to the
// next: 0 where there is one for all. rows, depth: of the weight, that share a factor; 0 = all.
struct DequantFactorPlaces {
  std::int64_t row = 0;
  std::int64_t group = 0;
  std::int64_t rows = 0;
  std::int64_t depth = 0;
};

inline DequantFactorPlaces dequant_factor_places(ScaleGranularity scale, std::int64_t k) {
  const std::int64_t groups = scale.cols == 0 ? 1 : scale_count({1, scale.cols}, 1, k);
  return {
      .row = scale.rows == 0 ? 0 : groups, .group = scale.cols == 0 ? 0 : 1, .rows = scale.rows, .depth = scale.cols};
}

}  // namespace ingot
