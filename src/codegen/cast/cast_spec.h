// FP8 casts, with the expression that may be fused in front of them and the outputs that they may write.
#pragma once

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

class SpecReader;
struct TemplateInstance;

// FP8 cast of x[rows, cols] (formulas: docs/numerics.md):
//   scale = f32(FP8_MAX / max(f64(amax), 1e-12)), rounded down to a power of two if pow2; or given
//   codes[rows, cols] = encode(saturate(f32(x) * scale)), NaN for an Inf; transposed[cols, rows] = them, transposed
//   scale_inv = 1 / scale (f32): value = code * factor
// The values that are cast are x, or a pointwise expression of x and of further inputs, fused in front (pointwise.h).
// The expression is computed in f32 and rounded to `in`, as by a separate kernel, unless `unrounded`.
struct CastSpec {
  static constexpr std::string_view kWord = "cast";
  Dtype in = Dtype::bf16;
  Dtype out = Dtype::e4m3fn;
  // The codes' and the transposed codes' scales, in terms of x; only the codes' if transposed_scale is set.
  ScaleGranularity scale = kTensorwise;
  bool codes = true;
  bool transposed = false;
  bool pow2 = false;
  // Gives the transposed codes their own scales, in terms of x, so that one call makes the operands of two GEMMs.
  std::optional<ScaleGranularity> transposed_scale{};
  ScaleSource source = ScaleSource::dynamic;
  Pointwise pointwise{};
  bool unrounded = false;
  bool fast_math = false;  // the GPU's own exp, tanh ... in the expression: within a bound of the CPU's bits
  bool result = false;     // also writes the values, in `in`
  // Also writes the values' sums over each column (the gradient of a bias), rounded once to this dtype.
  // templates/cast/cast_tile_shared.cuh fixes the order of summation.
  std::optional<Dtype> sum{};
  // Casts any number of matrices, each with its own scales, in one launch for each pass (CastList in
  // runtime/context/backend.h).
  bool list = false;
  // Only of lists without an expression, and of stacked matrices: the values, which are f32, are rounded to this dtype
  // of 16 bits before they are cast, as by a separate kernel. So f32 weights have the codes that their 16-bit copies
  // would have.
  std::optional<Dtype> rounded{};
  // Casts matrices of one size that stand one after the other in one tensor (CastTensors::matrices), each with its own
  // scales: the weights of a mixture of experts. Without an expression and sum, and not of a list.
  bool stacked = false;
  // Row r of the codes is that of row CastTensors::row_index[r] of the input: what each expert of a mixture has of the
  // tokens, without a copy of their rows. Scales are dynamic; those of the whole tensor and of columns are those of all
  // rows of the input, taken or not. Without an expression and sum, and neither of a list nor of stacked matrices.
  bool gathered = false;
  // The rows are those of experts, of one after those of another (CastTensors::ends): blocks of 128 rows begin with
  // each expert's first row, and their transposed codes are in slots (templates/expert_slots.cuh), as a grouped GEMM
  // along K reads them. Transposed codes have dynamic scales of 128x1 groups, and codes, if they are written, of 1x128
  // groups. Or each expert has one given scale (scale=tensor, of both codes), and transposed codes are those of the
  // whole matrix. Without sum, and neither of a list nor of stacked matrices.
  bool experts = false;
  // Only of stacked matrices with dynamic scales: also writes the largest |value| of each extent of this granularity of
  // each matrix, for a later cast that needs them (CastTensors::known_amax). tensor: where the scales are of whole
  // matrices. col: where each row has its scale and there are only codes.
  std::optional<ScaleGranularity> found_amax{};
  bool operator==(const CastSpec&) const = default;
};

// Are the transposed codes of experts' rows in slots?
constexpr bool in_slots(const CastSpec& spec) { return spec.experts && spec.source == ScaleSource::dynamic; }
// Has each expert a given scale?
constexpr bool has_expert_scales(const CastSpec& spec) { return spec.experts && spec.source == ScaleSource::given; }

// That of the expression, on the CPU and in the kernels.
constexpr PointwisePrecision value_precision(const CastSpec& spec) {
  if (spec.fast_math) return PointwisePrecision::fast;
  return spec.unrounded || spec.in == Dtype::f32 ? PointwisePrecision::reproducible32
                                                 : PointwisePrecision::reproducible16;
}

// The functions that kernel_spec.h and generate.h call for every spec.
std::string print_spec(const CastSpec& spec);
void validate_spec(const CastSpec& spec);
INGOT_API std::uint64_t hash_spec(const CastSpec& spec);
void read_spec(const SpecReader& reader, CastSpec& spec);
INGOT_API void list_valid(std::vector<CastSpec>& specs);
ExtraPasses extra_passes(const CastSpec& spec);
TemplateInstance template_instance(const CastSpec& spec, Pass pass);

}  // namespace ingot
