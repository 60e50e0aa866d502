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
// The layer owns memory and state; what it computes are the functions of linear_functions.h, which keep nothing: use
// those for several forwards before a backward, several threads, memory of your own or weights that are given in FP8.
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

#include "ingot/codegen/types/matmul_size.h"
#include "ingot/nn/linear/float8_tensor.h"
#include "ingot/nn/linear/linear_functions.h"
#include "ingot/nn/linear/linear_fusion.h"
#include "ingot/nn/linear/linear_parts.h"
#include "ingot/nn/linear/linear_plan.h"
#include "ingot/nn/modules/owner_memory.h"
#include "ingot/nn/observe/observer.h"
#include "ingot/nn/recipe/recipes.h"
#include "ingot/runtime/backend.h"
#include "ingot/runtime/buffer.h"
#include "ingot/runtime/stream.h"

namespace ingot {

class DelayedScaling;
class LayerCall;

// All tensors have one high-precision dtype (f32, bf16 or f16), but for those of LinearOptions, and
// are row-major; M = tokens, any M >= 0. The output
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

// Memory that a layer uses only within one call: 1 byte per element of the input, 2 per element of grad_output, the
// factors, and what a config or fusion needs besides. Layers that run on one stream can share a workspace, which must
// outlive them. Calls on a stream with an allocator do not use it.
struct Float8Workspace {
  Buffer memory{};
};

struct LinearOptions {
  std::string name = "linear";  // "layers.0.wq": names its slots in a DelayedScaling and its rows in a Monitor
  LinearFusion fusion{};
  // As LinearDtypes: f32 masters beside bf16 inputs, f32 logits. Default: the input's; of the bias what the output GEMM
  // takes.
  std::optional<Dtype> weight_dtype{};
  std::optional<Dtype> bias_dtype{};
  std::optional<Dtype> output_dtype{};
  DelayedScaling* delayed = nullptr;     // the whole model's; required if the config has delayed scales
  Float8Workspace* workspace = nullptr;  // default: the layer's own
  LayerObserver* observer = nullptr;     // Monitor, NvtxRanges, TraceRanges ...; outlives the layer
  // A second stream of the same backend, for work off the critical path: the weight's cast runs there beside the
  // input's, and grad_weight's GEMM beside grad_input's. Each call, even one that throws, leaves its own stream waiting
  // for that work, so nothing changes for the caller, and a captured graph contains both streams' work. It pays for
  // small layers (docs/performance.md). Layers with more than kLargestBeside multiplications, observed layers, steps
  // whose memory is checked (ContextOptions::check_memory), captures with more tokens than any step before, and
  // backwards whose two GEMMs are one launch (Backend::gemm_pair) do not use it. The side stream has memory of its own,
  // which graphs go on using: layers that share a side stream must share their main stream too, and their graph replays
  // and all their other work must run in one order. The stream must outlive the layers.
  Stream* side = nullptr;
  // With factors of groups or blocks (the recipe blockwise), a forward of more products than this, tokens *
  // in_features * out_features, has its epilogue in a pass of its own, so that cuBLASLt may multiply. The output is
  // then rounded twice, and the pass computes as LinearFusion::fast_math says. 0: every forward has; infinity: none.
  double fused_products = kFusedProducts;

  static constexpr double kLargestBeside = 1e10;  // M * N * K
  static constexpr bool is_small(std::int64_t tokens, std::int64_t in_features, std::int64_t out_features) {
    return products_of({.m = tokens, .n = out_features, .k = in_features}) <= kLargestBeside;
  }
};

inline MemoryRegion region_of(const Buffer& buffer) { return {buffer.data(), buffer.bytes()}; }

class INGOT_API Float8Linear : private LinearPart {
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

  // Throw what forward() and backward() would throw, and launch nothing: for modules that consist of several layers.
  void check_forward(const LinearForward& tensors, const Stream& stream) const;
  void check_backward(const LinearBackward& tensors, const Stream& stream) const;

  // Tells the layer that the weight's memory has new values: the next forward() casts it again. A forward() with a
  // different weight pointer does so by itself. Until the next forward(), backward() correctly uses the codes of the
  // old values. Where it reads the caller's weight instead (high precision, OtherCodes::again), the weight must not
  // change before backward() has run.
  void weight_changed() { weight_is_current_ = false; }
  // Forgets what forward() kept: backward() then needs another forward(), or a recompute(). Memory of an allocator goes
  // back to it, other memory stays for the next forward(). Not within a capture.
  void release_saved();
  // Frees what forward() kept and the weight's codes (but not those that a WeightCasts writes); the next forward()
  // allocates them again. Not for a layer whose steps are replayed from a graph.
  void release();

