// A linear layer, forward and backward, in FP8 or in high precision by its config.
//
//   Float8Linear linear(context.backend(), {.in_features = K, .out_features = N, .bias = true}, tensorwise());
//   linear.forward({.input = x, .weight = w, .bias = b, .output = y}, stream);
//   linear.backward({.grad_output = gy, .grad_input = gx, .grad_weight = gw, .grad_bias = gb}, stream);
//   ... the optimizer writes w ...
//   linear.weight_changed();
//
// What a backward needs is kept between the two calls: FP8 codes of the input (1 byte per element); where grad_weight
// (grad_input) is in high precision, or casts it again, a view of the caller's input (weight), which must then stay
// alive and unchanged until backward() has run on the device; with an epilogue, the preactivation, or a view of the
// output, and views of the epilogue's inputs. The weight's codes are kept until weight_changed().
//
// Whatever is not finite in an operand makes its products NaN or Inf, with every recipe: codes have NaN for it, or a
// factor has.
//
// Calls on one layer are for one stream, or ordered by the caller. Memory is allocated by the first step and by a
// larger M only, so a step that has run once can be captured into a CUDA graph; weight_changed() before the capture
// puts the weight's cast into the graph.
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

// All of one high-precision dtype (f32, bf16 or f16), row-major; M = tokens, any M >= 0. The output overlaps none of
// the others. The inputs of the layer's fusion are in the order of its expressions' inputs(): matrices and [col]
// vectors of the layer's dtype, [row] vectors of f32; prologue's [M, K], epilogue's [M, N].
struct LinearForward {
  Tensor input;   // [M, K]
  Tensor weight;  // [N, K]
  Tensor bias{};  // [N]; where the layer is f32 and the output GEMM FP8 it is bf16 (cuBLASLt's rule); default: none
  Tensor output;  // [M, N]
  PointwiseTensors prologue_inputs{};
  PointwiseTensors epilogue_inputs{};
  // false: inference, or activation recomputation. Nothing is kept, and recompute() comes before backward().
  bool keep_for_backward = true;
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

// The memory that a layer uses within one call only: 1 byte per element of input, 2 per element of grad_output, and
// factors; and what a config or fusion needs besides. The layers that run on one stream can share one; it outlives
// them.
struct Float8Workspace {
  Float8Tensor input;        // the transposed codes where backward casts it again
  OwnedTensor input_values;  // of a prologue
  Float8Tensor weight;       // cast again in backward
  Float8Tensor grad_output;
  OwnedTensor grad_values;  // what flows back through an epilogue
  OwnedTensor observed;     // what an expression gave, where an observer asks and nobody else does
};

struct LinearOptions {
  std::string name = "linear";  // "layers.0.wq": its scales' names in a DelayedScaling, and what a Monitor calls it
  LinearFusion fusion{};
  DelayedScaling* delayed = nullptr;     // of the whole model; wanted where the config has delayed scales
  Float8Workspace* workspace = nullptr;  // default: the layer's own
  LayerObserver* observer = nullptr;     // Monitor, NvtxRanges, TraceRanges ...; outlives the layer
  // Another stream of the same backend, for what little waits for: the weight's cast runs there beside the input's, and
  // grad_weight's GEMM beside grad_input's. Each call leaves its own stream waiting for that, if it throws too, so
  // nothing changes for the caller, and graphs hold both. It pays for small layers (docs/layers.md): layers of more
  // than kLargestBeside multiplications, and those that are observed, do not use it, nor does a capture of more tokens
  // than a step has had before. It has memory of its own, which graphs go on using: layers that share one share their
  // main stream too, and replays and all other work of theirs are in one order. It outlives them.
  Stream* side = nullptr;

  static constexpr double kLargestBeside = 1e10;  // M * N * K
};

class Float8Linear {
 public:
  // Throws Error{invalid_spec} for a config that cannot exist, Error{invalid_argument} for negative sizes, and for
  // delayed scales without a DelayedScaling.
  Float8Linear(Backend& backend, LinearShape shape, LinearConfig config, LinearOptions options = {});

