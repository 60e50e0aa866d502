#include "ingot/runtime/gemm/gemm_rules.h"
#include <cstdint>
#include <limits>

namespace ingot {
namespace {

// Can a tensor map describe it? Elements of 16 bits may also be stored in rows across k.
bool mappable(const Tensor& operand, Layout layout) {
  const std::int64_t size = size_of(operand.dtype);
  return (layout == Layout::k_major || size == 2) && reinterpret_cast<std::uintptr_t>(operand.data) % 16 == 0 &&
         operand.row_stride * size % 16 == 0;
}

}  // namespace

const char* sm90_refusal(const GemmSpec& spec, const GemmTensors& tensors, const MatmulSize& size, Target device) {
  if (device != target_for(9, 0)) return "kernel sm90 runs on sm_90a only";
  if (!sm90_multiplies(spec)) return "kernel sm90 multiplies e4m3fn and e5m2, or two operands of bf16 or of f16, only";
  if (size.k == 0) return "kernel sm90 needs a K of at least 1";
  if ((!spec.staged_a && !mappable(tensors.a, spec.layout_a)) ||
      (!spec.staged_b && !mappable(tensors.b, spec.layout_b))) {
    if (!is_fp8(spec.a)) {
      return "kernel sm90 needs a and b of bf16 or f16 at addresses and row strides that are multiples of 16 bytes";
    }
    return "kernel sm90 needs a and b in rows along k, at addresses and row strides that are multiples of 16 bytes, "
           "unless they are staged";
  }
  // The copy engine's coordinates have 32 bits, and so does the number of tiles, rounded up to whole clusters.
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max() - 512;
  constexpr std::int64_t kSmallestTile = 64;
  if (size.m > kMost || size.n > kMost || size.k > kMost ||
      (size.m / kSmallestTile + 2) * (size.n / kSmallestTile + 2) > kMost) {
    return "kernel sm90 takes sizes below 2^31 and as many tiles";
  }
  constexpr std::int64_t kMostApart = std::numeric_limits<std::uint32_t>::max();
  if (scale_inv_strides(tensors.scale_inv_a, spec.scale_a, size.k).group > kMostApart ||
      scale_inv_strides(tensors.scale_inv_b, spec.scale_b, size.k).group > kMostApart) {
    return "kernel sm90 takes scale_inv of groups at row strides below 2^32";
  }
  return nullptr;
}

bool sm90_by_engine(const GemmSpec& spec, const GemmTensors& tensors, const MatmulSize& size) {
  if (!has_group_scale_inv(spec)) return false;
  const auto copies = [&](const Tensor& scale_inv, std::int64_t rows) {
    constexpr std::int64_t kUnit = 16 / sizeof(float);
    const ScaleInvStrides strides = scale_inv_strides(scale_inv, kRowGroups, size.k);
    return strides.row == 1 && strides.group % kUnit == 0 && rows % kUnit == 0 &&
           reinterpret_cast<std::uintptr_t>(scale_inv.data) % 16 == 0;
  };
  return copies(tensors.scale_inv_a, size.m) && (spec.scale_b == kBlocks || copies(tensors.scale_inv_b, size.n));
}

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
