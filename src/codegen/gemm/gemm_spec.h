// Matrix multiplications, with the scale_inv of FP8 operands, a bias and an epilogue; pairs of them; and the relayout
// of their operands.
#pragma once

#include <array>
#include <compare>
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

// automatic: the kernel that tuning has found for the shape, else the first of cuBLASLt, sm90, mma and simt that takes
// the call (sm90 before cuBLASLt where prefers_sm90() in gemm_estimate.h says so). The others require that kernel: a
// call that it does not take is an error. The CPU reference computes every spec, whatever its kernel.
enum class GemmKernel : std::uint8_t { automatic, cublaslt, sm90, mma, simt };

// Ingot asks cuBLASLt's heuristic for at most this many algorithms for a shape; its best guess comes first.
inline constexpr int kCublasltAlgorithms = 8;

// A tiling of templates/gemm/gemm_sm90.cuh.
struct GemmTiling {
  // Outputs of a tile.
  int m = 128;
  int n = 256;
  // Blocks of a cluster, along M or along N; they share the operand that they have in common.
  int cluster_m = 1;
  int cluster_n = 1;
  int stages = 4;  // of shared memory, each 128 along K
  // The two warpgroups that multiply have their own tiles, so that one writes while the other multiplies; otherwise
  // they share each tile (cooperative).
  bool pingpong = false;
  // Tiles are cut along K, so that all multiprocessors have the same amount of work: for few rows, and for a last round
  // with few tiles.
  bool stream_k = false;
  auto operator<=>(const GemmTiling&) const = default;
};

// The tilings of templates/gemm/gemm_mma.cuh, which have nothing but the outputs of a tile.
inline constexpr std::array kMmaTilings{GemmTiling{.m = 128, .n = 128, .stages = 2},
                                        GemmTiling{.m = 64, .n = 64, .stages = 2}};

INGOT_API std::string_view name(GemmKernel kernel);  // "sm90"
INGOT_API std::optional<GemmKernel> parse_gemm_kernel(std::string_view text);

// "128x256:2x1:4:cooperative", "64x128:1x1:8:cooperative:streamk": tile, cluster, stages, schedule.
INGOT_API std::string print(const GemmTiling& tiling);
INGOT_API std::optional<GemmTiling> parse_gemm_tiling(std::string_view text);
// "128x128": one of kMmaTilings.
INGOT_API std::string print_mma_tiling(const GemmTiling& tiling);
INGOT_API std::optional<GemmTiling> parse_mma_tiling(std::string_view text);

class SpecReader;
struct TemplateInstance;

// How an operand is stored in memory. k_major: A as [M, K], B as [N, K] (the only layout that Hopper's FP8 tensor cores
// take); mn_major: A as [K, M], B as [K, N].
enum class Layout : std::uint8_t { k_major, mn_major };

// What a GEMM does to its sums before it writes them, in f32, rounding after each step
// (templates/gemm/gemm_epilogue.cuh):
//   x = scale_inv * sum + bias + beta * c  c[M, N] has this dtype and may be the output itself (accumulation); it is
//                                          not read where beta is 0
//   preactivation[M, N] = round(x)         if set: where a backward pass differentiates
//   value = f(x, inputs)                   pointwise, if set (pointwise_lowering.h: its own steps may be fused)
//   out[M, N] = round(value); for an FP8 output, encode(saturate(value * scale)), with a given scale
//   amax                                   if set: raised to the largest |out|, or |value| for an FP8 output; NaN is
//                                          kept
// The expression's matrices and columns and the preactivation have epilogue_dtype(); its rows are f32, and it has no
// columns [col:f32]. The CPU reference and kernel simt compute the same bits; the tensor cores' kernels use the GPU's
// own exp, tanh and so on.
struct GemmEpilogue {
  std::optional<Dtype> c{};
  Pointwise pointwise{};
  bool preactivation = false;
  bool amax = false;
  bool operator==(const GemmEpilogue&) const = default;
};

// The part of b that shares a scale_inv, which applies to 128 of K; a's are then of kRowGroups.
inline constexpr std::array kGroupedScalesOfB{kBlocks, kRowGroups};

