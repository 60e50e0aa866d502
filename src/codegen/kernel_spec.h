// What a kernel computes, as plain values. A spec is the key of the cache, prints as one readable line that names the
// kernel in messages and in `ingot show`, and is read back from that line. (A profiler shows the C++ name.)
//
//   amax bf16 scale=tensor
//   cast bf16->e4m3fn scale=row+col out=codes,transposed pow2
//   cast bf16->e4m3fn scale=tensor out=codes,transposed list
//   cast bf16->e5m2 of=grad*(sigmoid(x)+...) scale=tensor out=codes,transposed,result,sum:f32
//   gemm e4m3fn*e5m2->bf16 nt scale=tensor,tensor bias fast
//   gemm e5m2*e5m2->bf16 nt scale=row,row fast kernel=sm90:128x256:2x1:4:cooperative
//   gemm e4m3fn*e4m3fn->bf16 nt scale=row,row bias c=bf16 epilogue=silu(x)*gate also=preactivation,amax
//   gemm e4m3fnuz*e5m2fnuz->bf16 nt scale=row,tensor kernel=mma:64x64
//   gemm e4m3fn*e4m3fn->bf16 tt scale=row,row fast kernel=sm90:128x128:2x1:6:pingpong staged=a
//   gemm bf16*e4m3fn->bf16 nt scale=tensor,row
//   gemm bf16*bf16->bf16 nt kernel=cublaslt:3
//   column_sum bf16->f32
//   relayout transposed
//   elementwise bf16 of=silu(x)*gate
//   cast_stats bf16->e4m3fn scale=1x128 transposed
//   norm rms bf16->e4m3fn affine scale=row out=codes,stats
//   norm_backward rms bf16 affine sums=f32
//   amax_history reduce=max
//   quantize_mx bf16->e2m1fn
//   float_quantize bf16 e3m2
//   pack_weight e4m3fn
//   dequant_matmul bf16*e4m3fn->bf16 packed scale=row bias epilogue=silu(x) kernel=sm90:mma:16x128x128:8:2:1
#pragma once

#include <compare>
#include <cstddef>
#include <iosfwd>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "ingot/codegen/cast/amax_history_spec.h"
#include "ingot/codegen/dequant/dequant_spec.h"
#include "ingot/codegen/gemm/gemm_tiling.h"
#include "ingot/codegen/norm/norm_spec.h"
#include "ingot/codegen/pointwise/pointwise.h"
#include "ingot/codegen/quantize/quantize_spec.h"
#include "ingot/codegen/types/dtype.h"
#include "ingot/codegen/types/granularity.h"
#include "ingot/codegen/types/scale_source.h"

