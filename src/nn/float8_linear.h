// A linear layer whose forward and backward GEMMs run in FP8 or in high precision, as its LinearConfig says.
//
//   Float8Linear linear(context.backend(), {.in_features = K, .out_features = N, .bias = true}, tensorwise());
//   linear.forward({.input = x, .weight = w, .bias = b, .output = y}, stream);
//   linear.backward({.grad_output = gy, .grad_input = gx, .grad_weight = gw, .grad_bias = gb}, stream);
//   ... the optimizer writes w ...
//   linear.weight_changed();
//
// Between forward() and backward() the layer keeps what backward needs:
//   - FP8 codes of the input (1 byte per element), or a view of the caller's input if grad_weight runs in high
//   precision
//     or casts the input again
//   - the weight's codes, which stay until weight_changed(), or a view of the caller's weight if grad_input runs in
//   high
//     precision or casts the weight again
//   - with an epilogue, the preactivation or a view of the output, and views of the epilogue's inputs
// What it keeps a view of must stay alive and unchanged until backward() has run on the device.
//
// With every recipe, an operand that is not finite makes the results that depend on it NaN or Inf: its code or its
// factor is NaN.
//
// Calls on one layer must come on one stream or be ordered by the caller. Memory is allocated only by the first step
// and by a larger M, so a step that has run once can be captured into a CUDA graph. Call weight_changed() before the
// capture to include the weight's cast in the graph.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "ingot/nn/float8_tensor.h"
#include "ingot/nn/linear_fusion.h"
#include "ingot/nn/observer.h"
#include "ingot/nn/recipes.h"
#include "ingot/runtime/backend.h"
#include "ingot/runtime/stream.h"

namespace ingot {

class DelayedScaling;

struct LinearShape {
  std::int64_t in_features = 0;   // K
  std::int64_t out_features = 0;  // N
  bool bias = false;
};

// All tensors have one high-precision dtype (f32, bf16 or f16) and are row-major; M = tokens, any M >= 0. The output
// must not overlap any other tensor. prologue_inputs and epilogue_inputs follow the order of the expression's inputs():
// matrices ([M, K] for the prologue, [M, N] for the epilogue) and [col] vectors of the layer's dtype, [row] vectors of
// f32.
struct LinearForward {
  Tensor input;   // [M, K]
  Tensor weight;  // [N, K]
  Tensor bias{};  // [N]; bf16 if the layer is f32 and its output GEMM FP8 (cuBLASLt's rule); default: none
  Tensor output;  // [M, N]
  PointwiseTensors prologue_inputs{};
  PointwiseTensors epilogue_inputs{};
  // false for inference or activation recomputation: nothing is kept, and recompute() must come before backward().
  bool keep_for_backward = true;
};

// A gradient that is not wanted may stay a default tensor; its GEMM is then not run. No tensor may overlap another.
struct LinearBackward {
  Tensor grad_output;    // [M, N], of the layer's dtype
  Tensor grad_input{};   // [M, K], of the layer's dtype
  Tensor grad_weight{};  // [N, K], of the layer's dtype or f32
  Tensor grad_bias{};    // [N], of any high-precision dtype
  // grad_weight += the gradient, within its GEMM, to accumulate a main gradient over several micro-batches. The sum is
  // rounded once.
  bool accumulate = false;
};

// Memory that a layer uses only within one call: 1 byte per element of the input, 2 per element of grad_output, the
// factors, and what a config or fusion needs besides. Layers that run on one stream can share a workspace, which must
// outlive them.
struct Float8Workspace {
  Float8Tensor input;        // its transposed codes, where backward casts it again
  OwnedTensor input_values;  // the values of a prologue's expression
  Float8Tensor weight;       // where backward casts it again
  Float8Tensor grad_output;
  OwnedTensor grad_values;  // grad_output times the epilogue's derivative
  OwnedTensor observed;     // an expression's values, if only an observer wants them
};

struct LinearOptions {
  std::string name = "linear";  // "layers.0.wq": names its slots in a DelayedScaling and its rows in a Monitor
  LinearFusion fusion{};
  DelayedScaling* delayed = nullptr;     // the whole model's; required if the config has delayed scales
  Float8Workspace* workspace = nullptr;  // default: the layer's own
  LayerObserver* observer = nullptr;     // Monitor, NvtxRanges, TraceRanges ...; outlives the layer
  // A second stream of the same backend, for work off the critical path: the weight's cast runs there beside the
  // input's, and grad_weight's GEMM beside grad_input's. Each call, even one that throws, leaves its own stream waiting
  // for that work, so nothing changes for the caller, and a captured graph contains both streams' work. It pays for
  // small layers (docs/layer_speed.md). Layers with more than kLargestBeside multiplications, observed layers, and
  // captures with more tokens than any step before do not use it. The side stream has memory of its own, which graphs
  // go on using: layers that share a side stream must share their main stream too, and their graph replays and all
  // their other work must run in one order. The stream must outlive the layers.
  Stream* side = nullptr;

