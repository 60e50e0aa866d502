#include "ingot/runtime/gemm/gemm_mma_rules.h"

#include <cstdint>
#include <limits>

namespace ingot {

const char* mma_refusal(const GemmSpec& spec, const MatmulSize& size, Target device) {
  if (device.major < 8) return "kernel mma runs on sm_80 and later";
  if (spec.a == Dtype::f32) return "kernel mma multiplies FP8, bf16 and f16 only";
  // Tiles and steps are counted in 32 bits, eight rows of tiles together; a grid has fewer than 2^31 blocks.
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max() - 512;
  constexpr std::int64_t kSmallestTile = 64;
  if (size.k / kSmallestTile >= kMost || size.m / kSmallestTile >= kMost || size.n / kSmallestTile >= kMost / 8 ||
      size.m / kSmallestTile + 1 > kMost / (size.n / kSmallestTile + 1)) {
    return "kernel mma takes fewer than 2^31 tiles";
  }
  return nullptr;
}

}  // namespace ingot
