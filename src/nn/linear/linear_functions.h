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
// A weight that is frozen, gathered or kept in FP8 is given as codes and scale_inv alone; see docs/stateless_layers.md.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ingot/api.h"
#include "ingot/nn/linear/linear_tensors.h"

namespace ingot {

// The constants among a plan's scales: the fixed ones, and 1 where scale_inv are folded. The device writes them, so
// that they may be made anywhere, once or within a captured step. `into` has at least kLinearConstantBytes.
inline constexpr std::size_t kLinearConstantBytes = 4 * kLinearAlignment;
INGOT_API LinearScales linear_constants(const LinearPlan& plan, Backend& backend, const MemoryRegion& into,
                                        Stream& stream);

// A delayed scale for `cast`, in separate memory, that starts with the data of its cast; of experts one for each
// (grouped_linear.h). The device writes it, as it does linear_constants(). `amax`: LinearScale::amax. `into` has at
// least kStartingScaleBytes for each.
inline constexpr std::size_t kStartingScaleBytes = 5 * sizeof(float);
INGOT_API LinearScale starting_scale(Backend& backend, const Cast& cast, const Tensor& amax, const MemoryRegion& into,
                                     Stream& stream);

// Casts the weight for all GEMMs that read its codes, and returns them as views of `into`.
INGOT_API Float8View cast_weight(const LinearPlan& plan, Backend& backend, const WeightCastTensors& tensors,
                                 const LinearRun& run);

// The input's codes as a forward of this plan writes them, for layers whose plans were made with given_input. Those for
// the output GEMM are in its scratch, which must not be used again before the other forwards are done; those for
// grad_weight in its saved memory (none: a forward that keeps nothing), which must last as long as the other backwards
// need it.
INGOT_API Float8View linear_input_codes(const LinearPlan& plan, std::int64_t tokens, const MemoryRegion& saved,
                                        const MemoryRegion& scratch, Device device);

// Where a backward for these gradients has the codes of grad_output in its scratch, for a grad_output that is cast
// elsewhere (LinearBackwardTensors::grad_output_is_cast). transposed_scale_inv is scale_inv where both share it.
INGOT_API Float8View linear_grad_output_codes(const LinearPlan& plan, std::int64_t tokens, const LinearGradients& wants,
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

}  // namespace ingot
