#include "ingot/runtime/cuda/dequant_rules.h"

#include <cstdint>
#include <limits>

namespace ingot {
namespace {

constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max() - 1024;

}  // namespace

// Tiles and stages are counted in 32 bits; a grid has fewer than 2^31 blocks.
const char* dequant_mma_refusal(const DequantMatmulSpec& spec, const DequantShape& shape, Target device) {
  if (device.major < 8) return "kernel mma runs on sm_80 and later";
  const std::int64_t tiles_m = shape.m / spec.tiling->tokens + 1;
  const std::int64_t tiles_n = shape.n / spec.tiling->rows + 1;
  if (shape.k > kMost || shape.n > kMost || tiles_m > kMost || tiles_m > kMost / spec.tiling->split / tiles_n) {
    return "kernel mma takes fewer than 2^31 tiles, rows of the weight, and K";
  }
  return nullptr;
}

}  // namespace ingot
