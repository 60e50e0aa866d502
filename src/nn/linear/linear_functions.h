// A linear layer as functions of tensors: they keep nothing between calls. All memory is the caller's, its sizes and
// places are the plan's (linear_plan.h), so any number of forwards may come before a backward, on any threads and
// streams. Scratch may be left out on a Stream with a StreamAllocator: then it is the allocator's for the time of the
// call. Stream::kept() gives saved memory from there.
//
//   const LinearPlan plan = linear_plan({.name = "wq", .config = rowwise(), .shape = {K, N}});
//   const Float8View codes = cast_weight(plan, backend, {.weight = w, .into = weight_region}, {stream});
//   LinearSaved saved{.memory = saved_region};
//   linear_forward(plan, backend, {.input = x, .output = y, .codes = codes, .saved = &saved, .scratch = s}, {stream});
//   linear_backward(plan, backend, {.saved = &saved, .grad_output = gy, .grad_input = gx, .grad_weight = gw,
//                                   .codes = codes, .scratch = s}, {stream});
//
// Errors: Error{invalid_argument} that names the layer and the tensor, before anything is enqueued; then those of the
// backend. A call whose stream another thread's call is using is one of them. The caller must guarantee what the host
// cannot check: saved memory and the tensors that backward reads again are unchanged, and concurrent calls share
// neither scratch nor saved memory. ContextOptions::check_memory detects some of that, for debugging.
//
// A weight that is frozen, gathered or kept in FP8 is given as codes and factors alone; see docs/stateless_layers.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "ingot/api.h"
#include "ingot/nn/linear/float8_tensor.h"
#include "ingot/nn/linear/linear_plan.h"
#include "ingot/nn/observe/observer.h"
#include "ingot/runtime/backend.h"
#include "ingot/runtime/cast/amax_history_tensors.h"
#include "ingot/runtime/stream.h"

namespace ingot {

struct LinearRun {
  Stream& stream;
  // linear_backward() multiplies grad_weight here alongside grad_input, if both are wanted, unless one launch computes
  // both (multiplies_together()). It orders this stream after the work so far, but does not wait for it: call
  // stream.wait_for(side) before grad_weight, the scratch or what is read for it is used again, also after an error.
  // Not for runs with an observer.
  Stream* side = nullptr;
  LayerObserver* observer = nullptr;

