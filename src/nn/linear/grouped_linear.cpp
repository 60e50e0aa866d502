#include "ingot/nn/linear/grouped_linear.h"

#include "ingot/nn/linear/float8_tensor.h"
#include "ingot/nn/linear/grouped_linear_checks.h"
#include "ingot/nn/linear/layer_call.h"
#include "ingot/nn/linear/linear_checks.h"
#include "ingot/nn/linear/linear_step.h"
#include "ingot/nn/linear/memory_places.h"
#include "ingot/nn/linear/memory_watch.h"
#include "ingot/nn/linear/tensor_checks.h"
#include "ingot/runtime/core/check_experts.h"

namespace ingot {

std::size_t grouped_linear_backward_scratch(const GroupedLinearPlan& plan, const GroupedLinearBackwardTensors& t) {
  return grouped_backward_scratch(plan, t);
}

// ---- steps ---------------------------------------------------------------------------------------------------------

namespace {

Float8View views_of(const LinearWeightMemory& memory, const MemoryRegion& region, Device device) {
  const Tensor scale_inv = memory.scale_inv.in(region, device);
  const bool apart = memory.transposed_scale_inv.used;
  return {.codes = memory.codes.in(region, device),
          .transposed = memory.transposed.in(region, device),
          .scale_inv = scale_inv,
          .transposed_scale_inv = apart ? memory.transposed_scale_inv.in(region, device) : scale_inv};
}

// A stack of matrices as a matrix with one in each row.
Tensor one_in_each_row(const Tensor& stack, std::int64_t matrices) {
  return matrix(stack.data, stack.dtype, matrices, stack.rows / matrices * stack.cols, stack.device);
}

// A scale of each row, or group in it, is one of a row of the stack, and a scale of each expert one of a row that has
// all its values. Blocks are those of the stack where each expert has a multiple of their rows. Transposed codes are
// those of each expert, not of the stack, and come without values.
void report_weights(const GroupedLinearPlan& plan, const CastSpec& spec, const CastTensors& tensors,
                    const LinearRun& run) {
  CastEvent event{};
  event.layer = plan.rows.name;
  event.tensor = "weight";
  if (spec.codes) {
    const bool by_expert = spec.scale == kTensorwise;
    const auto dense = [](const Tensor& stack) { return stack.row_stride == stack.cols; };
    const bool has_values = by_expert ? dense(tensors.input) && dense(tensors.codes)
                                      : spec.scale.rows == 0 || plan.rows.shape.out_features % spec.scale.rows == 0;
    const auto seen = [&](const Tensor& stack) { return by_expert ? one_in_each_row(stack, plan.experts) : stack; };
    event.gemms = "output";
    event.values = has_values ? seen(tensors.input) : Tensor{};
    event.codes = seen(tensors.codes);
    event.scale_inv = tensors.scale_inv;
    event.scale = by_expert ? kRowwise : spec.scale;
    run.observer->cast(event, run.stream);
  }
  if (!spec.transposed) return;
  event.gemms = "grad_input";
  event.values = {};
  event.codes = tensors.transposed;
  event.scale_inv = spec.transposed_scale ? tensors.transposed_scale_inv : tensors.scale_inv;
  event.scale = spec.transposed_scale.value_or(spec.scale);
  event.transposed = true;
  run.observer->cast(event, run.stream);
}

// Each expert's weight with its own scales. `tensors`: the weight, and maxima that are known or to be found.
Float8View cast_weights(const GroupedLinearPlan& plan, Backend& backend, const LinearCast& order, CastTensors tensors,
                        const LinearScale& scale, const LinearWeightMemory& memory, const MemoryRegion& into,
                        const LinearRun& run) {
  CastSpec spec = order.spec;
  const Float8View all = views_of(memory, into, backend.device());
  tensors.matrices = plan.experts;
  tensors.codes = all.codes;
  tensors.transposed = all.transposed;
  tensors.scale_inv = all.scale_inv;
  if (spec.transposed_scale) tensors.transposed_scale_inv = all.transposed_scale_inv;
  if (is_given(tensors.found_amax)) spec.found_amax = plan.weight_amax_granularity();
  give_scale(LinearStep(plan.rows, backend, run), tensors, order, scale, {}, run.stream);
  backend.cast(spec, tensors, run.stream);
  if (run.observer != nullptr) report_weights(plan, spec, tensors, run);
  return all;
}

// Codes by rows, each expert's transposed to where a cast would write them.
Float8View transposed_weights(const GroupedLinearPlan& plan, Backend& backend, const Float8View& given,
                              const MemoryRegion& into, const LinearRun& run) {
  Float8View made = views_of(plan.weight_again_memory(), into, backend.device());
  backend.relayout({.transposed = true}, {.input = given.codes, .output = made.transposed, .matrices = plan.experts},
                   run.stream);
  made.transposed_scale_inv = given.scale_inv;
  return made;
}

// Of codes that were placed for more tokens, those of the call's. Slots have room for just these.
Float8View of_tokens(Float8View placed, const CastSpec& cast, std::int64_t tokens) {
  if (in_slots(cast) || cast.scale == kRowGroups) {
    if (is_given(placed.codes)) placed.codes.rows = tokens;
    return placed;
  }
  placed.codes.rows = is_given(placed.codes) ? tokens : 0;
  placed.transposed.cols = is_given(placed.transposed) ? tokens : 0;
  if (cast.scale == kRowwise && is_given(placed.scale_inv)) placed.scale_inv.cols = tokens;
  return placed;
}

// The codes of the input. transposed_scale_inv: as a cast writes them.
Float8View input_codes(const GroupedLinearPlan& plan, std::int64_t tokens, LinearPass pass, const MemoryRegion& saved,
                       const MemoryRegion& scratch, Device device) {
  const CastSpec& spec = plan.rows.input_of(pass).spec;
  const std::int64_t placed = GroupedLinearPlan::placed_tokens(tokens);
  if (!plan.in_slots() && !plan.is_delayed()) {
    return of_tokens(linear_input_codes(plan.rows, placed, saved, scratch, device), spec, tokens);
  }
  const LinearForwardScratch places = plan.input_scratch(tokens, pass);
  const LinearSavedMemory kept = pass == LinearPass::inference ? LinearSavedMemory{} : plan.saved_memory(tokens);
  const Tensor of_codes = places.input_scale_inv.in(scratch, device);
  const Tensor of_transposed = kept.input_scale_inv.in(saved, device);
  if (plan.is_delayed()) {
    return of_tokens({.codes = places.input_codes.in(scratch, device),
                      .transposed = kept.input_transposed.in(saved, device),
                      .scale_inv = places.input_scale_inv.used ? of_codes : of_transposed,
                      .transposed_scale_inv = of_transposed},
                     spec, tokens);
  }
  return of_tokens({.codes = places.input_codes.in(scratch, device),
                    .transposed = kept.input_transposed.in(saved, device),
                    .scale_inv = scale_inv_by_group(of_codes, kRowGroups, tokens, plan.rows.shape.in_features),
                    .transposed_scale_inv = of_transposed},
                   spec, tokens);
}

// The codes of grad_output; likewise.
Float8View grad_output_codes(const GroupedLinearPlan& plan, std::int64_t tokens, const LinearGradients& wants,
                             const MemoryRegion& scratch, Device device) {
  const CastSpec& spec = plan.rows.grad_output_of(wants).cast.spec;
  const std::int64_t placed = GroupedLinearPlan::placed_tokens(tokens);
  if (!plan.in_slots() && !plan.is_delayed()) {
    return of_tokens(linear_grad_output_codes(plan.rows, placed, wants, scratch, device), spec, tokens);
  }
  const LinearBackwardScratch places = plan.grad_output_scratch(tokens, wants);
  if (plan.is_delayed()) {
    const Tensor of_both = places.scale_inv.in(scratch, device);
    return of_tokens({.codes = places.codes.in(scratch, device),
                      .transposed = places.transposed.in(scratch, device),
                      .scale_inv = of_both,
                      .transposed_scale_inv = of_both},
                     spec, tokens);
  }
  const Tensor of_transposed = places.transposed_scale_inv.in(scratch, device);
  const Tensor scale_inv = places.scale_inv.in(scratch, device);
  return {.codes = places.codes.in(scratch, device),
          .transposed = places.transposed.in(scratch, device),
          .scale_inv = spec.codes ? scale_inv_by_group(scale_inv, kRowGroups, tokens, plan.rows.shape.out_features)
                                  : of_transposed,
          .transposed_scale_inv = of_transposed};
}

// The scale_inv of transposed codes of `rows` rows in slots as a GEMM reads them; others as they are.
Tensor scale_inv_along_k(const GroupedLinearPlan& plan, const Tensor& scale_inv, std::int64_t tokens,
                         std::int64_t cols) {
  if (!plan.in_slots()) return scale_inv;
  return transposed_scale_inv(scale_inv, kColumnGroups, plan.placed_columns(tokens), cols);
}

// Those of the weights' transposed codes.
Tensor weight_scale_inv_along_k(const GroupedLinearPlan& plan, const Tensor& scale_inv) {
  if (!plan.in_slots()) return scale_inv;
  const ScaleGranularity scale = plan.weight_scale_of_grad_input();
  const auto [in, out, bias] = plan.rows.shape;
  const std::int64_t groups = scale_count({scale.rows, 0}, out, in);  // of each expert's rows
  return transposed_scale_inv(scale_inv, scale, plan.experts * groups * scale.rows, in);
}

}  // namespace

void enqueue_grouped_forward(const GroupedLinearPlan& plan, Backend& backend, const GroupedLinearForwardTensors& t,
                             const LinearRun& run) {
  const LinearStep step(plan.rows, backend, run);
  const ObservedRange range(run.observer, plan.rows.name, "forward");
  const LinearPass pass = t.saved != nullptr ? LinearPass::training : LinearPass::inference;
  if (t.saved != nullptr) t.saved->kept = false;
  const MemoryRegion saved = t.saved != nullptr ? t.saved->memory : MemoryRegion{};
  const std::int64_t tokens = rows_of(t.input, t.row_index);
  LinearCast order = plan.rows.input_of(pass);
  CastSpec& spec = order.spec;
  spec.gathered = t.row_index.has_value();
  const Float8View input = input_codes(plan, tokens, pass, saved, t.scratch, backend.device());
  CastTensors tensors{.input = t.input,
                      .row_index = t.row_index.value_or(RowIndex{}),
                      .codes = input.codes,
                      .transposed = input.transposed,
                      .scale_inv = input.scale_inv,
                      .inputs = t.prologue_inputs};
  if (spec.transposed_scale) tensors.transposed_scale_inv = input.transposed_scale_inv;
  if (spec.experts) tensors.ends = t.ends;
  Tensor observed = plan.input_scratch(tokens, pass, step.observes_values).observed.in(t.scratch, backend.device());
  if (is_given(observed)) observed.rows = tokens;
  give_scale(step, tensors, order, t.scales.input, {}, run.stream);
  cast(step, {"input", "output", "grad_weight"}, spec, tensors, observed, run.stream);
  backend.grouped_gemm(
      plan.output_gemm,
      {.a = input.codes,
       .b = t.codes.codes,
       .ends = t.ends,
       .scale_inv_a = input.scale_inv,
       .scale_inv_b = t.codes.scale_inv,
       .bias = plan.bias ? vector(t.bias.data, t.bias.dtype, t.bias.rows * t.bias.cols, t.bias.device) : Tensor{},
       .out = t.output},
      run.stream);
  stamp(t.saved, plan.identity, tokens);
}

void sum_grouped_grad_bias(Backend& backend, const GroupedGradOutput& grad_output, const Tensor& sum, Stream& stream) {
  backend.column_sum(
      {.in = grad_output.values.dtype, .out = sum.dtype, .experts = true},
      {.input = grad_output.values, .sum = sum, .ends = grad_output.ends, .row_index = grad_output.index}, stream);
}

bool takes_known_maxima(const GroupedLinearPlan& plan, const LinearGradients& wants) {
  const auto& [any, how, spec] = plan.rows.grad_output_of(wants).cast;
  return any && how == Scaling::dynamic && spec.codes && spec.transposed && spec.scale == kRowwise &&
         spec.transposed_scale == kColumnwise && !spec.pointwise;
}

void cast_grouped_grad_output(const GroupedLinearPlan& plan, Backend& backend, const GroupedGradOutput& grad_output,
                              const LinearRun& run) {
  const LinearStep step(plan.rows, backend, run);
  LinearCast order = plan.rows.grad_output_of(grad_output.wants).cast;
  CastSpec& spec = order.spec;
  spec.gathered = grad_output.index.has_value();
  CastTensors tensors{.input = grad_output.values,
                      .row_index = grad_output.index.value_or(RowIndex{}),
                      .codes = grad_output.codes.codes,
                      .transposed = grad_output.codes.transposed,
                      .scale_inv = grad_output.codes.scale_inv};
  if (spec.transposed_scale) tensors.transposed_scale_inv = grad_output.codes.transposed_scale_inv;
  tensors.known_amax = grad_output.row_amax;
  tensors.known_transposed_amax = grad_output.column_amax;
  if (spec.experts) tensors.ends = grad_output.ends;
  give_scale(step, tensors, order, grad_output.scale, {}, run.stream);
  cast(step, {"grad_output", "grad_input", "grad_weight"}, spec, tensors, {}, run.stream);
}

void multiply_grouped_grad_input(const GroupedLinearPlan& plan, Backend& backend, const GroupedLinearBackwardTensors& t,
                                 const Float8View& grad_output, const MemoryRegion& weight_memory,
                                 const LinearRun& run) {
  Float8View weight = t.codes;
  if (plan.weight_again.any && !is_given(t.weight)) {
    weight = transposed_weights(plan, backend, t.codes, weight_memory, run);
  } else if (plan.weight_again.any) {
    const CastTensors maxima_of{.input = t.weight, .scale_inv = {}, .known_amax = t.weight_amax};
    weight = cast_weights(plan, backend, plan.weight_again, maxima_of, t.scales.weight, plan.weight_again_memory(),
                          weight_memory, run);
  }
  GroupedGemmSpec spec = plan.grad_input_gemm;
  spec.gemm.out = t.grad_input.dtype;
  backend.grouped_gemm(spec,
                       {.a = grad_output.codes,
                        .b = weight.transposed,
                        .ends = t.ends,
                        .scale_inv_a = grad_output.scale_inv,
                        .scale_inv_b = weight_scale_inv_along_k(plan, weight.transposed_scale_inv),
                        .out = t.grad_input},
                       run.stream);
}

void multiply_grouped_grad_weight(const GroupedLinearPlan& plan, Backend& backend,
                                  const GroupedLinearBackwardTensors& t, const Float8View& grad_output,
                                  const LinearRun& run) {
  const std::int64_t tokens = t.saved->tokens;
  const LinearSavedMemory saved = plan.saved_memory(tokens);
  Tensor input = saved.input_transposed.in(t.saved->memory, backend.device());
  if (!plan.in_slots()) input.cols = tokens;
  const auto [in, out, bias] = plan.rows.shape;
  GroupedGemmSpec spec = plan.grad_weight_gemm;
  spec.gemm.out = t.grad_weight.dtype;
  if (t.accumulate) spec.gemm.epilogue.c = t.grad_weight.dtype;
  backend.grouped_gemm(
      spec,
      {.a = grad_output.transposed,
       .b = input,
       .ends = t.ends,
       .scale_inv_a = scale_inv_along_k(plan, grad_output.transposed_scale_inv, tokens, out),
       .scale_inv_b = scale_inv_along_k(plan, saved.input_scale_inv.in(t.saved->memory, backend.device()), tokens, in),
       .out = t.grad_weight,
       .c = t.accumulate ? t.grad_weight : Tensor{}},
      run.stream);
}

namespace {

void enqueue_backward(const GroupedLinearPlan& plan, Backend& backend, const GroupedLinearBackwardTensors& t,
                      const LinearGradients& wants, const LinearRun& run) {
  const ObservedRange range(run.observer, plan.rows.name, "backward");
  const std::int64_t tokens = t.saved->tokens;
  const GroupedGradOutput gradient{.values = t.grad_output,
                                   .index = t.grad_output_index,
                                   .wants = wants,
                                   .ends = t.ends,
                                   .codes = grad_output_codes(plan, tokens, wants, t.scratch, backend.device()),
                                   .scale = t.scales.grad_output};
  if (is_given(t.grad_bias)) sum_grouped_grad_bias(backend, gradient, t.grad_bias, run.stream);
  if (!wants.input && !wants.weight) return;
  const Float8View& grad_output = gradient.codes;
  cast_grouped_grad_output(plan, backend, gradient, run);
  if (wants.input) {
    const MemoryRegion lent = lent_by_grad_weight(plan, t);
    const std::size_t begin = plan.grad_output_scratch(tokens, wants).bytes;
    const MemoryRegion scratch = part_of(t.scratch, begin, plan.weight_again_memory().bytes);
    multiply_grouped_grad_input(plan, backend, t, grad_output, lent.data != nullptr ? lent : scratch, run);
  }
  if (wants.weight) multiply_grouped_grad_weight(plan, backend, t, grad_output, run);
}

// What a backward reads again of a forward's: not the weights.
void watch(Watch& watch, const GroupedLinearPlan& plan, const LinearSaved& saved, const ExpertEnds& ends) {
  watch.saved(plan.saved_memory(saved.tokens).bytes);
  watch("ends", bytes_of(ends));
}

}  // namespace

Float8View expert_weight_codes(const GroupedLinearPlan& plan, const MemoryRegion& region, Device device) {
  return views_of(plan.weight_memory(), region, device);
}

Float8View cast_expert_weights(const GroupedLinearPlan& plan, Backend& backend, const ExpertWeightTensors& tensors,
                               const LinearRun& run) {
  const LayerCall call(plan.rows.subject, run);
  check_expert_weights(plan, backend, tensors, run);
  const CastTensors weight{.input = tensors.weight, .scale_inv = {}, .found_amax = tensors.amax};
  return cast_weights(plan, backend, plan.weight, weight, tensors.scale, plan.weight_memory(), tensors.into, run);
}

void grouped_linear_forward(const GroupedLinearPlan& plan, Backend& backend, const GroupedLinearForwardTensors& tensors,
                            const LinearRun& run) {
  const LayerCall call(plan.rows.subject, run);
  check_grouped_forward(plan, backend, tensors, run);
  const LinearPass pass = tensors.saved != nullptr ? LinearPass::training : LinearPass::inference;
  const auto bytes = [&] {
    return plan.forward_scratch(rows_of(tensors.input, tensors.row_index), pass, observes_values(run));
  };
  const auto enqueue = [&] {
    call.with_scratch(tensors, nullptr, bytes, [&](const GroupedLinearForwardTensors& all) {
      enqueue_grouped_forward(plan, backend, all, run);
    });
  };
  watched_forward_of_experts(plan.rows.subject, tensors.saved, backend.device_api(), run.stream, enqueue,
                             [&](Watch& note) { watch(note, plan, *tensors.saved, tensors.ends); });
}

void grouped_linear_backward(const GroupedLinearPlan& plan, Backend& backend,
                             const GroupedLinearBackwardTensors& tensors, const LinearRun& run) {
  const LayerCall call(plan.rows.subject, run);
  const LinearGradients wants = wanted_of_grouped(tensors);
  check_grouped_backward(plan, backend, tensors, run);
  if (!wants.input && !wants.weight && !is_given(tensors.grad_bias)) return;
  watch_backward_of_experts(plan.rows.subject, *tensors.saved, backend.device_api(), run.stream,
                            [&](Watch& compare) { watch(compare, plan, *tensors.saved, tensors.ends); });
  const auto bytes = [&] { return grouped_linear_backward_scratch(plan, tensors); };
  call.with_scratch(tensors, nullptr, bytes,
                    [&](const GroupedLinearBackwardTensors& all) { enqueue_backward(plan, backend, all, wants, run); });
}

}  // namespace ingot