// out[M, N] = scale_inv_a * scale_inv_b * sum_k a(m, k) * b(n, k) + bias[n], accumulated in f32 and rounded once, after
// the epilogue.
//
// FP8 operands have scale_inv: one for the whole operand (tensorwise), or one per m or n (rowwise). High-precision
// operands have none. If only one operand is FP8, the other is bf16 or f16, and the FP8 one is multiplied in that
// dtype. scale_inv may also belong to groups of 128 along k (a: kRowGroups; b: kBlocks or kRowGroups). The sum of each
// group is then multiplied by the group's scale_inv_a * scale_inv_b, and these products are added up; this excludes
// fast_accumulation.
//
// staged: kernel sm90 reads FP8 codes in rows along k that start at multiples of 16 bytes. An operand stored otherwise
// is first rewritten in that order, in the stream's scratch memory: transposed if it is mn_major, else copied.
struct GemmSpec {
  static constexpr std::string_view kWord = "gemm";
  Dtype a = Dtype::e4m3fn;
  Dtype b = Dtype::e4m3fn;
  Dtype out = Dtype::bf16;  // FP8 only for FP8 operands
  Layout layout_a = Layout::k_major;
  Layout layout_b = Layout::k_major;
  ScaleGranularity scale_a = kTensorwise;  // kTensorwise for a high-precision operand
  ScaleGranularity scale_b = kTensorwise;
  bool bias = false;               // bias[N], of bias_dtype()
  bool fast_accumulation = false;  // sums in the tensor core throughout; FP8 operands only
  GemmEpilogue epilogue{};
  GemmKernel kernel = GemmKernel::automatic;
  std::optional<GemmTiling> tiling{};  // of kernels sm90 and mma; empty: chosen for the size (gemm_estimate.h)
  int algorithm = 0;                   // of kernel cublaslt: index into cuBLASLt's heuristic results, from 0
  bool staged_a = false;               // of kernel sm90
  bool staged_b = false;
  bool operator==(const GemmSpec&) const = default;
};

// Does each 128 of k have its own scale_inv?
INGOT_API bool has_group_scale_inv(const GemmSpec& spec);
// Are there instructions of kernel sm90 for these operands: two of e4m3fn and e5m2, or two of bf16 or of f16?
INGOT_API bool sm90_multiplies(const GemmSpec& spec);
// Is a sum left to the tensor core throughout? bf16 and f16 lose nothing by it.
INGOT_API bool sums_in_tensor_cores(const GemmSpec& spec);
// The dtype of a GEMM's bias vector: out, or bf16 where out is f32 or FP8 and both operands are FP8.
INGOT_API Dtype bias_dtype(const GemmSpec& spec);
// The dtype of the other matrices of a GEMM besides its output: out, or bf16 where out is FP8.
INGOT_API Dtype epilogue_dtype(const GemmSpec& spec);

// The functions that kernel_spec.h and generate.h call for every spec.
std::string print_spec(const GemmSpec& spec);
void validate_spec(const GemmSpec& spec);
INGOT_API std::uint64_t hash_spec(const GemmSpec& spec);
void read_spec(const SpecReader& reader, GemmSpec& spec);
INGOT_API void list_valid(std::vector<GemmSpec>& specs);
ExtraPasses extra_passes(const GemmSpec& spec);
TemplateInstance template_instance(const GemmSpec& spec, Pass pass);

// Two GEMMs that one launch computes: those of a layer's two gradients, when both are small. Each half of the
// multiprocessors computes one of the two as kernel sm90 would with the same tiling, to the same bits.
//
// Both have kernel sm90 and a tiling without clusters and stream-K, and read their operands as they are stored. Their
// epilogue adds c, if it does anything.
struct GemmPairSpec {
  static constexpr std::string_view kWord = "gemm_pair";
  GemmSpec first{};
  GemmSpec second{};
  bool operator==(const GemmPairSpec&) const = default;
};

// Why no pair has this GEMM, for messages; empty if one can have it.
INGOT_API std::string pair_fault(const GemmSpec& spec);

std::string print_spec(const GemmPairSpec& spec);
void validate_spec(const GemmPairSpec& spec);
INGOT_API std::uint64_t hash_spec(const GemmPairSpec& spec);
void read_spec(const SpecReader& reader, GemmPairSpec& spec);
// For each kind of operands and scale_inv, the two of a layer's gradients.
INGOT_API void list_valid(std::vector<GemmPairSpec>& specs);
ExtraPasses extra_passes(const GemmPairSpec& spec);
TemplateInstance template_instance(const GemmPairSpec& spec, Pass pass);

// The first step of a GEMM with staged operands: the same codes, of any FP8 dtype, in rows that start at multiples of
// 16 bytes: copied or transposed.
struct RelayoutSpec {
  static constexpr std::string_view kWord = "relayout";
  bool transposed = false;
  bool operator==(const RelayoutSpec&) const = default;
};

std::string print_spec(const RelayoutSpec& spec);
void validate_spec(const RelayoutSpec& spec);
INGOT_API std::uint64_t hash_spec(const RelayoutSpec& spec);
void read_spec(const SpecReader& reader, RelayoutSpec& spec);
INGOT_API void list_valid(std::vector<RelayoutSpec>& specs);
ExtraPasses extra_passes(const RelayoutSpec& spec);
TemplateInstance template_instance(const RelayoutSpec& spec, Pass pass);

}  // namespace ingot
