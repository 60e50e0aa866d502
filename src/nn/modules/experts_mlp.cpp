#include "ingot/nn/modules/experts_mlp.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <span>
#include <string>

#include "ingot/nn/linear/float8_tensor.h"
#include "ingot/nn/linear/layer_call.h"
#include "ingot/nn/linear/linear_functions.h"
#include "ingot/nn/linear/linear_step.h"
#include "ingot/nn/linear/memory_places.h"
#include "ingot/nn/linear/memory_watch.h"
#include "ingot/nn/linear/tensor_checks.h"
#include "ingot/nn/modules/experts_mlp_checks.h"
#include "ingot/runtime/cast/row_index.h"
#include "ingot/runtime/core/check_experts.h"

namespace ingot {
namespace {

// ---- steps ---------------------------------------------------------------------------------------------------------

// The first half of the hidden columns, which is the gate's, or all of them; and the second half, or none.
Tensor first_of(const ExpertsMlpPlan& plan, Tensor hidden) {
  hidden.cols = plan.shape.hidden;
  return hidden;
}
Tensor second_of(const ExpertsMlpPlan& plan, Tensor hidden) {
  if (!plan.gated) return {};
  hidden.cols = plan.shape.hidden;
  if (hidden.data != nullptr) {
    hidden.data = static_cast<std::byte*>(hidden.data) + hidden.cols * size_of(hidden.dtype);
  }
  return hidden;
}

// What an expression reads besides x, by the inputs' names.
PointwiseTensors inputs_of(std::span<const PointwiseInput* const> inputs, const Tensor& up, const Tensor& router,
                           const Tensor& grad) {
  PointwiseTensors tensors{};
  std::ranges::transform(inputs, tensors.begin(), [&](const PointwiseInput* input) {
    return input->name == "up" ? up : input->kind == PointwiseInput::Kind::row ? router : grad;
  });
  return tensors;
}

// A layer's own saved memory within that of the experts.
LinearSaved saved_of(const GroupedLinearPlan& layer, const MemoryRegion& all, std::size_t begin, std::size_t bytes,
                     std::int64_t rows) {
  return {.memory = part_of(all, begin, bytes), .plan = layer.identity, .tokens = rows, .kept = true};
}

// A GEMM leaves rows as they are that no expert has; the casts after it read them.
void clear_unless_all_have_experts(const ExpertsRouting& routing, const Tensor& rows, Backend& backend,
                                   const LinearRun& run) {
  if (routing.all_have_experts || rows.empty()) return;
  backend.device_api().fill_zero(rows.data, static_cast<std::size_t>(rows.rows * rows.row_stride * size_of(rows.dtype)),
                                 run.stream);
}

void enqueue_forward(const ExpertsMlpPlan& plan, Backend& backend, const ExpertsMlpForwardTensors& t,
                     const LinearRun& run) {
  const Device device = backend.device();
  const std::int64_t rows = t.routing.tokens.rows;
  const bool keeps = t.saved != nullptr;
  if (keeps) t.saved->kept = false;
  const ExpertsMlpForwardScratch scratch =
      plan.forward_scratch(rows, keeps ? LinearPass::training : LinearPass::inference, observes_values(run));
  const ExpertsMlpSavedMemory saved = plan.saved_memory(rows);
  const MemoryRegion memory = keeps ? t.saved->memory : MemoryRegion{};
  const Tensor hidden = keeps ? t.hidden : scratch.hidden.in(t.scratch, device);
  const MemoryRegion of_layer = part_of(t.scratch, scratch.layer_begin, scratch.layer_bytes);
  LinearSaved up_saved = saved_of(plan.up, memory, saved.up_begin, saved.up_bytes, rows);
  LinearSaved down_saved = saved_of(plan.down, memory, saved.down_begin, saved.down_bytes, rows);

  clear_unless_all_have_experts(t.routing, hidden, backend, run);
  enqueue_grouped_forward(plan.up, backend,
                          {.input = t.input,
                           .row_index = t.routing.tokens,
                           .ends = t.routing.ends,
                           .bias = t.up_bias,
                           .output = hidden,
                           .codes = t.up_codes,
                           .scales = t.up_scales,
                           .saved = keeps ? &up_saved : nullptr,
                           .scratch = of_layer},
                          run);
  const Tensor outputs = scratch.rows.in(t.scratch, device);
  std::array<const PointwiseInput*, kMaxPointwiseInputs> inputs{};
  const auto read = plan.down.rows.fusion.prologue.inputs();
  std::ranges::transform(read, inputs.begin(), [](const PointwiseInput& input) { return &input; });
  enqueue_grouped_forward(plan.down, backend,
                          {.input = first_of(plan, hidden),
                           .prologue_inputs = inputs_of(std::span(inputs).first(read.size()), second_of(plan, hidden),
                                                        t.routing.weights, {}),
                           .ends = t.routing.ends,
                           .output = outputs,
                           .codes = t.down_codes,
                           .scales = t.down_scales,
                           .saved = keeps ? &down_saved : nullptr,
                           .scratch = of_layer},
                          run);
  backend.combine({.in = outputs.dtype}, {.input = outputs, .index = t.routing.rows, .output = t.output}, run.stream);
  stamp(t.saved, plan.identity, rows);
}

// The codes of the gradient of a layer's output: those for grad_input in `memory`, the others in kept memory.
Float8View gradient_codes(const GroupedLinearPlan& layer, const ExpertsMlpCodes& made, const ExpertsMlpCodes& kept,
                          const MemoryRegion& memory, const MemoryRegion& kept_memory, std::int64_t rows,
                          Device device) {
  Tensor transposed = kept.codes.in(kept_memory, device);
  if (kept.codes.used && !layer.in_slots()) transposed.cols = rows;  // its rows have room for more
  const Tensor of_transposed = kept.scale_inv.in(kept_memory, device);
  const ScaleGranularity scale = layer.in_slots() ? kRowGroups : kRowwise;
  return {.codes = made.codes.in(memory, device),
          .transposed = transposed,
          .scale_inv = made.scale_inv.used ? scale_inv_by_group(made.scale_inv.in(memory, device), scale, rows,
                                                                layer.rows.shape.out_features)
                                           : of_transposed,
          .transposed_scale_inv = of_transposed};
}

// The gradients of the activation's inputs with their maxima, if the cast after it takes these, and of the router's
// weights.
void enqueue_activation_gradients(const ExpertsMlpPlan& plan, Backend& backend, const ExpertsMlpBackwardTensors& t,
                                  const Tensor& grad_activation, const GroupedGradOutput& grad_hidden,
                                  const LinearRun& run) {
  const ElementwiseSpec spec = plan.activation_gradients(t.wants);
  const ElementwiseInputs inputs(spec);
  ElementwiseTensors tensors{
      .input = first_of(plan, t.hidden),
      .inputs = inputs_of(inputs.all(), second_of(plan, t.hidden), t.routing.weights, grad_activation),
      .output = first_of(plan, grad_hidden.values),
      .second = second_of(plan, grad_hidden.values),
      .row_amax = grad_hidden.row_amax,
      .column_amax = grad_hidden.column_amax};
  if (t.wants.router) tensors.sums = t.grad_router;
  backend.elementwise(spec, tensors, run.stream);
}

void enqueue_grad_input(const GroupedLinearPlan& layer, Backend& backend, const ExpertsBackwardWeight& weight,
                        const ExpertEnds& ends, const Float8View& codes, const MemoryRegion& of_weight,
                        const Tensor& into, const LinearRun& run) {
  GroupedLinearBackwardTensors tensors{.ends = ends, .grad_output = {}};
  tensors.grad_input = into;
  tensors.weight = weight.weight;
  tensors.weight_amax = weight.weight_amax;
  tensors.codes = weight.codes;
  tensors.scales.weight = weight.scale;
  multiply_grouped_grad_input(layer, backend, tensors, codes, of_weight, run);
}

void enqueue_backward(const ExpertsMlpPlan& plan, Backend& backend, const ExpertsMlpBackwardTensors& t,
                      const LinearRun& run) {
  const Device device = backend.device();
  const std::int64_t rows = t.saved->tokens;
  const ExpertsMlpBackwardScratch scratch = plan.backward_scratch(rows, t.wants);
  const ExpertsMlpKeptMemory kept = plan.kept_memory(rows, t.wants);

  const ObservedRange range(run.observer, plan.down.rows.name, "backward");
  const MemoryRegion& of_down = scratch.down_is_in_kept_input ? t.kept_input : t.scratch;
  const Float8View of_output = gradient_codes(plan.down, scratch.down, kept.down, of_down, t.kept_down, rows, device);
  if (t.wants.reaches_hidden() || t.wants.down_weight) {
    cast_grouped_grad_output(plan.down, backend,
                             {.values = t.grad_output,
                              .index = t.routing.tokens,
                              .wants = t.wants.of_down(),
                              .ends = t.routing.ends,
                              .codes = of_output,
                              .scale = t.down_scales.grad_output},
                             run);
  }
  if (!t.wants.reaches_hidden()) return;
  const Tensor grad_activation =
      scratch.grad_activation.in(scratch.grad_activation_is_in_kept_up ? t.kept_up : t.scratch, device);
  GroupedGradOutput grad_hidden{.values = scratch.grad_hidden.in(t.scratch, device),
                                .wants = t.wants.of_up(),
                                .ends = t.routing.ends,
                                .row_amax = scratch.row_amax.in(t.scratch, device),
                                .column_amax = scratch.column_amax.in(t.scratch, device),
                                .scale = t.up_scales.grad_output};
  clear_unless_all_have_experts(t.routing, grad_activation, backend, run);
  enqueue_grad_input(plan.down, backend, t.down, t.routing.ends, of_output,
                     part_of(t.scratch, scratch.weight_begin, scratch.weight_bytes), grad_activation, run);
  enqueue_activation_gradients(plan, backend, t, grad_activation, grad_hidden, run);
  if (t.wants.up_bias) sum_grouped_grad_bias(backend, grad_hidden, t.grad_up_bias, run.stream);
  if (!t.wants.input && !t.wants.up_weight) return;
  const ObservedRange of_up(run.observer, plan.up.rows.name, "backward");
  grad_hidden.codes = gradient_codes(plan.up, kept.input, kept.up, t.kept_input, t.kept_up, rows, device);
  cast_grouped_grad_output(plan.up, backend, grad_hidden, run);
}

void enqueue_input_gradient(const ExpertsMlpPlan& plan, Backend& backend, const ExpertsMlpInputGradientTensors& t,
                            const LinearRun& run) {
  const Device device = backend.device();
  const std::int64_t rows = t.saved->tokens;
  const ExpertsMlpInputGradientScratch scratch = plan.input_gradient_scratch(rows);
  const ExpertsMlpKeptMemory kept = plan.kept_memory(rows, t.wants);
  const ObservedRange range(run.observer, plan.up.rows.name, "backward");
  const Tensor grad_rows = scratch.grad_rows.in(t.scratch, device);
  enqueue_grad_input(plan.up, backend, t.up, t.ends,
                     gradient_codes(plan.up, kept.input, kept.up, t.kept_input, t.kept_up, rows, device),
                     part_of(t.scratch, scratch.weight_begin, scratch.weight_bytes), grad_rows, run);
  backend.combine({.in = grad_rows.dtype}, {.input = grad_rows, .index = t.rows, .output = t.grad_input}, run.stream);
}

void enqueue_weight_gradients(const ExpertsMlpPlan& plan, Backend& backend, const ExpertsMlpWeightGradientTensors& t,
                              const LinearRun& run) {
  const std::int64_t rows = t.saved->tokens;
  const ExpertsMlpSavedMemory saved = plan.saved_memory(rows);
  const ExpertsMlpKeptMemory kept = plan.kept_memory(rows, t.wants);
  const auto grad_weight = [&](const GroupedLinearPlan& layer, const LinearSaved& of_layer, const Float8View& codes,
                               const Tensor& into, bool accumulate) {
    const ObservedRange range(run.observer, layer.rows.name, "backward");
    GroupedLinearBackwardTensors tensors{.saved = &of_layer, .ends = t.ends, .grad_output = {}};
    tensors.grad_weight = into;
    tensors.accumulate = accumulate;
    multiply_grouped_grad_weight(layer, backend, tensors, codes, run);
  };
  const MemoryRegion& memory = t.saved->memory;
  if (is_given(t.grad_down)) {
    grad_weight(plan.down, saved_of(plan.down, memory, saved.down_begin, saved.down_bytes, rows),
                gradient_codes(plan.down, {}, kept.down, {}, t.kept_down, rows, backend.device()), t.grad_down,
                t.accumulate_down);
  }
  if (is_given(t.grad_up)) {
    grad_weight(plan.up, saved_of(plan.up, memory, saved.up_begin, saved.up_bytes, rows),
                gradient_codes(plan.up, {}, kept.up, {}, t.kept_up, rows, backend.device()), t.grad_up,
                t.accumulate_up);
  }
}

// ---- ContextOptions::check_memory ----------------------------------------------------------------------------------

void watch_routing(Watch& watch, const ExpertsRouting& routing) {
  watch("routing.tokens", bytes_of(routing.tokens));
  watch("routing.weights", routing.weights);
  watch("routing.ends", bytes_of(routing.ends));
}
void watch_saved(Watch& watch, const ExpertsMlpPlan& plan, const LinearSaved& saved) {
  watch.saved(plan.saved_memory(saved.tokens).bytes);
}

}  // namespace

void experts_mlp_forward(const ExpertsMlpPlan& plan, Backend& backend, const ExpertsMlpForwardTensors& tensors,
                         const LinearRun& run) {
  const LayerCall call(plan.subject, run);
  check_experts_mlp_forward(plan, backend, tensors, run);
  const LinearPass pass = tensors.saved != nullptr ? LinearPass::training : LinearPass::inference;
  const auto bytes = [&] {
    return plan.forward_scratch(tensors.routing.tokens.rows, pass, observes_values(run)).bytes;
  };
  const auto enqueue = [&] {
    call.with_scratch(tensors, nullptr, bytes,
                      [&](const ExpertsMlpForwardTensors& all) { enqueue_forward(plan, backend, all, run); });
  };
  watched_forward_of_experts(plan.subject, tensors.saved, backend.device_api(), run.stream, enqueue, [&](Watch& note) {
    watch_saved(note, plan, *tensors.saved);
    watch_routing(note, tensors.routing);
    note("routing.rows", bytes_of(tensors.routing.rows));
    note("hidden", tensors.hidden);
  });
}

void experts_mlp_backward(const ExpertsMlpPlan& plan, Backend& backend, const ExpertsMlpBackwardTensors& tensors,
                          const LinearRun& run) {
  const LayerCall call(plan.subject, run);
  check_experts_mlp_backward(plan, backend, tensors, run);
  watch_backward_of_experts(plan.subject, *tensors.saved, backend.device_api(), run.stream, [&](Watch& compare) {
    watch_routing(compare, tensors.routing);
    if (tensors.wants.reaches_hidden()) compare("hidden", tensors.hidden);
  });
  call.with_scratch(
      tensors, nullptr, [&] { return plan.backward_scratch(tensors.saved->tokens, tensors.wants).bytes; },
      [&](const ExpertsMlpBackwardTensors& all) { enqueue_backward(plan, backend, all, run); });
}

void experts_mlp_input_gradient(const ExpertsMlpPlan& plan, Backend& backend,
                                const ExpertsMlpInputGradientTensors& tensors, const LinearRun& run) {
  const LayerCall call(plan.subject, run);
  check_experts_mlp_input_gradient(plan, backend, tensors, run);
  watch_backward_of_experts(plan.subject, *tensors.saved, backend.device_api(), run.stream, [&](Watch& compare) {
    compare("routing.rows", bytes_of(tensors.rows));
    compare("routing.ends", bytes_of(tensors.ends));
  });
  call.with_scratch(
      tensors, nullptr, [&] { return plan.input_gradient_scratch(tensors.saved->tokens).bytes; },
      [&](const ExpertsMlpInputGradientTensors& all) { enqueue_input_gradient(plan, backend, all, run); });
}

void experts_mlp_weight_gradients(const ExpertsMlpPlan& plan, Backend& backend,
                                  const ExpertsMlpWeightGradientTensors& tensors, const LinearRun& run) {
  const LayerCall call(plan.subject, run);
  check_experts_mlp_weight_gradients(plan, backend, tensors, run);
  watch_backward_of_experts(plan.subject, *tensors.saved, backend.device_api(), run.stream, [&](Watch& compare) {
    watch_saved(compare, plan, *tensors.saved);
    compare("routing.ends", bytes_of(tensors.ends));
  });
  enqueue_weight_gradients(plan, backend, tensors, run);
}

}  // namespace ingot
