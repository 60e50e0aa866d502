// The tensors of LayerNorm and RMSNorm, forward and backward. Backend (backend.h) has the calls.
#pragma once

#include "ingot/runtime/tensor.h"

namespace ingot {

// input[rows, cols], gamma[cols] (affine), beta[cols] (affine LayerNorm) and result[rows, cols] of spec.in;
// codes[rows, cols] of spec.out; mean[rows] (LayerNorm) and rstd[rows], f32; each where the spec has it. factors, f32:
// one to a row, or a single one where the scale is given; then also scale (f32[1], read) and amax (f32[1], raised to
// the largest |value|: clear it before the first call). eps >= 0.
struct NormTensors {
  Tensor input;
  Tensor gamma{};
  Tensor beta{};
  Tensor codes{};
  Tensor factors{};
  Tensor scale{};
  Tensor amax{};
  Tensor result{};
  Tensor mean{};
  Tensor rstd{};
  float eps = 1e-5F;
};

// grad_output, input and grad_input [rows, cols] and gamma[cols] (affine) of spec.in; mean[rows] (LayerNorm) and
// rstd[rows], f32, as the forward pass wrote them; grad_gamma[cols] (affine) and grad_beta[cols] (affine LayerNorm) of
// spec.sums.
struct NormBackwardTensors {
  Tensor grad_output;
  Tensor input;
  Tensor gamma{};
  Tensor mean{};
  Tensor rstd;
  Tensor grad_input;
  Tensor grad_gamma{};
  Tensor grad_beta{};
};

}  // namespace ingot