namespace ingot {

// amax[i] = max |x| over the i-th extent of x[rows, cols]; NaN is kept. f32 result.
struct AmaxSpec {
  Dtype in = Dtype::bf16;
  ScaleGranularity scale = kTensorwise;
  bool operator==(const AmaxSpec&) const = default;
};

// FP8 cast of x[rows, cols] (formulas: ARCHITECTURE.md, "Numerics contract"):
//   scale = f32(FP8_MAX / max(f64(amax), 1e-12)), rounded down to a power of two if pow2; or given
//   codes[rows, cols] = encode(saturate(f32(x) * scale)), NaN for an Inf; transposed[cols, rows] = them, transposed
//   factors = 1 / scale (f32): value = code * factor
// What is cast are the values: x, or a pointwise expression of x and of further inputs, fused in front (pointwise.h).
// They are computed in f32 and rounded to `in`, as if the expression were a kernel of its own, unless `unrounded`.
// result: the values are also written, in `in`. sum: their sums over each column (the gradient of a bias), rounded once
// to this dtype; the order of summation is that of templates/cast/cast_tiles.cuh. transposed_scale: the transposed
// codes have scales of their own, of this granularity (in terms of x, as is `scale`), so that one call makes the
// operands of two GEMMs. Where there are no codes, `scale` is the transposed codes'. list: of any number of matrices,
// each with scales of its own, in one launch for each pass (CastList in runtime/backend.h).
struct CastSpec {
  Dtype in = Dtype::bf16;
  Dtype out = Dtype::e4m3fn;
  ScaleGranularity scale = kTensorwise;
  bool codes = true;
  bool transposed = false;
  bool pow2 = false;
  std::optional<ScaleGranularity> transposed_scale{};
  ScaleSource source = ScaleSource::dynamic;
  Pointwise pointwise{};
  bool unrounded = false;
  bool fast_math = false;  // the expression with the GPU's own exp, tanh ...: not the CPU's bits, within a bound
  bool result = false;
  std::optional<Dtype> sum{};
  bool list = false;
  bool operator==(const CastSpec&) const = default;
};

// How an operand lies in memory. k_major: A as [M, K], B as [N, K] (the only layout of FP8 tensor cores on Hopper);
// mn_major: A as [K, M], B as [K, N].
enum class Layout : std::uint8_t { k_major, mn_major };

// What a GEMM does to its sums on their way out, in f32, each step rounded; the kernels' text is
// templates/gemm/gemm_epilogue.cuh:
//   x = factors * sum + bias + beta * c    c[M, N] of this dtype, which may be the output itself (accumulation); not
//                                          read where beta is 0
//   preactivation[M, N] = round(x)         if asked for: what a backward pass differentiates at
//   value = f(x, inputs)                   pointwise, if any
//   out[M, N] = round(value); or, of an FP8 output, encode(saturate(value * scale)), with a given scale
//   amax is raised to the largest |out|, or of an FP8 output |value|, if asked for; NaN is kept
// The expression's matrices and columns and the preactivation are of epilogue_dtype(); its rows are f32, and there are
// no columns [col:f32]. Its values are reproducible in the CPU reference and kernel simt; the tensor cores' kernels use
// the GPU's own exp, tanh and so on.
struct GemmEpilogue {
  std::optional<Dtype> c{};
  Pointwise pointwise{};
  bool preactivation = false;
  bool amax = false;
  bool operator==(const GemmEpilogue&) const = default;
};

// out[M, N] = factor_a * factor_b * sum_k a(m, k) * b(n, k) + bias[n], accumulated in f32 and rounded once, after the
// epilogue.
// FP8 operands have factors (tensorwise or rowwise: one per m / one per n); high-precision operands have none. One of
// each is allowed too: bf16 or f16 beside FP8, which is multiplied as that. With factors of groups (a: kRowGroups, b:
// kBlocks or kRowGroups) each 128 of k has its own, and the sum is that of each group's sum times factor_a * factor_b;
// not with fast_accumulation.
// staged: kernel sm90 reads codes in rows along k that start at multiples of 16 bytes. Those that lie otherwise are
// first brought into that order, in the stream's scratch: transposed where they are mn_major, else copied.
struct GemmSpec {
  Dtype a = Dtype::e4m3fn;
  Dtype b = Dtype::e4m3fn;
  Dtype out = Dtype::bf16;  // FP8 for FP8 operands only
  Layout layout_a = Layout::k_major;
  Layout layout_b = Layout::k_major;
  ScaleGranularity scale_a = kTensorwise;  // kTensorwise where the operand is high precision
  ScaleGranularity scale_b = kTensorwise;
  bool bias = false;               // bias[N], of bias_dtype()
  bool fast_accumulation = false;  // sum in the tensor core throughout; FP8 operands only
  GemmEpilogue epilogue{};
  GemmKernel kernel = GemmKernel::automatic;
  std::optional<GemmTiling> tiling{};  // of kernels sm90 and mma; without, what suits the shape (gemm_estimate.h)
  int algorithm = 0;                   // of kernel cublaslt: the how manieth of its heuristic's, from 0
  bool staged_a = false;               // of kernel sm90
  bool staged_b = false;
  bool operator==(const GemmSpec&) const = default;
};

// sum[j] = sum over rows of x[rows, cols], in f32, in a fixed order (templates/cast/column_sum.cuh), rounded once: the
// gradient of a bias.
struct ColumnSumSpec {
  Dtype in = Dtype::bf16;
  Dtype out = Dtype::bf16;
  bool operator==(const ColumnSumSpec&) const = default;
};

// The same codes, of any FP8 dtype, in rows that start at multiples of 16 bytes: as they are, or transposed. What a
// GEMM with staged operands does first.
struct RelayoutSpec {
  bool transposed = false;
  bool operator==(const RelayoutSpec&) const = default;
};

// output[rows, cols] = expression(x, inputs), computed in f32 and rounded to `in`: the `result` of a cast with the same
// expression, without the cast. Where a value is needed in high precision, as an activation's gradient on its way back.
struct ElementwiseSpec {
  Dtype in = Dtype::bf16;
  Pointwise pointwise{};   // always there
  bool fast_math = false;  // as a cast's
  bool operator==(const ElementwiseSpec&) const = default;
};

// What a cast did to values x[rows, cols] of `in`: the counts and sums of CastStats (runtime/cast/cast_stats.h), from
// the codes[rows, cols], or [cols, rows] if transposed, and factors of `scale` in terms of x. Without `out`: what the
// values are.
struct CastStatsSpec {
  Dtype in = Dtype::bf16;
  std::optional<Dtype> out{};
  ScaleGranularity scale = kTensorwise;
  bool transposed = false;
  bool operator==(const CastStatsSpec&) const = default;
};

using KernelSpec = std::variant<AmaxSpec, CastSpec, GemmSpec, ColumnSumSpec, RelayoutSpec, ElementwiseSpec,
                                CastStatsSpec, NormSpec, NormBackwardSpec, AmaxHistorySpec, MxQuantizeSpec,
                                FloatQuantizeSpec, PackWeightSpec, DequantMatmulSpec>;

std::size_t hash_value(const KernelSpec& spec);
std::size_t hash_value(const GemmSpec& spec);
std::size_t hash_value(const DequantMatmulSpec& spec);

// The cast whose values, precision and inputs are those of the expression, and whose `result` is its output.
CastSpec cast_of_values(const ElementwiseSpec& spec);
// Does each 128 of k have factors of its own?
bool has_group_factors(const GemmSpec& spec);
// The type of a GEMM's bias vector: out, or bf16 where out is f32 or FP8 and both operands are FP8.
Dtype bias_dtype(const GemmSpec& spec);
// The type of the other matrices beside a GEMM's output: out, or bf16 where out is FP8.
Dtype epilogue_dtype(const GemmSpec& spec);

// Throws Error{invalid_spec} with a sentence that names the field and what is allowed. The one place that says which
// kernels exist.
void validate(const KernelSpec& spec);

// One line, in canonical field order; parse(print(s)) == s.
std::string print(const KernelSpec& spec);
// Throws Error{invalid_spec} that quotes the word that is wrong. The result is validated.
KernelSpec parse(std::string_view line);

std::ostream& operator<<(std::ostream& stream, const KernelSpec& spec);

// Every spec that validate() accepts and that has no expression, no sum, no list and no epilogue, whose GEMMs' outputs
// are of high precision and FP8 operands k_major (and without a bias where only one is FP8), and that leaves the choice
// of the kernel to the library, in a fixed order: tests compile and run all of them. Without those of
// quantize_spec.h and dequant_spec.h, which have lists of their own.
std::vector<KernelSpec> all_valid_specs();

}  // namespace ingot