  void forward(const LinearForward& tensors, Stream& stream);
  // After a forward() that kept nothing, with the same tensors, which hold the same values: makes what backward()
  // needs. Where an epilogue's preactivation is needed it runs the output GEMM again, and writes the output; otherwise
  // the output must still be there for epilogues whose derivative is that of the output (sigmoid, tanh, relu).
  void recompute(const LinearForward& tensors, Stream& stream);
  // The gradients of the last forward(). Throws Error{invalid_argument} if there was none. It changes nothing that was
  // kept, so it may be called again (for the other gradients, say).
  void backward(const LinearBackward& tensors, Stream& stream);

  // Throw what forward() and backward() would, and launch nothing: for layers that are made of several.
  void check_forward(const LinearForward& tensors, const Stream& stream) const;
  void check_backward(const LinearBackward& tensors, const Stream& stream) const;

  // The weight's memory has new values: the next forward() casts it again. A forward() with another weight pointer does
  // so by itself. Until the next forward(), backward() uses the codes of the old values, as it should; where it reads
  // the caller's weight (high precision, OtherCodes::again), the weight must not change before it has run.
  void weight_changed() { weight_is_current_ = false; }
  // Gives back the memory of what forward() kept and of the weight's codes; the next forward() allocates it again. (Not
  // for a layer whose steps are replayed from a graph.)
  void release();

  const LinearConfig& config() const { return config_; }
  LinearShape shape() const { return shape_; }
  const std::string& name() const { return options_.name; }
  // Device memory held for the coming backward(): in FP8 the input's codes, M * K, and their factors (4 bytes, or 4 * K
  // of rowwise ones, or M * K / 32 of blockwise ones); a preactivation or a prologue's values, where they are needed; 0
  // for views. Weight codes and workspace are not counted.
  std::size_t saved_bytes() const;

 private:
  // Layers that are made of several check all of them first, and then run them.
  friend class NormLinear;
  friend class GatedMlp;
  // What of a forward() runs beside it, the weight's cast, which may begin before the input is there; and the rest.
  void start_forward(const LinearForward& tensors, Stream& stream);
  void run_forward(const LinearForward& tensors, Stream& stream);
  // What runs beside, and reads the workspace, is waited for by finish_backward() alone.
  void run_backward(const LinearBackward& tensors, Stream& stream);
  void finish_backward(Stream& stream) { join(stream); }

  // The side stream, behind what `stream` has been given, where a step of so many tokens uses one; or `stream` itself.
  Stream& beside(std::int64_t tokens, Stream& stream);
  void join(Stream& stream);
  // Of a call: what runs beside is waited for however it is left.
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

  // What one of the layer's three tensors is scaled by where that is given.
  struct GivenScale {
    int slot = -1;        // of a DelayedScaling
    OwnedTensor fixed{};  // f32[2]: the scale, and a place for the maximum that nobody asks for
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

  // grad_output on its way into the two GEMMs: values in high precision, and the factors of both kinds of codes. Has
  // the cast summed the bias' gradient?
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
  Pointwise times_row_factor_;  // where factors are folded
  Pointwise times_column_factor_;
  OwnedTensor one_;  // f32[1], likewise
  Float8Workspace own_workspace_;
  GivenScale input_scale_;
  GivenScale weight_scale_;
  GivenScale grad_output_scale_;

  // What backward() needs of the input: codes along the tokens, or values in high precision.
  OwnedTensor input_transposed_;
  OwnedTensor input_transposed_factors_;
  OwnedTensor input_values_;
  OwnedTensor preactivation_;
  Float8Tensor weight_;
  Tensor cast_weight_{};  // what weight_ was made of
  bool weight_is_current_ = false;

  bool is_beside_ = false;        // has the side stream been given work that no other waits for yet?
  std::int64_t side_tokens_ = 0;  // the most that it has had work of: its memory is there

  LinearForward saved_{};  // the caller's tensors of the last forward()
  bool has_forward_ = false;
};

}  // namespace ingot
