// The tensors of LayerNorm and RMSNorm, forward and backward. Backend (backend.h) has the calls.
#pragma once

#include "ingot/runtime/core/tensor.h"

namespace ingot {

// A tensor that the spec does not ask for stays a default Tensor.
struct NormTensors {
  Tensor input;        // [rows, cols] of spec.in
  Tensor gamma{};      // [cols] of spec.in; affine norms only
  Tensor beta{};       // [cols] of spec.in; affine LayerNorms only
  Tensor codes{};      // [rows, cols] of *spec.out
  Tensor scale_inv{};  // f32, one for each row of codes, or a single one if the scale is given
  Tensor scale{};      // a given scale: f32[1], read
  Tensor amax{};       // of a given scale: f32[1], raised to the largest |value|; clear it before the first call
  Tensor result{};     // [rows, cols] of spec.in
  Tensor mean{};       // f32[rows]; LayerNorm only
  Tensor rstd{};       // f32[rows]
  float eps = 1e-5F;   // >= 0
};

// A tensor that the spec does not ask for stays a default Tensor.
struct NormBackwardTensors {
  Tensor grad_output;   // [rows, cols] of spec.in
  Tensor input;         // [rows, cols] of spec.in
  Tensor gamma{};       // [cols] of spec.in; affine norms only
  Tensor mean{};        // f32[rows], as the forward pass wrote it; LayerNorm only
  Tensor rstd;          // f32[rows], as the forward pass wrote it
  Tensor grad_input;    // [rows, cols] of spec.in
  Tensor grad_gamma{};  // [cols] of spec.sums; affine norms only
  Tensor grad_beta{};   // [cols] of spec.sums; affine LayerNorms only
};

}  // namespace ingot