  // `side`, if both gradients are wanted; else null.
  Stream* side_for(const LinearGradients& wants) const { return wants.input && wants.weight ? side : nullptr; }
};

// The scale of a cast whose Scaling is delayed or fixed.
struct LinearScale {
  Tensor scale{};  // f32[1], read
  Tensor amax{};   // f32[1], raised to the largest |value|; not for fixed scales
  // Of a delayed scale that no step has made yet: just before the cast it is made of the largest |value| that is cast,
  // which is what dynamic scaling does. One slot, with the scale above; starting_scale() makes it.
  std::optional<AmaxHistoryTensors> start{};
  AmaxHistorySpec start_spec{};
};

// Those that the config lacks stay default tensors.
struct LinearScales {
  LinearScale input{};
  LinearScale weight{};
  LinearScale grad_output{};
  Tensor one{};  // f32[1]: 1, for folded factors
};

// The constants among a plan's scales: the fixed ones, and 1 where factors are folded. The device writes them, so that
// they may be made anywhere, once or within a captured step. `into` has at least kLinearConstantBytes.
inline constexpr std::size_t kLinearConstantBytes = 4 * kLinearAlignment;
INGOT_API LinearScales linear_constants(const LinearPlan& plan, Backend& backend, const MemoryRegion& into,
                                        Stream& stream);

// A delayed scale for `cast`, in separate memory, that starts with the data of its cast. The device writes it, as it
// does linear_constants(). `amax`: LinearScale::amax. `into` has at least kStartingScaleBytes.
inline constexpr std::size_t kStartingScaleBytes = 5 * sizeof(float);
INGOT_API LinearScale starting_scale(Backend& backend, const Cast& cast, const Tensor& amax, const MemoryRegion& into,
                                     Stream& stream);

struct WeightCastTensors {
  Tensor weight;  // [N, K]
  MemoryRegion into{};
  LinearScale scale{};
};

// Casts the weight for all GEMMs that read its codes, and returns them as views of `into`.
INGOT_API Float8View cast_weight(const LinearPlan& plan, Backend& backend, const WeightCastTensors& tensors,
                                 const LinearRun& run);
// Where cast_weight() writes, without a call.
INGOT_API Float8View weight_codes(const LinearPlan& plan, const MemoryRegion& region, Device device);

// The sum of something that backward reads again, by which ContextOptions::check_memory sees that it changed.
struct MemorySum {
  std::string_view name;
  std::uint64_t sum;
};

// What a forward leaves for its backward: memory of the caller, and a stamp by which backward recognises it.
struct LinearSaved {
  MemoryRegion memory{};
  // The stamp; forward and recompute write it.
  std::uint64_t plan = 0;
  std::int64_t tokens = 0;
  bool kept = false;
  std::vector<MemorySum> sums{};  // only where memory is checked
};

// As LinearForward (float8_linear.h), with M = input.rows.
struct LinearForwardTensors {
  Tensor input;
  Tensor weight{};  // only if plan.output_reads_weight(), or to be cast
  Tensor bias{};
  Tensor output;
  PointwiseTensors prologue_inputs{};
  PointwiseTensors epilogue_inputs{};
  Float8View codes{};  // the weight's, if the output GEMM is in FP8
  // Instead of codes: casts `weight` into this memory after the input, as cast_weight() does. weight_codes() has the
  // views for backward.
  std::optional<MemoryRegion> weight_into{};
  Stream* codes_from = nullptr;  // forward waits for this stream's work so far just before it reads the codes
  LinearScales scales{};
  LinearSaved* saved = nullptr;  // null: keeps nothing
  MemoryRegion scratch{};
  Float8View given_input{};  // codes and factors of `input`, if the plan was made with given_input
};

// As LinearBackward, and what forward had, where it is read again.
struct LinearBackwardTensors {
  const LinearSaved* saved = nullptr;
  // [M, N], or [1, 1]: one element that stands for all, as of strides (0, 0), which is the gradient of a sum.
  Tensor grad_output;
  Tensor grad_input{};
  Tensor grad_weight{};
  Tensor grad_bias{};
  bool accumulate = false;
  Tensor input{};   // only if plan.grad_weight_reads_input()
  Tensor weight{};  // only if plan.grad_input_reads_weight(), and for OtherCodes::again no codes are given
  Tensor output{};  // only if plan.gradient.of_output()
  PointwiseTensors prologue_inputs{};  // only with `input`
  PointwiseTensors epilogue_inputs{};
  Float8View codes{};
  LinearScales scales{};
  MemoryRegion scratch{};
  Float8View given_input{};  // as forward's: its transposed codes and their factors
};

// The input's codes as a forward of this plan writes them, for layers whose plans were made with given_input. Those for
// the output GEMM lie in its scratch, which must not be used again before the other forwards are done; those for
// grad_weight in its saved memory (none: a forward that keeps nothing), which must last as long as the other backwards
// need it.
INGOT_API Float8View linear_input_codes(const LinearPlan& plan, std::int64_t tokens, const MemoryRegion& saved,
                                        const MemoryRegion& scratch, Device device);

// Scratch, here and below, unless the stream's allocator gives it: plan.forward_scratch(tokens, saved ? training :
// inference).
INGOT_API void linear_forward(const LinearPlan& plan, Backend& backend, const LinearForwardTensors& tensors,
                              const LinearRun& run);
// Makes what backward needs of a forward that kept nothing. Where plan.recomputes_output() this is linear_forward();
// otherwise it takes input, prologue_inputs, scales.input, saved and scratch (of LinearPass::recompute), and
// weight_into with weight.
INGOT_API void linear_recompute(const LinearPlan& plan, Backend& backend, const LinearForwardTensors& tensors,
                                const LinearRun& run);
// What a backward writes: the dtypes of the gradients that are wanted, and whether it adds to grad_weight.
struct LinearGradientDtypes {
  std::optional<Dtype> input{};
  std::optional<Dtype> weight{};
  bool accumulate = false;
};
// Does one launch compute the GEMMs of both gradients (Backend::gemm_pair)? No side stream makes that faster.
INGOT_API bool multiplies_together(const LinearPlan& plan, Backend& backend, std::int64_t tokens,
                                   const LinearGradientDtypes& gradients);
INGOT_API bool multiplies_together(const LinearPlan& plan, Backend& backend, const LinearBackwardTensors& tensors);

// The gradients that are given. Changes nothing that it reads, so it may be called again with the same saved memory.
// Scratch: plan.backward_scratch(tokens, those gradients); for one element of grad_output, with `expands`.
INGOT_API void linear_backward(const LinearPlan& plan, Backend& backend, const LinearBackwardTensors& tensors,
                               const LinearRun& run);

// The same without checks, for modules that have checked all their layers before they run any. A pass is a forward or a
// recompute.
INGOT_API void enqueue_linear_pass(const LinearPlan& plan, Backend& backend, const LinearForwardTensors& tensors,
                                   LinearPass pass, const LinearRun& run);
INGOT_API void enqueue_linear_backward(const LinearPlan& plan, Backend& backend, const LinearBackwardTensors& tensors,
                                       const LinearRun& run);
INGOT_API Float8View enqueue_cast_weight(const LinearPlan& plan, Backend& backend, const WeightCastTensors& tensors,
                                         const LinearRun& run);

// Is grad_output given as one element? Then a backward writes all of it into its scratch first.
INGOT_API bool expands_grad_output(const LinearPlan& plan, const LinearBackwardTensors& tensors);

}  // namespace ingot