  static constexpr double kLargestBeside = 1e10;  // M * N * K
};

class Float8Linear {
 public:
  // Throws Error{invalid_spec} for an invalid config, and Error{invalid_argument} for negative sizes and for delayed
  // scales without a DelayedScaling.
  Float8Linear(Backend& backend, LinearShape shape, LinearConfig config, LinearOptions options = {});

  void forward(const LinearForward& tensors, Stream& stream);
  // Makes what backward() needs after a forward() that kept nothing. Takes the same tensors with the same values. If
  // backward needs an epilogue's preactivation, this runs the output GEMM again and writes the output; otherwise, the
  // output must still be intact for epilogues whose derivative is computed from the output (sigmoid, tanh, relu).
  void recompute(const LinearForward& tensors, Stream& stream);
  // Computes the gradients of the last forward(). Throws Error{invalid_argument} if there was none. It does not change
  // what was kept, so it may be called again, for example for the other gradients.
  void backward(const LinearBackward& tensors, Stream& stream);

  // Throw what forward() and backward() would throw, and launch nothing: for modules that consist of several layers.
  void check_forward(const LinearForward& tensors, const Stream& stream) const;
  void check_backward(const LinearBackward& tensors, const Stream& stream) const;

  // Tells the layer that the weight's memory has new values: the next forward() casts it again. A forward() with a
  // different weight pointer does so by itself. Until the next forward(), backward() correctly uses the codes of the
  // old values. Where it reads the caller's weight instead (high precision, OtherCodes::again), the weight must not
  // change before backward() has run.
  void weight_changed() { weight_is_current_ = false; }
  // Frees what forward() kept and the weight's codes; the next forward() allocates them again. Not for a layer whose
  // steps are replayed from a graph.
  void release();

  const LinearConfig& config() const { return config_; }
  LinearShape shape() const { return shape_; }
  const std::string& name() const { return options_.name; }
  // Device memory held for the coming backward(): for FP8 the input's codes (M * K bytes) and their factors (4 bytes, 4
  // * K if rowwise, M * K / 32 if blockwise), plus a preactivation or a prologue's values where needed. Views count as
  // 0; the weight's codes and the workspace are not counted.
  std::size_t saved_bytes() const;

 private:
  // Modules that consist of several layers check all of them before they run any.
  friend class NormLinear;
  friend class GatedMlp;
  // start_forward() casts the weight on the side stream, perhaps before the input is ready; run_forward() does the
  // rest.
  void start_forward(const LinearForward& tensors, Stream& stream);
  void run_forward(const LinearForward& tensors, Stream& stream);
  // Work on the side stream still reads the workspace when run_backward() returns; only finish_backward() waits for it.
  void run_backward(const LinearBackward& tensors, Stream& stream);
  void finish_backward(Stream& stream) { join(stream); }

