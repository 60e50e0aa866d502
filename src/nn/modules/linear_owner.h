// What a layer keeps of a linear layer inside it from call to call, in addition to what a forward saves: the weight's
// codes, scales and constants, scratch, and which work is on the side stream. Float8Linear and NormLinear have one, an
// Mlp has two. They hand its codes and scales to the functions (linear_functions.h) as tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "ingot/api.h"
#include "ingot/codegen/types/matmul_size.h"
#include "ingot/nn/linear/linear_functions.h"
#include "ingot/nn/linear/linear_memory.h"
#include "ingot/nn/linear/linear_plan.h"
#include "ingot/nn/observe/observer.h"
#include "ingot/runtime/context/backend.h"
#include "ingot/runtime/core/buffer.h"
#include "ingot/runtime/core/stream.h"

namespace ingot {

// Memory of a layer that owns what its calls leave to later ones: the backend's, or that of the stream's allocator
// (stream_allocator.h) where the stream has one.
//
// Move-only. The backend and the allocators of all streams it was used with must outlive it. What an allocator gave
// goes back to the stream that it was taken on, so that stream must by then wait for all others that use it. Without an
// allocator, both functions are Buffer::reserve().
class INGOT_API OwnerMemory {
 public:
  // For what one forward keeps. An allocator gets back what it gave for the forward before, and gives exactly `bytes`.
  // What is captured uses memory of the graph, and leaves the rest as it is.
  MemoryRegion renew(DeviceApi& device_api, std::size_t bytes, Stream& stream);
  // For what lasts, at one place for every later call and graph: stays where it is if it suffices, and what is outgrown
  // is kept. Throws Error{invalid_argument} if it would have to grow while the stream is capturing.
  MemoryRegion reserve(DeviceApi& device_api, std::size_t bytes, Stream& stream);
  // What an allocator gave for renew() goes back to it, and what a graph holds stays.
  void give_back() { block_ = {}; }

 private:
  MemoryRegion buffer(DeviceApi& device_api, std::size_t bytes, Stream& stream);

  Buffer buffer_;
  StreamBlock block_;
  StreamBlock captured_;
  std::vector<StreamBlock> outgrown_;
};

class DelayedScaling;

// Memory that a layer uses only within one call: 1 byte per element of the input, 2 per element of grad_output, the
// scale_inv, and what a config or fusion needs besides. Layers that run on one stream can share a workspace, which must
// outlive them. Calls on a stream with an allocator do not use it.
struct Float8Workspace {
  Buffer memory{};
};

struct LinearOptions {
  std::string name = "linear";  // "layers.0.wq": names its slots in a DelayedScaling and its rows in a Monitor
  LinearFusion fusion{};
  // As LinearDtypes: f32 masters with bf16 inputs, f32 logits. Default: the input's; of the bias what the output GEMM
  // takes.
  std::optional<Dtype> weight_dtype{};
  std::optional<Dtype> bias_dtype{};
  std::optional<Dtype> output_dtype{};
  DelayedScaling* delayed = nullptr;     // the whole model's; required if the config has delayed scales
  Float8Workspace* workspace = nullptr;  // default: the layer's own
  LayerObserver* observer = nullptr;     // Monitor, NvtxRanges, TraceRanges ...; outlives the layer
  // A second stream of the same backend, for work off the critical path: the weight's cast runs there alongside the
  // input's, and grad_weight's GEMM alongside grad_input's. Each call, even one that throws, leaves its own stream
  // waiting for that work, so nothing changes for the caller, and a captured graph contains both streams' work. It pays
  // for small layers (docs/performance.md). Layers with more than kLargestBeside multiplications, observed layers,
  // steps whose memory is checked (ContextOptions::check_memory), captures with more tokens than any step before, and
  // backwards whose two GEMMs are one launch (Backend::gemm_pair) do not use it. The side stream has its own memory,
  // which graphs go on using: layers that share a side stream must share their main stream too, and their graph replays
  // and all their other work must run in one order. The stream must outlive the layers.
  Stream* side = nullptr;
  // With scale_inv of groups or blocks (the recipe blockwise), a forward of more products than this, tokens *
  // in_features * out_features, has its epilogue in a separate pass, so that cuBLASLt may multiply. The output is
  // then rounded twice, and the pass computes as LinearFusion::fast_math says. 0: every forward has; infinity: none.
  double fused_products = kFusedProducts;

  static constexpr double kLargestBeside = 1e10;  // M * N * K
  static constexpr bool is_small(std::int64_t tokens, std::int64_t in_features, std::int64_t out_features) {
    return products_of({.m = tokens, .n = out_features, .k = in_features}) <= kLargestBeside;
  }
};

inline MemoryRegion region_of(const Buffer& buffer) { return {buffer.data(), buffer.bytes()}; }

class LinearOwner;

// A linear layer that something owns, with the plan of the last call's dtype.
struct OwnedLinear {
  LinearOwner* owner;
  const LinearPlan* plan;
};

class INGOT_API LinearOwner {
 public:
  // Throws Error{invalid_argument} for a side stream of another backend.
  LinearOwner(Backend& backend, LinearOptions options);
  // Adds the slots of delayed scales, of all layers or of none. Throws Error{invalid_argument} without a DelayedScaling
  // and where that does.
  static void add_slots(std::initializer_list<OwnedLinear> layers);

