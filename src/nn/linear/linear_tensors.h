// What the functions of a linear layer (linear_functions.h) take: tensors, scales, streams, and what a forward leaves
// for its backward.
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
#include "ingot/runtime/cast/cast_tensors.h"
#include "ingot/runtime/context/backend.h"
#include "ingot/runtime/core/stream.h"

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

// The scale of a cast whose Scaling is delayed or fixed. Of experts (grouped_linear.h) one for each: f32[experts].
struct LinearScale {
  Tensor scale{};  // f32[1], read
  Tensor amax{};   // f32[1], raised to the largest |value|; not for fixed scales
  // For a delayed scale that no step has made yet: it is made just before the cast, from the largest |value| that is
  // cast, as in dynamic scaling. One slot, or one for each expert, with the scale above; starting_scale() makes it.
  std::optional<AmaxHistoryTensors> start{};
  AmaxHistorySpec start_spec{};
};

// Those that the config lacks stay default tensors.
struct LinearScales {
  LinearScale input{};
  LinearScale weight{};
  LinearScale grad_output{};
  Tensor one{};  // f32[1]: 1, for folded scale_inv
};

struct WeightCastTensors {
  Tensor weight;  // [N, K]
  MemoryRegion into{};
  LinearScale scale{};
};

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
  // Codes and scale_inv of `input`, if the plan was made with given_input. Where nothing reads the values, `input` may
  // have only a shape.
  Float8View given_input{};
  // What this plan's cast of the input would write is there already (linear_input_codes()), as after a gather over
  // ranks. `input` then has only a shape. For a plan without a prologue that does not read the input again.
  bool input_is_cast = false;
};

// As LinearBackward, and what forward had, where it is read again.
struct LinearBackwardTensors {
  const LinearSaved* saved = nullptr;
  // [M, N], or [1, 1]: one element that stands for all, as of strides (0, 0), which is the gradient of a sum.
  Tensor grad_output;
  // f32[1], or missing: the largest |grad_output|, where it is known already. Then the cast of grad_output does not
  // look for it, and all results have the same bits. Only if plan.takes_grad_output_amax().
  Tensor grad_output_amax{};
  Tensor grad_input{};
  // [M, K] of grad_input's dtype, or missing: the gradient that other layers gave the same input. It is added within
  // the GEMM, in f32 before the one rounding. It may be grad_input itself, with the same row stride.
  Tensor grad_input_of_others{};
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
  Float8View given_input{};  // as forward's: its transposed codes and their scale_inv
  // Likewise what the cast of grad_output would write (linear_grad_output_codes()). For gradients in FP8 of a plan
  // without an epilogue and without folded scale_inv, and not for grad_bias.
  bool grad_output_is_cast = false;
};

// What a backward writes: the dtypes of the gradients that are wanted, and whether it adds to others of the input and
// to grad_weight.
struct LinearGradientDtypes {
  std::optional<Dtype> input{};
  std::optional<Dtype> weight{};
  bool accumulate = false;
  bool adds_to_input = false;
};

// Where cast_weight() writes: its codes as views of `region`.
inline Float8View weight_codes(const LinearPlan& plan, const MemoryRegion& region, Device device) {
  const LinearWeightMemory memory = plan.weight_memory();
  return {.codes = memory.codes.in(region, device),
          .transposed = memory.transposed.in(region, device),
          .scale_inv = memory.scale_inv.in(region, device),
          .transposed_scale_inv = memory.transposed_scale_inv.in(region, device)};
}

// Is grad_output given as one element? Then a backward writes all of it into its scratch first.
inline bool expands_grad_output(const LinearPlan& plan, const LinearBackwardTensors& tensors) {
  const Tensor& given = tensors.grad_output;
  const bool is_one = given.rows == 1 && given.cols == 1;
  return is_one && (tensors.saved->tokens != 1 || plan.shape.out_features != 1);
}

}  // namespace ingot
