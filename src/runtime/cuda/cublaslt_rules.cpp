// NVIDIA's documentation of cublasLtMatmul(), "FP8 data types usage", and the scale modes of cublasLt.h, in the terms
// of our row-major GEMM: its A is our b, its B our a, its m our N, its n our M. Some versions of the library do not
// check alignments themselves, so that a call that breaks these rules may read past a buffer: they are not hints.
#include "ingot/runtime/cuda/cublaslt_rules.h"

#include <cstdint>
#include <limits>

namespace ingot {
namespace {

constexpr std::int64_t kAlignment = 16;  // bytes, of FP8 operands

bool pointer_aligned(const Tensor& tensor) { return reinterpret_cast<std::uintptr_t>(tensor.data) % kAlignment == 0; }

// Pointer and rows at multiples of 16 bytes, and whole vectors of 16 bytes in a row.
bool aligned(const Tensor& tensor) {
  const std::int64_t size = size_of(tensor.dtype);
  return pointer_aligned(tensor) && tensor.row_stride * size % kAlignment == 0 && tensor.cols * size % kAlignment == 0;
}

// Sizes in the library's kernels are 32-bit, and so are pitches in bytes (wrong results above that before 13.2).
bool fits_32_bits(const Tensor& tensor) {
  constexpr std::int64_t kLimit = std::numeric_limits<std::int32_t>::max();
  return tensor.rows <= kLimit && tensor.cols <= kLimit && tensor.row_stride <= kLimit / size_of(tensor.dtype);
}

bool supports_high_precision(const GemmSpec& spec) {
  return spec.a == spec.b && (spec.out == spec.a || spec.out == Dtype::f32);
}

// It adds beta * c of the output's dtype, and knows neither our expressions nor a second output.
bool supports_epilogue(const GemmSpec& spec, const GemmTensors& tensors) {
  const GemmEpilogue& epilogue = spec.epilogue;
  if (is_fp8(spec.out) || epilogue.pointwise || epilogue.amax) return false;
  if (!epilogue.c) return true;
  return *epilogue.c == spec.out && fits_32_bits(tensors.c) && (!is_fp8(spec.a) || aligned(tensors.c));
}

bool supports_fp8(const GemmSpec& spec, const GemmTensors& tensors, Target device) {
  const bool has_tensor_cores = device.major >= 9 || (device.major == 8 && device.minor == 9);
  if (!has_tensor_cores || !is_ocp(spec.a) || !is_ocp(spec.b)) return false;
  if (spec.a == Dtype::e5m2 && spec.b == Dtype::e5m2) return false;
  if (spec.layout_a != Layout::k_major || spec.layout_b != Layout::k_major) return false;
  // One factor for each operand, or (Hopper only) one for each row of both.
  if (spec.scale_a != spec.scale_b) return false;
  if (spec.scale_a != kTensorwise && !(spec.scale_a == kRowwise && device.major == 9 && device.minor == 0))
    return false;
  // Rows of a and b are K long, rows of out N.
  return aligned(tensors.a) && aligned(tensors.b) && aligned(tensors.out) && pointer_aligned(tensors.factor_a) &&
         pointer_aligned(tensors.factor_b) && (!spec.bias || pointer_aligned(tensors.bias));
}

}  // namespace

bool cublaslt_supports(const GemmSpec& spec, const GemmTensors& tensors, const GemmShape& shape, Target device) {
  if (shape.m == 0 || shape.n == 0 || shape.k == 0) return false;
  if (!fits_32_bits(tensors.a) || !fits_32_bits(tensors.b) || !fits_32_bits(tensors.out)) return false;
  if (!supports_epilogue(spec, tensors)) return false;
  return is_fp8(spec.a) ? supports_fp8(spec, tensors, device) : supports_high_precision(spec);
}

}  // namespace ingot
