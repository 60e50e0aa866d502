// Multiplications by weights that the kernel decodes: activations in bf16 or f16, weights in 8, 6 or 4 bits. The
// kernels and how they divide a matmul into tiles.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>
#include "ingot/api.h"
#include "ingot/codegen/pointwise/pointwise.h"
#include "ingot/codegen/types/dtype.h"
#include "ingot/codegen/types/granularity.h"
#include "ingot/codegen/types/pass.h"

namespace ingot {

// sm90: TMA and wgmma or mma.sync, for packed weights, with the tiles of a DequantTiling. mma: mma.sync of sm_80 and
// later, for any layout and alignment.
enum class DequantKernel : std::uint8_t { automatic, sm90, mma };

// How a kernel divides a matmul into tiles.
struct DequantTiling {
  bool wgmma = false;  // sm90: which instruction of the tensor cores; false: mma.sync
  int tokens = 16;     // rows of x in a tile
  int rows = 128;      // rows of the weight in a tile
  int depth = 128;     // length along K of a stage in shared memory
  int stages = 8;
  int split = 1;          // blocks that share a tile's K; in sm90 they form a cluster
  int k_warps = 1;        // groups of warps that share a stage's depth
  int waves = 1;          // sm90: a warpgroup takes 64 rows this many times
  int multicast = 1;      // sm90: tiles side by side in a cluster, which load x for each other
  int blocks = 1;         // sm90: blocks on a multiprocessor
  bool stream_k = false;  // sm90: tiles are cut along K, so that all multiprocessors have the same amount of work
  bool operator==(const DequantTiling&) const = default;
};

INGOT_API std::string_view name(DequantKernel kernel);  // "sm90"
INGOT_API std::optional<DequantKernel> parse_dequant_kernel(std::string_view text);

// The text that follows the kernel's name in a spec. For mma: "16x64x128:3:1:2" (tokens x rows x depth, stages, split,
// k_warps). For sm90: "mma:16x128x128:8:2:1" or "wgmma:64x256x128:4:1:1:waves2:multicast2:blocks2", which begins with
// the instruction and ends with the fields that are not 1, and with ":streamk" where tiles are cut along K.
INGOT_API std::string print(DequantKernel kernel, const DequantTiling& tiling);
INGOT_API std::optional<DequantTiling> parse_dequant_tiling(DequantKernel kernel, std::string_view text);

class SpecReader;
struct TemplateInstance;

// row_major: codes [N, K] as they are. packed, packed_f16: in the order in which tensor cores take them
// (templates/dequant/dequant_layout.cuh), followed by 4 bytes for each row that say which rows have a NaN;
// PackWeightSpec makes them. packed takes the fewest instructions to decode to bf16, packed_f16 to f16; either works
// with either dtype of activations and gives the same results, and for six and four bits they are the same. Both have
// the same number of bytes: pass the layout that the weight was packed with; otherwise its codes are misread.
enum class WeightLayout : std::uint8_t { row_major, packed, packed_f16 };

INGOT_API std::string_view name(WeightLayout layout);  // "packed_f16"
INGOT_API std::optional<WeightLayout> parse_weight_layout(std::string_view text);
inline constexpr const char* kWeightLayoutNames = "packed, packed_f16 or row_major";
constexpr bool is_packed(WeightLayout layout) { return layout != WeightLayout::row_major; }

// For six and four bits one packed layout stands for both.
constexpr WeightLayout layout_of_bits(Dtype weight, WeightLayout layout) {
  return is_sub_byte(weight) && is_packed(layout) ? WeightLayout::packed : layout;
}

// Version of the packed layouts, for programs that store packed weights.
inline constexpr int kPackedLayoutVersion = 3;
// Bytes of a packed weight [n, k]: rows are padded to 64, k to 64. Overflows for no n and k of 2^31 and less.
constexpr std::int64_t packed_weight_bytes(Dtype weight, std::int64_t n, std::int64_t k) {
  const std::int64_t rows = (n + 63) / 64 * 64;
  return rows * ((k + 63) / 64 * 8 * bits_of(weight)) + 4 * rows;
}

// codes [N, K] into a packed layout, or back (`unpack`): what was packed comes back bit for bit.
struct PackWeightSpec {
  static constexpr std::string_view kWord = "pack_weight";
  Dtype weight = Dtype::e4m3fn;
  WeightLayout layout = WeightLayout::packed;  // or packed_f16
  bool unpack = false;
  bool operator==(const PackWeightSpec&) const = default;
};

inline constexpr std::array kDequantActivations{Dtype::bf16, Dtype::f16};

// The parts of a decoded weight that may share an f32 scale_inv.
inline constexpr std::array kDequantGranularities{kTensorwise,  kRowwise,     kRowGroups,
                                                  kRowGroups64, kRowGroups32, kBlocks};

// out[M, N] = f(scale_inv * sum_k x(m, k) * value(w(n, k)) + bias[n]), values exact, summed in f32 and rounded once.
// value = code * scale_inv. That of a tensor or a row multiplies the sum; those of groups of K multiply the
// sum of each group, in f32, in ascending order of K. A NaN code in row n makes all of out[:, n] NaN; a code that is an
// Inf counts as Inf. scale_inv: f32, of `scale`: tensor, row, 1x128, 1x64, 1x32 or 128x128; or e8m0fnu, of 1x32. Those
// of groups of g are stored row by row: [N, ceil(K / g)], or for 128x128 [ceil(N / 128), ceil(K / 128)]. A packed
// weight does not record its sizes: one that was packed for others is refused only where its number of bytes differs.
//
// experts: out[rows of expert e] is that of x's same rows by expert e's weight, scale_inv and bias. Which rows each
// expert has is read on the device; rows that no expert has are not written. It has no expression, and is not
// batch_invariant.
struct DequantMatmulSpec {
  static constexpr std::string_view kWord = "dequant_matmul";
  Dtype x = Dtype::bf16;         // bf16 or f16
  Dtype weight = Dtype::e4m3fn;  // kWeightDtypes
  Dtype out = Dtype::bf16;       // x's dtype, or f32
  ScaleGranularity scale = kRowwise;
  Dtype scale_inv = Dtype::f32;  // or e8m0fnu, with scale 1x32
  WeightLayout layout = WeightLayout::packed;
  bool bias = false;             // bias[N], of x's dtype
  Pointwise pointwise{};         // as in a GEMM's epilogue: matrices [M, N] and columns [N] of x's dtype, rows in f32
  bool batch_invariant = false;  // a row's result does not depend on M: the order of summation is the same for every M
  bool experts = false;          // a grouped matmul: rows of x are those of experts, each with a weight of its own
  DequantKernel kernel = DequantKernel::automatic;
  std::optional<DequantTiling> tiling{};  // empty: chosen for the sizes
  bool operator==(const DequantMatmulSpec&) const = default;
};

// Is there a scale_inv for each group of K: 1x128, 1x64, 1x32, 128x128?
inline bool has_group_scale_inv(const DequantMatmulSpec& spec) { return spec.scale.cols != 0; }

// The functions that kernel_spec.h and generate.h call for every spec.
std::string print_spec(const PackWeightSpec& spec);
void validate_spec(const PackWeightSpec& spec);
INGOT_API std::uint64_t hash_spec(const PackWeightSpec& spec);
void read_spec(const SpecReader& reader, PackWeightSpec& spec);
INGOT_API void list_valid(std::vector<PackWeightSpec>& specs);
ExtraPasses extra_passes(const PackWeightSpec& spec);
TemplateInstance template_instance(const PackWeightSpec& spec, Pass pass);

std::string print_spec(const DequantMatmulSpec& spec);
void validate_spec(const DequantMatmulSpec& spec);
INGOT_API std::uint64_t hash_spec(const DequantMatmulSpec& spec);
void read_spec(const SpecReader& reader, DequantMatmulSpec& spec);
INGOT_API void list_valid(std::vector<DequantMatmulSpec>& specs);
ExtraPasses extra_passes(const DequantMatmulSpec& spec);
TemplateInstance template_instance(const DequantMatmulSpec& spec, Pass pass);

}  // namespace ingot
