// NVIDIA's documentation of cublasLtMatmul(), "FP8 data types usage", and the scale modes of cublasLt.h, in the terms
// of our row-major GEMM: its A is our b, its B our a, its m our N, its n our M. Some versions of the library do not
// check alignments themselves, so that a call that breaks these rules may read past a buffer: they are not hints.
#include "ingot/runtime/gemm/cublaslt_rules.h"
#include <cstdint>
#include <limits>
#include "ingot/codegen/gemm/gemm_spec.h"
#include "ingot/codegen/types/matmul_size.h"
#include "ingot/runtime/gemm/gemm_tensors.h"

namespace ingot {
namespace {

constexpr std::int64_t kAlignment = 16;            // bytes, of FP8 operands
constexpr std::int64_t kRowsOfScaleInv = 4;        // M and N with scale_inv of groups: 16 bytes of them
constexpr std::size_t kVersionOfVectors = 120900;  // the first that takes more than one scale_inv for an operand

constexpr const char* kMisaligned =
    "kernel cublaslt needs every FP8 operand, what goes with it and its output at addresses, pitches and row lengths "
    "that are multiples of 16 bytes";
constexpr const char* kTooLarge = "kernel cublaslt takes sizes, and pitches in bytes, below 2^31";

bool pointer_aligned(const Tensor& tensor) { return reinterpret_cast<std::uintptr_t>(tensor.data) % kAlignment == 0; }

// Pointer and rows at multiples of 16 bytes, and whole vectors of 16 bytes in a row.
bool aligned(const Tensor& tensor) {
  const std::int64_t size = size_of(tensor.dtype);
  return pointer_aligned(tensor) && tensor.row_stride * size % kAlignment == 0 && tensor.cols * size % kAlignment == 0;
}

// Sizes in the library's kernels have 32 bits, and so do pitches in bytes (beyond that, results are wrong before 13.2).
bool fits_32_bits(const Tensor& tensor) {
  constexpr std::int64_t kLimit = std::numeric_limits<std::int32_t>::max();
  return tensor.rows <= kLimit && tensor.cols <= kLimit && tensor.row_stride <= kLimit / size_of(tensor.dtype);
}

const char* refused_high_precision(const GemmSpec& spec) {
  if (spec.a == spec.b && (spec.out == spec.a || spec.out == Dtype::f32)) return nullptr;
  return "kernel cublaslt writes high-precision results in the operands' dtype or f32 only";
}

// cuBLASLt adds beta * c of the output's dtype, but supports neither our expressions nor a second output.
const char* refused_epilogue(const GemmSpec& spec, const GemmTensors& tensors) {
  const GemmEpilogue& epilogue = spec.epilogue;
  if (is_fp8(spec.out)) return "kernel cublaslt writes no FP8 output";
  if (epilogue.pointwise || epilogue.amax) return "kernel cublaslt has no epilogue but beta * c";
  if (!epilogue.c) return nullptr;
  if (*epilogue.c != spec.out) return "kernel cublaslt adds a c of the output's dtype only";
  if (!fits_32_bits(tensors.c)) return kTooLarge;
  return is_fp8(spec.a) && !aligned(tensors.c) ? kMisaligned : nullptr;
}

const char* refused_scale_inv(const GemmSpec& spec, const MatmulSize& size, Target device, std::size_t version) {
  const bool grouped =
      has_group_scale_inv(spec);  // then a valid spec has a pair of granularities that cuBLASLt has too
  if (!grouped && spec.scale_a != spec.scale_b) {
    return "kernel cublaslt takes scale_inv of rows for both operands or for none";
  }
  if (spec.scale_a == kTensorwise) return nullptr;
  if (device.major != 9 || device.minor != 0) {
    return "kernel cublaslt takes scale_inv of rows, groups and blocks on sm_90a only";
  }
  if (version < kVersionOfVectors) {
    return "kernel cublaslt takes scale_inv of rows, groups and blocks from cuBLASLt 12.9 on only";
  }
  if (grouped && (size.m % kRowsOfScaleInv != 0 || size.n % kRowsOfScaleInv != 0)) {
    return "kernel cublaslt takes scale_inv of groups and blocks only where M and N are multiples of 4";
  }
  return nullptr;
}

const char* refused_fp8(const GemmSpec& spec, const GemmTensors& tensors, const MatmulSize& size, Target device,
                        std::size_t version) {
  const bool has_tensor_cores = device.major >= 9 || (device.major == 8 && device.minor == 9);
  if (!has_tensor_cores) return "kernel cublaslt multiplies FP8 on sm_89 and later only";
  if (!is_ocp(spec.a) || !is_ocp(spec.b)) return "kernel cublaslt multiplies e4m3fn and e5m2 only";
  if (spec.a == Dtype::e5m2 && spec.b == Dtype::e5m2) return "kernel cublaslt does not multiply e5m2 by e5m2";
  if (spec.layout_a != Layout::k_major || spec.layout_b != Layout::k_major) {
    return "kernel cublaslt takes FP8 operands stored along K (nt) only";
  }
  if (const char* const reason = refused_scale_inv(spec, size, device, version)) return reason;
  // Rows of a and b are K long, rows of out N. scale_inv of groups may have any layout: they are copied if need be
  // (cublaslt_rules.h).
  const bool scale_inv =
      has_group_scale_inv(spec) || (pointer_aligned(tensors.scale_inv_a) && pointer_aligned(tensors.scale_inv_b));
  const bool all = aligned(tensors.a) && aligned(tensors.b) && aligned(tensors.out) && scale_inv &&
                   (!spec.bias || pointer_aligned(tensors.bias));
  return all ? nullptr : kMisaligned;
}

}  // namespace

std::size_t cublaslt_bias_bytes(const GemmSpec& spec, const GemmTensors& tensors) {
  constexpr std::int64_t kMultiple = 256;
  if (!spec.bias || pointer_aligned(tensors.bias)) return 0;
  const std::int64_t bytes = tensors.bias.cols * size_of(tensors.bias.dtype);
  return static_cast<std::size_t>((bytes + kMultiple - 1) / kMultiple * kMultiple);
}

const char* cublaslt_refusal(const GemmSpec& spec, const GemmTensors& tensors, const MatmulSize& size, Target device,
                             std::size_t version) {
  if (size.m == 0 || size.n == 0 || size.k == 0) return "kernel cublaslt needs an M, an N and a K of at least 1";
  for (const Tensor* const tensor :
       {&tensors.a, &tensors.b, &tensors.out, &tensors.scale_inv_a, &tensors.scale_inv_b}) {
    if (!fits_32_bits(*tensor)) return kTooLarge;
  }
  if (const char* const reason = refused_epilogue(spec, tensors)) return reason;
  return is_fp8(spec.a) ? refused_fp8(spec, tensors, size, device, version) : refused_high_precision(spec);
}

namespace {

constexpr std::int64_t kScaleInvGroup = 128;
constexpr std::int64_t kPitchUnit = 4;             // scale_inv of blocks: 16 bytes
constexpr std::uintptr_t kScaleInvAlignment = 16;  // bytes
constexpr std::size_t kCopyAlignment = 256;        // bytes, of copies

std::int64_t rounded_up(std::int64_t value, std::int64_t unit) { return divided_up(value, unit) * unit; }

bool scale_inv_aligned(const Tensor& tensor) {
  return reinterpret_cast<std::uintptr_t>(tensor.data) % kScaleInvAlignment == 0;
}

}  // namespace

std::size_t CublasltScaleInv::bytes() const {
  if (!moved) return 0;
  const auto size = static_cast<std::size_t>(read.rows * read.pitch) * sizeof(float);
  return (size + kCopyAlignment - 1) / kCopyAlignment * kCopyAlignment;
}

CublasltScaleInv cublaslt_scale_inv(const Tensor& scale_inv, ScaleGranularity scale, std::int64_t rows,
                                    std::int64_t k) {
  const std::int64_t groups = divided_up(k, kScaleInvGroup);
  const std::int64_t parts = divided_up(rows, std::int64_t{scale.rows});  // rows, or blocks of them
  const ScaleInvStrides strides = scale_inv_strides(scale_inv, scale, k);
  const bool by_group = scale == kRowGroups;  // read so: a row for each group
  CublasltScaleInv result;
  result.read = by_group ? ScaleInvMatrix{.rows = groups, .cols = parts, .pitch = parts}
                         : ScaleInvMatrix{.rows = parts, .cols = groups, .pitch = rounded_up(groups, kPitchUnit)};
  // Those of a single row or column are contiguous and may be taken either way.
  const bool given_by_group = strides.group != 1 || ((groups == 1 || parts == 1) && by_group);
  result.given = given_by_group
                     ? ScaleInvMatrix{.rows = groups, .cols = parts, .pitch = groups == 1 ? parts : strides.group}
                     : ScaleInvMatrix{.rows = parts, .cols = groups, .pitch = parts == 1 ? groups : strides.row};
  result.transposed = given_by_group != by_group;
  const bool padded = by_group || groups % kPitchUnit == 0;  // else reads of 16 bytes could pass the end
  result.moved =
      result.transposed || result.given.pitch != result.read.pitch || !padded || !scale_inv_aligned(scale_inv);
  return result;
}

std::size_t cublaslt_scale_inv_bytes(const GemmSpec& spec, const GemmTensors& tensors, const MatmulSize& size) {
  if (!has_group_scale_inv(spec)) return 0;
  return cublaslt_scale_inv(tensors.scale_inv_a, spec.scale_a, size.m, size.k).bytes() +
         cublaslt_scale_inv(tensors.scale_inv_b, spec.scale_b, size.n, size.k).bytes();
}

}  // namespace ingot
