#include "ingot/runtime/gemm/cublaslt_factors.h"

#include "ingot/codegen/gemm/gemm_spec.h"
#include "ingot/codegen/types/divided_up.h"
#include "ingot/runtime/gemm/gemm_shape.h"

namespace ingot {
namespace {

constexpr std::int64_t kFactorGroup = 128;
constexpr std::int64_t kPitchUnit = 4;           // scale_inv of blocks: 16 bytes
constexpr std::uintptr_t kFactorAlignment = 16;  // bytes
constexpr std::size_t kCopyAlignment = 256;      // bytes, of copies

std::int64_t rounded_up(std::int64_t value, std::int64_t unit) { return divided_up(value, unit) * unit; }

bool factors_aligned(const Tensor& tensor) {
  return reinterpret_cast<std::uintptr_t>(tensor.data) % kFactorAlignment == 0;
}

}  // namespace

std::size_t CublasltFactors::bytes() const {
  if (!moved) return 0;
  const auto size = static_cast<std::size_t>(read.rows * read.pitch) * sizeof(float);
  return (size + kCopyAlignment - 1) / kCopyAlignment * kCopyAlignment;
}

CublasltFactors cublaslt_factors(const Tensor& factors, ScaleGranularity scale, std::int64_t rows, std::int64_t k) {
  const std::int64_t groups = divided_up(k, kFactorGroup);
  const std::int64_t parts = divided_up(rows, std::int64_t{scale.rows});  // rows, or blocks of them
  const FactorStrides strides = factor_strides(factors, scale, k);
  const bool by_group = scale == kRowGroups;  // read so: a row for each group
  CublasltFactors result;
  result.read = by_group ? FactorMatrix{.rows = groups, .cols = parts, .pitch = parts}
                         : FactorMatrix{.rows = parts, .cols = groups, .pitch = rounded_up(groups, kPitchUnit)};
  // Those of a single row or column are contiguous and may be taken either way.
  const bool given_by_group = strides.group != 1 || ((groups == 1 || parts == 1) && by_group);
  result.given = given_by_group
                     ? FactorMatrix{.rows = groups, .cols = parts, .pitch = groups == 1 ? parts : strides.group}
                     : FactorMatrix{.rows = parts, .cols = groups, .pitch = parts == 1 ? groups : strides.row};
  result.transposed = given_by_group != by_group;
  const bool padded = by_group || groups % kPitchUnit == 0;  // else reads of 16 bytes could pass the end
  result.moved = result.transposed || result.given.pitch != result.read.pitch || !padded || !factors_aligned(factors);
  return result;
}

std::size_t cublaslt_factor_bytes(const GemmSpec& spec, const GemmTensors& tensors, const MatmulSize& size) {
  if (!has_group_factors(spec)) return 0;
  return cublaslt_factors(tensors.factor_a, spec.scale_a, size.m, size.k).bytes() +
         cublaslt_factors(tensors.factor_b, spec.scale_b, size.n, size.k).bytes();
}

}  // namespace ingot
