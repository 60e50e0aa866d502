// Products with weights that are decoded within the kernel: activations in bf16 or f16, weights in 8, 6 or 4 bits.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "ingot/codegen/pointwise/pointwise.h"
#include "ingot/codegen/types/dtype.h"
#include "ingot/codegen/types/granularity.h"

namespace ingot {

inline constexpr ScaleGranularity kRowGroups64{1, 64};
inline constexpr ScaleGranularity kRowGroups32{1, 32};

// row_major: codes [N, K] as they are. packed, packed_f16: in the order in which tensor cores take them
// (templates/dequant/dequant_layout.cuh), with 4 bytes to a row behind them that say which rows have a NaN; what
// PackWeightSpec makes. A code's bits lie where activations in bf16 or in f16 take them in fewest instructions; the
// other activations take them too, with the same results (of six and four bits they are the same). Both have as many
// bytes: a weight is multiplied as what it was packed as, or its codes are taken for others.
enum class WeightLayout : std::uint8_t { row_major, packed, packed_f16 };

std::string_view name(WeightLayout layout);  // "packed_f16"
std::optional<WeightLayout> parse_weight_layout(std::string_view text);
inline constexpr const char* kWeightLayoutNames = "packed, packed_f16 or row_major";
constexpr bool is_packed(WeightLayout layout) { return layout != WeightLayout::row_major; }

// Of six and four bits one packed layout stands for both.
constexpr WeightLayout layout_of_bits(Dtype weight, WeightLayout layout) {
  return is_sub_byte(weight) && is_packed(layout) ? WeightLayout::packed : layout;
}

// Version of the packed layouts, for who stores packed weights.
inline constexpr int kPackedLayoutVersion = 3;
// Bytes of a packed weight [n, k]: rows are padded to 64, k to 64. Overflows for no n and k of 2^31 and less.
constexpr std::int64_t packed_weight_bytes(Dtype weight, std::int64_t n, std::int64_t k) {
  const std::int64_t rows = (n + 63) / 64 * 64;
  return rows * ((k + 63) / 64 * 8 * bits_of(weight)) + 4 * rows;
}

// codes [N, K] into a packed layout, or back (`unpack`): what was packed comes back bit for bit.
struct PackWeightSpec {
  Dtype weight = Dtype::e4m3fn;
  WeightLayout layout = WeightLayout::packed;  // or packed_f16
  bool unpack = false;
  bool operator==(const PackWeightSpec&) const = default;
};

// sm90: TMA and wgmma or mma.sync, of packed weights, with tiles that DequantTiling names. mma: mma.sync of sm_80 and
// up, of any layout and alignment.
enum class DequantKernel : std::uint8_t { automatic, sm90, mma };

// How a kernel cuts a product up; codegen/dequant/dequant_tiling.h has its text.
struct DequantTiling {
  bool wgmma = false;  // of sm90: the instruction of the tensor cores; false: mma.sync
  int tokens = 16;     // of x, that a tile has
  int rows = 128;      // of the weight, that a tile has
  int depth = 128;     // of K, that a stage in shared memory has
  int stages = 8;
  int split = 1;          // blocks that share a tile's K, of sm90 those of a cluster
  int k_warps = 1;        // units of warps that share a stage's depth
  int waves = 1;          // of sm90: 64 rows that a warpgroup has, times this
  int multicast = 1;      // of sm90: tiles side by side in a cluster, which load x for each other
  int blocks = 1;         // of sm90: of a multiprocessor
  bool stream_k = false;  // of sm90: tiles are cut along K, so that all multiprocessors have as much to do
  bool operator==(const DequantTiling&) const = default;
};

// out[M, N] = f(factor * sum_k x(m, k) * value(w(n, k)) + bias[n]), values exact, summed in f32 and rounded once.
// value = code * factor. Factors that are of a tensor or a row multiply the sum; those of groups of K the sum of each
// group, in f32, in ascending order of K. A NaN code makes out[:, n] NaN for its row n, an Inf is one. factors: f32, of
// `scale`: tensor, row, 1x128, 1x64, 1x32 or 128x128; or e8m0fnu, of 1x32. Those of groups of g go row by row: [N,
// ceil(K / g)], or for 128x128 [ceil(N / 128), ceil(K / 128)]. A packed weight does not say what sizes it has: one that
// was packed for others is refused only where its number of bytes differs.
struct DequantMatmulSpec {
  Dtype x = Dtype::bf16;         // bf16 or f16
  Dtype weight = Dtype::e4m3fn;  // kWeightDtypes
  Dtype out = Dtype::bf16;       // that of x, or f32
  ScaleGranularity scale = kRowwise;
  Dtype factors = Dtype::f32;  // or e8m0fnu, with scale 1x32
  WeightLayout layout = WeightLayout::packed;
  bool bias = false;             // bias[N] of x's dtype
  Pointwise pointwise{};         // as a GEMM's epilogue: of matrices [M, N] and columns [N] of x's dtype, rows f32
  bool batch_invariant = false;  // a row of the result does not depend on M: the same order of summation for every M
  DequantKernel kernel = DequantKernel::automatic;
  std::optional<DequantTiling> tiling{};  // without, what suits the sizes
  bool operator==(const DequantMatmulSpec&) const = default;
};

}  // namespace ingot