  // Returns the side stream, ordered behind the work already in `stream`, if a step of this many tokens uses it;
  // otherwise `stream` itself.
  Stream& beside(std::int64_t tokens, Stream& stream);
  void join(Stream& stream);
  // Joins the side stream when a call ends, even by an exception.
  class Call {
   public:
    Call(Float8Linear& layer, Stream& stream) : layer_(&layer), stream_(&stream) {}
    ~Call();
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

   private:
    Float8Linear* layer_;
    Stream* stream_;
  };

  // The scale of one of the layer's three tensors, where scaling is delayed or fixed.
  struct GivenScale {
    int slot = -1;        // in the DelayedScaling
    OwnedTensor fixed{};  // f32[2]: the scale, and room for the maximum, which is not used
  };
  struct CastOrder;

  void cast(const CastOrder& order, Stream& stream);
  void report(const CastOrder& order, const CastSpec& spec, const CastTensors& tensors, Stream& stream);
  void report(const char* role, const GemmSpec& spec, const GemmTensors& tensors, Stream& stream);
  void multiply(const char* role, const GemmSpec& spec, const GemmTensors& tensors, Stream& stream);
  void give_scale(CastTensors& tensors, const CastOrder& order, const CastSpec& spec, Stream& stream);
  void cast_input(const LinearForward& tensors, TensorCasts casts, Stream& stream);
  bool weight_is_cast(const Tensor& weight) const;
  void cast_weight(const Tensor& weight, Stream& stream);
  void multiply_output(const LinearForward& tensors, Stream& stream);
  void keep(const LinearForward& tensors);

  // grad_output after its casts: its values for GEMMs in high precision, and the factors of both sets of codes.
  // is_summed: the cast has already summed the bias' gradient.
  struct GradOutput {
    Tensor values;
    bool is_summed = false;
    Tensor factors{};
    Tensor transposed_factors{};
  };
  GradOutput cast_grad_output(const LinearBackward& tensors, Stream& stream);
  void fold_and_cast(const TensorCasts& casts, const Tensor& values, Stream& stream);
  void multiply_grad_input(const LinearBackward& tensors, const GradOutput& grad_output, Stream& stream);
  void multiply_grad_weight(const LinearBackward& tensors, const GradOutput& grad_output, Stream& stream);

  TensorCasts casts_of_forward(const LinearForward& tensors) const;
  bool keeps_values(const LinearForward& tensors) const;
  bool needs_preactivation() const {
    const Pointwise& gradient = gradient_.expression();
    return !gradient.empty() && gradient.uses_x() && !gradient_.of_output();
  }
  const Tensor& factor_of_one(Stream& stream);
  Float8Workspace& workspace() { return options_.workspace != nullptr ? *options_.workspace : own_workspace_; }

  Backend* backend_;
  LinearShape shape_;
  LinearConfig config_;
  LinearOptions options_;
  EpilogueGradient gradient_;
  Pointwise times_row_factor_;  // both: only where factors are folded
  Pointwise times_column_factor_;
  OwnedTensor one_;  // f32[1]: 1, only where factors are folded
  Float8Workspace own_workspace_;
  GivenScale input_scale_;
  GivenScale weight_scale_;
  GivenScale grad_output_scale_;

  // What backward() needs of the input: its codes along the tokens, or its values in high precision.
  OwnedTensor input_transposed_;
  OwnedTensor input_transposed_factors_;
  OwnedTensor input_values_;
  OwnedTensor preactivation_;
  Float8Tensor weight_;
  Tensor cast_weight_{};  // the tensor that weight_ was cast from
  bool weight_is_current_ = false;

  bool is_beside_ = false;        // does the side stream have work that no stream waits for yet?
  std::int64_t side_tokens_ = 0;  // the most tokens it has run so far: its memory suffices for them

  LinearForward saved_{};  // the caller's tensors of the last forward()
  bool has_forward_ = false;
};

}  // namespace ingot
