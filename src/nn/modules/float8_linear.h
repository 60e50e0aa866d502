// A linear layer whose forward and backward GEMMs run in FP8 or in high precision, as its LinearConfig says.
//
//   Float8Linear linear(context.backend(), {.in_features = K, .out_features = N, .bias = true}, tensorwise());
//   linear.forward({.input = x, .weight = w, .bias = b, .output = y}, stream);
//   linear.backward({.grad_output = gy, .grad_input = gx, .grad_weight = gw, .grad_bias = gb}, stream);
//   ... the optimizer writes w ...
//   linear.weight_changed();
//
// Between forward() and backward() the layer keeps what backward needs:
//   - FP8 codes of the input (1 byte per element), or a view of the caller's input
//     if grad_weight runs in high precision or casts the input again
//   - the weight's codes, which stay until weight_changed(), or a view of the caller's weight
//     if grad_input runs in high precision or casts the weight again
//   - with an epilogue, the preactivation or a view of the output, and views of the epilogue's inputs
// What it keeps a view of must stay alive and unchanged until backward() has run on the device.
//
// With every recipe, an operand that is not finite makes the results that depend on it NaN or Inf: its code or its
// factor is NaN.
//
// The layer owns memory and state; what it computes are the functions of linear_functions.h, which keep nothing: use
// those for several forwards before a backward, several threads, your own memory or weights that are given in FP8.
//
// Calls on one layer must come on one stream or be ordered by the caller. Memory is allocated only by the first step
// and by a larger M, so a step that has run once can be captured into a CUDA graph. Call weight_changed() before the
// capture to include the weight's cast in the graph.
//
// On a Stream with a StreamAllocator all of this memory is the allocator's, as OwnerMemory says: scratch for the time
// of a call, what forward() keeps until the next forward(), release_saved() or release(), the weight's codes until
// release(). Constants of a few bytes are allocated once in any case. What a captured forward() keeps is memory of its
// graph: its backward() belongs into that graph, or must run while the graph lives.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "ingot/api.h"
#include "ingot/nn/linear/linear_functions.h"
#include "ingot/nn/linear/linear_plan.h"
#include "ingot/nn/modules/linear_owner.h"
#include "ingot/nn/recipe/recipes.h"
#include "ingot/runtime/context/backend.h"
#include "ingot/runtime/core/stream.h"

namespace ingot {

class LayerCall;

// All tensors have one high-precision dtype (f32, bf16 or f16), except where LinearOptions gives another, and are
// row-major; M = tokens, any M >= 0. The output must not overlap any other tensor. prologue_inputs and epilogue_inputs
// follow the order of the expression's inputs(): matrices ([M, K] for the prologue, [M, N] for the epilogue) and [col]
// vectors of the layer's dtype, [row] vectors of f32.
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
  // [M, N], of the layer's dtype; or [1, 1], one element that stands for all: the gradient of a sum.
  Tensor grad_output;
  // Of any high-precision dtype where their GEMM is in FP8, otherwise of the layer's dtype or f32.
  Tensor grad_input{};   // [M, K]
  Tensor grad_weight{};  // [N, K]
  Tensor grad_bias{};    // [N], of any high-precision dtype
  // grad_weight += the gradient, within its GEMM, to accumulate a main gradient over several micro-batches. The sum is
  // rounded once.
  bool accumulate = false;
};

class INGOT_API Float8Linear {
 public:
  // Throws Error{invalid_spec} for an invalid config, and Error{invalid_argument} for negative sizes and for delayed
  // scales without a DelayedScaling.
  Float8Linear(Backend& backend, LinearShape shape, LinearConfig config, LinearOptions options = {});

  // If it throws, what the forward before it kept may be gone: backward() then says so.
  void forward(const LinearForward& tensors, Stream& stream);
  // Makes what backward() needs after a forward() that kept nothing. Takes the same tensors with the same values. If
  // backward needs an epilogue's preactivation, this runs the output GEMM again and writes the output; otherwise, the
  // output must still be intact for epilogues whose derivative is computed from the output (sigmoid, tanh, relu).
  void recompute(const LinearForward& tensors, Stream& stream);
  // Computes the gradients of the last forward(). Throws Error{invalid_argument} if there was none. It does not change
  // what was kept, so it may be called again, for example for the other gradients.
  void backward(const LinearBackward& tensors, Stream& stream);

  // Tells the layer that the weight's memory has new values: the next forward() casts it again. A forward() with a
  // different weight pointer does so by itself. Until the next forward(), backward() correctly uses the codes of the
  // old values. Where it reads the caller's weight instead (high precision, OtherCodes::again), the weight must not
  // change before backward() has run.
  void weight_changed() { owner_.weight_changed(); }
  // Forgets what forward() kept: backward() then needs another forward(), or a recompute(). Memory of an allocator goes
  // back to it, other memory stays for the next forward(). Not within a capture.
  void release_saved();
  // Frees what forward() kept and the weight's codes (but not those that a WeightCasts writes); the next forward()
  // allocates them again. Not for a layer whose steps are replayed from a graph.
  void release();

  const LinearConfig& config() const { return plan_.config; }
  LinearShape shape() const { return plan_.shape; }
  const std::string& name() const { return owner_.options().name; }
  // Device memory held for the coming backward(): for FP8 the input's codes (M * K bytes) and their scale_inv (4 bytes,
  // 4
  // * K if rowwise, M * K / 32 if blockwise), plus a preactivation or a prologue's values where needed. Views count as
  // 0; the weight's codes and the workspace are not counted.
  std::size_t saved_bytes() const;
  // For a WeightCasts: what casts the weight, planned for a weight of this dtype.
  OwnedLinear linear_of(Dtype weight);

 private:
  // How many bytes each pass needs for the tokens of the last step. Most steps have as many as the one before.
  struct Sizes {
    std::int64_t tokens = -1;
    bool observed = false;
    std::size_t saved = 0;
    std::array<std::size_t, 3> forward{};   // by LinearPass
    std::array<std::size_t, 8> backward{};  // by LinearGradients::index()
  };

  // The plan for an input of this dtype, if that is another than plan_.
  std::optional<LinearPlan> other_plan(Dtype input) const;
  // What was kept and cast by the old plan is then gone.
  void use(std::optional<LinearPlan> plan);
  const Sizes& sizes(std::int64_t tokens);
  LinearForwardTensors forward_tensors(const LinearForward& tensors) const;
  LinearBackwardTensors backward_tensors(const LinearBackward& tensors) const;
  void run_pass(LinearPass pass, const LinearForward& tensors, Stream& stream);

  LinearPlan plan_;  // for inputs of the last call's dtype
  Sizes sizes_{};
  LinearOwner owner_;
  OwnerMemory saved_memory_;
  LinearSaved saved_stamp_{};
  LinearForward saved_{};  // the caller's tensors of the last forward()
};

}  // namespace ingot