  Backend& backend() const { return *backend_; }
  const LinearOptions& options() const { return options_; }
  const Float8View& codes() const { return codes_; }
  Buffer& workspace() { return (options_.workspace != nullptr ? *options_.workspace : own_workspace_).memory; }
  bool observes_values() const { return options_.observer != nullptr && options_.observer->wants_values(); }
  LinearRun run_on(Stream& stream, Stream* side = nullptr) const {
    return {.stream = stream, .side = side, .observer = options_.observer};
  }

  void weight_changed() { weight_is_current_ = false; }
  // Codes of a weight with its own dtype are the same for every input's.
  void plan_changes(const LinearPlan& from, const LinearPlan& to) {
    if (from.weight.spec != to.weight.spec) weight_is_current_ = false;
  }
  // Frees the weight's codes, but not those that a WeightCasts writes.
  void release();

  // Joins the side stream when a call ends, even by an exception.
  class Call {
   public:
    Call(LinearOwner& owner, Stream& stream) : owner_(&owner), stream_(&stream) {}
    ~Call();
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

   private:
    LinearOwner* owner_;
    Stream* stream_;
  };
  void join(Stream& stream);
  // The stream of the call waits for the side stream already.
  void joined() { side_is_busy_ = false; }

  // Casts the weight on the side stream, perhaps before the input is ready.
  void start_weight(const LinearPlan& plan, const Tensor& weight, std::int64_t tokens, Stream& stream);
  // Gives a forward or recompute scales, and codes or memory for them. Layer: LinearForwardTensors and its like.
  template <class Layer>
  void before_forward(const LinearPlan& plan, LinearPass pass, std::int64_t tokens, Layer& to, Stream& stream) {
    give_input_scale(plan, pass, tokens, to.scales.input, stream);
    if (side_is_busy_) {
      to.codes_from = options_.side;
    } else if (!weight_is_cast(plan, to.weight)) {
      const WeightCastTensors cast = prepare_weight(plan, to.weight, stream);
      to.weight_into = cast.into;
      to.scales.weight = cast.scale;
    }
    to.codes = codes_;
  }
  // Once that forward is enqueued.
  template <class Layer>
  void after_forward(const Layer& given, const Stream& stream) {
    side_is_busy_ = false;
    if (given.weight_into) weight_is_enqueued(stream);
    note_started(stream);
  }
  // Gives a backward its scales, and returns LinearRun::side.
  Stream* before_backward(const LinearPlan& plan, const LinearGradients& wants, const LinearGradientDtypes& dtypes,
                          std::int64_t tokens, LinearScales& scales, Stream& stream);
  void after_backward(const Stream& stream) { note_started(stream); }

  // For a WeightCasts, which casts the weight among others: memory and a scale for it, and that its codes are there.
  WeightCastTensors list_weight(const LinearPlan& plan, const Tensor& weight, Stream& stream);
  void weight_was_cast(const Tensor& weight, const Stream& stream);

 private:
  // The slots of the layer's three tensors in the DelayedScaling; -1 where scaling is not delayed.
  struct Slots {
    int input = -1;
    int weight = -1;
    int grad_output = -1;
  };

  void make_constants(const LinearPlan& plan, Stream& stream);
  // The scale of a tensor that is about to be cast; a delayed one starts with its first data.
  void give(LinearScale& to, const LinearCast& cast, const LinearScale& fixed, int slot, bool has_data, Stream& stream);
  void give_input_scale(const LinearPlan& plan, LinearPass pass, std::int64_t tokens, LinearScale& to, Stream& stream);
  void note_started(const Stream& stream);
  bool needs_start(int slot) const;
  bool weight_is_cast(const LinearPlan& plan, const Tensor& weight) const;
  // Memory and a scale for the weight's cast. It is current once that is enqueued.
  WeightCastTensors prepare_weight(const LinearPlan& plan, const Tensor& weight, Stream& stream);
  // During a capture the cast is only recorded, so the codes are not there yet.
  void weight_is_enqueued(const Stream& stream) { weight_is_current_ = !backend_->device_api().capturing(stream); }
  // May a step of this many tokens use the side stream, as far as the layer is concerned?
  bool may_use_side(const LinearPlan& plan, std::int64_t tokens) const;
  // Does it? `most`: one of those below.
  bool uses_side(const LinearPlan& plan, std::int64_t tokens, std::int64_t& most, Stream& stream);

  Backend* backend_;
  LinearOptions options_;
  Slots slots_{};
  std::vector<int> starting_{};  // slots that the call that is being enqueued starts
  Float8Workspace own_workspace_;
  Buffer constant_memory_;
  LinearScales constants_;

  OwnerMemory weight_memory_;
  Float8View codes_;
  Tensor cast_weight_{};  // the tensor that the codes were cast from
  bool weight_is_current_ = false;
  bool weight_is_listed_ = false;  // a WeightCasts writes the weight's codes, so their memory stays

  bool side_is_busy_ = false;  // does the side stream have work that no stream waits for yet?
  // The most tokens that it has run so far, for which its memory suffices.
  std::int64_t most_on_side_forward_ = 0;
  std::int64_t most_on_side_backward_ = 0;
};

}  // namespace ingot