  const LinearConfig& config() const { return plan_.config; }
  LinearShape shape() const { return plan_.shape; }
  const std::string& name() const { return options_.name; }
  // Device memory held for the coming backward(): for FP8 the input's codes (M * K bytes) and their factors (4 bytes, 4
  // * K if rowwise, M * K / 32 if blockwise), plus a preactivation or a prologue's values where needed. Views count as
  // 0; the weight's codes and the workspace are not counted.
  std::size_t saved_bytes() const;

 private:
  // Owners of modules with linear layers inside: their functions enqueue the work, and the layer gives scales and
  // codes.
  friend class NormLinear;
  friend class Mlp;
  // Casts the weight among others: memory and a scale for it, and that its codes are there.
  friend class WeightCasts;
  WeightCastTensors list_weight(const Tensor& weight, Stream& stream);
  void weight_was_cast(const Tensor& weight, const Stream& stream);
  void before_forward(LinearPass pass, LinearForwardTensors& tensors, Stream& stream) override;
  void after_forward(const LinearForwardTensors& tensors, Stream& stream) override;
  Stream* before_backward(LinearBackwardTensors& tensors, Stream& stream) override;
  void after_backward(Stream& stream) override { join(stream); }
  // Casts the weight on the side stream, perhaps before the input is ready.
  void start_weight(const Tensor& weight, std::int64_t tokens, Stream& stream);

  // May a step of this many tokens use the side stream, as far as the layer is concerned?
  bool may_use_side(std::int64_t tokens) const;
  // Does it? `most`: one of those below.
  bool uses_side(std::int64_t tokens, std::int64_t& most, Stream& stream);
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

  // The slots of the layer's three tensors in the DelayedScaling; -1 where scaling is not delayed.
  struct Slots {
    int input = -1;
    int weight = -1;
    int grad_output = -1;
  };

  // How many bytes each pass needs for the tokens of the last step. Most steps have as many as the one before.
  struct Sizes {
    std::int64_t tokens = -1;
    bool observed = false;
    std::size_t saved = 0;
    std::array<std::size_t, 3> forward{};   // by LinearPass
    std::array<std::size_t, 8> backward{};  // by LinearGradients::index()
  };

  // Another dtype than that of the calls so far means another plan; what was kept and cast by the old one is then gone.
  void plan_for(Dtype dtype);
  const Sizes& sizes(std::int64_t tokens);
  LinearForwardTensors forward_tensors(const LinearForward& tensors) const;
  LinearBackwardTensors backward_tensors(const LinearBackward& tensors) const;
  Buffer& workspace() { return (options_.workspace != nullptr ? *options_.workspace : own_workspace_).memory; }
  bool observes_values() const { return options_.observer != nullptr && options_.observer->wants_values(); }
  bool needs_start(int slot) const;
  // The scale of a tensor that is about to be cast; made of `data` if it is a delayed scale's first cast.
  LinearScale scale_of(const LinearScale& fixed, int slot) const;
  void start_scale(int slot, const Tensor& data, Stream& stream);
  template <class Values>
  void start_scale_of_values(int slot, const Tensor& like, Stream& stream, const Values& values);
  void start_scales_of_backward(const LinearBackwardTensors& tensors, Stream& stream);
  void make_constants(Stream& stream);
  bool weight_is_cast(const Tensor& weight) const;
  // Memory and a scale for the weight's cast. It is current once that is enqueued.
  WeightCastTensors prepare_weight(const Tensor& weight, Stream& stream);
  // During a capture the cast is only recorded, so the codes are not there yet.
  void weight_is_enqueued(const Stream& stream) { weight_is_current_ = !backend_->capturing(stream); }
  void run_pass(LinearPass pass, const LinearForward& tensors, LinearForwardTensors& all, LayerCall& use,
                Stream& stream);

  Backend* backend_;
  LinearOptions options_;
  LinearPlan plan_;  // for inputs of the last call's dtype
  Sizes sizes_{};
  Slots slots_;
  Float8Workspace own_workspace_;
  Buffer constant_memory_;
  LinearScales constants_;

  OwnerMemory saved_memory_;
  LinearSaved saved_stamp_{};
  LinearForward saved_{};  // the caller's tensors of the last forward()
  OwnerMemory weight_memory_;
  Float8View codes_;
  Tensor cast_weight_{};  // the tensor that the codes were cast from
  bool weight_is_current_ = false;
  bool weight_is_listed_ = false;  // a WeightCasts writes the weight's codes, so their memory stays

  bool is_beside_ = false;  // does the side stream have work that no stream waits for yet?
  // The most tokens that it has run so far, for which its memory suffices.
  std::int64_t most_beside_forward_ = 0;
  std::int64_t most_beside_backward_ = 0;
};

}  // namespace ingot
