// A linear layer, forward and backward, in FP8 or in high precision by its config.
//
//   Float8Linear linear(context.backend(), {.in_features = K, .out_features = N, .bias = true}, tensorwise());
//   linear.forward({.input = x, .weight = w, .bias = b, .output = y}, stream);
//   linear.backward({.grad_output = gy, .grad_input = gx, .grad_weight = gw, .grad_bias = gb}, stream);
//   ... the optimizer writes w ...
//   linear.weight_changed();
//
// What a backward needs is kept between the two calls: FP8 codes of the input (1 byte per element); where grad_weight
// (grad_input) is in high precision, a view of the caller's input (weight), which must then stay alive and unchanged
// until backward() has run on the device. The weight's codes are kept until weight_changed().
//
// Calls on one layer are for one stream, or ordered by the caller. Memory is allocated by the first step and by a
// larger M only, so a step that has run once can be captured into a CUDA graph; weight_changed() before the capture
// puts the weight's cast into the graph.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ingot/nn/config.h"
#include "ingot/nn/float8_tensor.h"
#include "ingot/runtime/backend.h"
#include "ingot/runtime/stream.h"

namespace ingot {

struct LinearShape {
  std::int64_t in_features = 0;   // K
  std::int64_t out_features = 0;  // N
  bool bias = false;
};

// All of one high-precision dtype (f32, bf16 or f16), row-major; M = tokens, any M >= 0. The output overlaps none of
// the others.
struct LinearForward {
  Tensor input;   // [M, K]
  Tensor weight;  // [N, K]
  Tensor bias{};  // [N]; where the layer is f32 and the output GEMM FP8 it is bf16 (cuBLASLt's rule); default: none
  Tensor output;  // [M, N]
};

// Gradients that are not wanted may be left as default tensors: their GEMM is not run. None overlaps another tensor.
struct LinearBackward {
  Tensor grad_output;    // [M, N], of the layer's dtype
  Tensor grad_input{};   // [M, K], of the layer's dtype
  Tensor grad_weight{};  // [N, K], of the layer's dtype or f32
  Tensor grad_bias{};    // [N], of any high-precision dtype
  // grad_weight += the gradient, within its GEMM: a main gradient over several micro-batches. The sum is rounded once.
  bool accumulate = false;
};

// The FP8 memory that a layer uses within one call only: 1 byte per element of input, 2 per element of grad_output, and
// factors. The layers that run on one stream can share one; it outlives them.
struct Float8Workspace {
  OwnedTensor input_codes;
  OwnedTensor input_factors;
  Float8Tensor grad_output;
};

class Float8Linear {
 public:
  // Without a workspace the layer has its own. Throws Error{invalid_spec} for a config that cannot exist,
  // Error{invalid_argument} for negative sizes.
  Float8Linear(Backend& backend, LinearShape shape, LinearConfig config, Float8Workspace* workspace = nullptr);

  void forward(const LinearForward& tensors, Stream& stream);
  // The gradients of the last forward(). Throws Error{invalid_argument} if there was none. It changes nothing that was
  // saved, so it may be called again (for the other gradients, say).
  void backward(const LinearBackward& tensors, Stream& stream);

  // The weight's memory has new values: the next forward() casts it again. A forward() with another weight pointer does
  // so by itself. Until the next forward(), backward() uses the codes of the old values, as it should.
  void weight_changed() { weight_is_current_ = false; }

  const LinearConfig& config() const { return config_; }
  LinearShape shape() const { return shape_; }
  // Device memory that holds the input for the coming backward(): in FP8 M * K and its factors (4 bytes, or 4 * K of
  // rowwise ones), 0 where it is a view. Weight codes and workspace are not counted.
  std::size_t saved_bytes() const;

 private:
  void check_forward(const LinearForward& tensors, const Stream& stream) const;
  void check_backward(const LinearBackward& tensors, const Stream& stream) const;
  void cast_input(const Tensor& input, Stream& stream);
  void cast_weight(const Tensor& weight, Stream& stream);
  Tensor cast_grad_output(const LinearBackward& tensors, Stream& stream);
  bool input_has_own_factors() const;
  Float8Workspace& workspace() { return shared_workspace_ != nullptr ? *shared_workspace_ : own_workspace_; }

  Backend* backend_;
  LinearShape shape_;
  LinearConfig config_;
  Float8Workspace* shared_workspace_;
  Float8Workspace own_workspace_;

  // What grad_weight needs of the input.
  OwnedTensor input_transposed_;
  OwnedTensor input_transposed_factors_;
  Float8Tensor weight_;
  bool weight_is_current_ = false;

  // The caller's tensors of the last forward(). Only what the config leaves in high precision is read again.
  Tensor saved_input_{};
  Tensor saved_weight_{};
  bool has_forward_ = false;
};

}  // namespace ingot
