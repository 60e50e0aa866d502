#include "ingot/nn/modules/mlp_functions.h"

#include "ingot/nn/linear/layer_call.h"
#include "ingot/nn/linear/linear_checker.h"
#include "ingot/nn/linear/linear_checks.h"
#include "ingot/nn/linear/linear_functions.h"
#include "ingot/nn/linear/memory_places.h"
#include "ingot/nn/modules/module_parts.h"

namespace ingot {
namespace {

// Columns of a matrix, from `begin` on.
Tensor columns(const Tensor& of, std::int64_t begin, std::int64_t count) {
  Tensor view = of;
  view.cols = count;
  if (view.data != nullptr) view.data = static_cast<std::byte*>(view.data) + begin * size_of(view.dtype);
  return view;
}

LinearSaved kept_by(std::uint64_t plan, std::int64_t tokens, const MemoryRegion& memory) {
  return {.memory = memory, .plan = plan, .tokens = tokens, .kept = true};
}

template <class Tensors>
void check_call(const AllocationCheck& check, const Tensors& t) {
  check.call(t);
  check.weight("up.weight", "up.codes", t.up);
  check.weight("down.weight", "down.codes", t.down);
}

template <class Tensors>
void watch_call(Watch& watch, const MlpPlan& plan, const Tensors& t, const MlpGradients& wants) {
  watch.saved(plan.saved_memory(t.saved->tokens).bytes);
  watch_norm(watch, plan.up, t, wants.of_up());
  if (wants.input) watch.weight(plan.up.linear, t.up, "weight", "codes");
  if (wants.reaches_up()) watch.weight(plan.down, t.down, "down.weight", "down.codes");
}

// The gradients of x, or of gate and up, through the activation; and their amax, if the first layer takes it.
void flow_back(const MlpPlan& plan, Backend& backend, const MlpBackwardParts& parts, Stream& stream) {
  const Tensor& amax = parts.up.grad_output_amax;
  const ElementwiseSpec spec = plan.activation_gradients(is_given(amax));
  backend.elementwise(spec,
                      {.input = parts.first,
                       .inputs = activation_gradient_inputs(spec, parts.second, parts.grad_activation),
                       .output = parts.grad_first,
                       .second = parts.grad_second,
                       .amax = amax},
                      stream);
}

}  // namespace

MlpGradients wanted_gradients(const MlpBackwardTensors& t) {
  return {.input = is_given(t.grad_input),
          .up_weight = is_given(t.up.grad_weight),
          .up_bias = is_given(t.up.grad_bias),
          .down_weight = is_given(t.down.grad_weight),
          .down_bias = is_given(t.down.grad_bias)};
}

MlpForwardParts forward_parts(const MlpPlan& plan, Device device, const MlpForwardTensors& t, LinearPass pass,
                              bool observed) {
  const std::int64_t tokens = t.input.rows;
  const std::int64_t hidden = plan.shape.hidden;
  const MlpForwardScratch places = plan.forward_scratch(tokens, pass, observed);
  const MemoryRegion scratch = part_of(t.scratch, places.parts_begin, places.parts_bytes);
  MlpForwardParts parts;
  Tensor values = places.hidden.in(t.scratch, device);
  if (t.saved != nullptr) {
    const MlpSavedMemory saved = plan.saved_memory(tokens);
    values = saved.hidden.in(t.saved->memory, device);
    parts.up_saved.memory = part_of(t.saved->memory, saved.up_begin, saved.up.bytes);
    parts.down_saved.memory = part_of(t.saved->memory, saved.down_begin, saved.down.bytes);
  }
  parts.up = {.input = t.input,
              .gamma = t.gamma,
              .beta = t.beta,
              .weight = t.up.weight,
              .bias = t.up.bias,
              .output = values,
              .codes = t.up.codes,
              .weight_into = t.up.weight_into,
              .codes_from = t.up.codes_from,
              .scales = t.up.scales,
              .scratch = scratch};
  parts.down = {.input = columns(values, 0, hidden),
                .weight = t.down.weight,
                .bias = t.down.bias,
                .output = t.output,
                .codes = t.down.codes,
                .weight_into = t.down.weight_into,
                .codes_from = t.down.codes_from,
                .scales = t.down.scales,
                .scratch = scratch};
  if (plan.gated) parts.down.prologue_inputs[0] = columns(values, hidden, hidden);
  return parts;
}

MlpBackwardParts backward_parts(const MlpPlan& plan, Device device, const MlpBackwardTensors& t, bool observed) {
  const std::int64_t tokens = t.saved->tokens;
  const std::int64_t hidden = plan.shape.hidden;
  const MlpSavedMemory saved = plan.saved_memory(tokens);
  const MlpBackwardScratch places = plan.backward_scratch(tokens, wanted_gradients(t), observed);
  const MemoryRegion& kept = t.saved->memory;
  const MemoryRegion scratch = part_of(t.scratch, places.parts_begin, places.parts_bytes);
  const Tensor values = saved.hidden.in(kept, device);
  const Tensor grad_values = places.grad_hidden.in(t.scratch, device);
  MlpBackwardParts parts{.first = columns(values, 0, hidden),
                         .grad_activation = places.grad_activation.in(t.scratch, device),
                         .grad_first = columns(grad_values, 0, hidden)};
  if (plan.gated) parts.second = columns(values, hidden, hidden);
  if (plan.gated) parts.grad_second = columns(grad_values, hidden, hidden);
  parts.down_saved = kept_by(plan.down.identity, tokens, part_of(kept, saved.down_begin, saved.down.bytes));
  parts.up_saved = kept_by(plan.up.identity, tokens, part_of(kept, saved.up_begin, saved.up.bytes));
  parts.down = {.grad_output = t.grad_output,
                .grad_input = parts.grad_activation,
                .grad_weight = t.down.grad_weight,
                .grad_bias = t.down.grad_bias,
                .accumulate = t.accumulate && is_given(t.down.grad_weight),
                .input = parts.first,
                .weight = t.down.weight,
                .prologue_inputs = {parts.second},
                .codes = t.down.codes,
                .scales = t.down.scales,
                .scratch = scratch};
  parts.up = {.grad_output = grad_values,
              .grad_output_amax = places.grad_amax.in(t.scratch, device),
              .grad_input = t.grad_input,
              .grad_gamma = t.grad_gamma,
              .grad_beta = t.grad_beta,
              .grad_weight = t.up.grad_weight,
              .grad_bias = t.up.grad_bias,
              .accumulate = t.accumulate && is_given(t.up.grad_weight),
              .input = t.input,
              .gamma = t.gamma,
              .beta = t.beta,
              .weight = t.up.weight,
              .codes = t.up.codes,
              .scales = t.up.scales,
              .scratch = scratch};
  return parts;
}

void enqueue_mlp_pass(const MlpPlan& plan, Backend& backend, const MlpForwardTensors& tensors, LinearPass pass,
                      const LinearRun& run) {
  if (tensors.saved != nullptr) tensors.saved->kept = false;
  MlpForwardParts parts = forward_parts(plan, backend.device(), tensors, pass, observes_values(run));
  if (tensors.saved != nullptr) {
    parts.up.saved = &parts.up_saved;
    parts.down.saved = &parts.down_saved;
  }
  enqueue_norm_linear_pass(plan.up, backend, parts.up, pass_of_up(pass), run);
  enqueue_linear_pass(plan.down, backend, parts.down, pass, run);
  stamp(tensors.saved, plan.identity, tensors.input.rows);
}

void enqueue_mlp_backward(const MlpPlan& plan, Backend& backend, const MlpBackwardTensors& tensors,
                          const LinearRun& down, const LinearRun& up) {
  Stream& stream = down.stream;
  MlpBackwardParts parts = backward_parts(plan, backend.device(), tensors, observes_values(down));
  parts.down.saved = &parts.down_saved;
  parts.up.saved = &parts.up_saved;
  enqueue_linear_backward(plan.down, backend, parts.down, down);
  const MlpGradients wants = wanted_gradients(tensors);
  if (!wants.reaches_up()) return;
  flow_back(plan, backend, parts, stream);
  // Its memory is used again.
  if (Stream* const side = down.side_for(wants.of_down())) stream.wait_for(*side);
  enqueue_norm_linear_backward(plan.up, backend, parts.up, up);
}

void check_held(const AllocationCheck& check, const MlpForwardTensors& t) { check_call(check, t); }
void check_held(const AllocationCheck& check, const MlpBackwardTensors& t) { check_call(check, t); }
void watch(Watch& watch, const MlpPlan& plan, const MlpForwardTensors& t) {
  watch_call(watch, plan, t, MlpGradients{});
}
void watch(Watch& watch, const MlpPlan& plan, const MlpBackwardTensors& t) {
  watch_call(watch, plan, t, wanted_gradients(t));
}

// ---- checks of the arguments, before anything is enqueued ----------------------------------------------------------

namespace {

struct Names {
  const char* weight;
  const char* grad_weight;
  const char* grad_bias;
};
Names names_of_first(const MlpPlan& plan) {
  if (plan.gated) return {"gate_up_weight", "grad_gate_up_weight", "grad_gate_up_bias"};
  return {"up_weight", "grad_up_weight", "grad_up_bias"};
}

void check_forward_memory(const ModuleChecker& check, const MlpPlan& plan, const MlpForwardTensors& t, LinearPass pass,
                          bool observed) {
  const std::int64_t tokens = t.input.rows;
  const std::size_t scratch = plan.forward_scratch(tokens, pass, observed).bytes;
  const auto tensors = {
      NamedTensor{"input", &t.input},     {"output", &t.output},          {"gamma", &t.gamma}, {"beta", &t.beta},
      {"the first weight", &t.up.weight}, {"down_weight", &t.down.weight}};
  check.scratch(t.scratch, scratch, tensors);
  if (t.saved == nullptr) return;
  const std::size_t saved = plan.saved_memory(tokens).bytes;
  check.region("saved", t.saved->memory, saved, tensors);
  check.saved_apart(t.saved->memory, saved, t.scratch, scratch);
}

void check_backward_memory(const ModuleChecker& check, const MlpPlan& plan, const MlpBackwardTensors& t,
                           bool observed) {
  const std::size_t scratch = plan.backward_scratch(t.saved->tokens, wanted_gradients(t), observed).bytes;
  const std::size_t saved = plan.saved_memory(t.saved->tokens).bytes;
  const Names names = names_of_first(plan);
  const auto tensors = {NamedTensor{"input", &t.input},
                        {"grad_output", &t.grad_output},
                        {"grad_input", &t.grad_input},
                        {names.grad_weight, &t.up.grad_weight},
                        {"grad_down_weight", &t.down.grad_weight}};
  check.scratch(t.scratch, scratch, tensors);
  check.region("saved", t.saved->memory, saved, tensors);
  check.saved_apart(t.saved->memory, saved, t.scratch, scratch);
}

// Each layer checks its own results; these are of one and read or written by the other.
void check_results_apart(const ModuleChecker& check, const MlpPlan& plan, const MlpBackwardTensors& t) {
  const Names names = names_of_first(plan);
  const NamedTensor of_up[] = {{"grad_input", &t.grad_input},
                               {"grad_gamma", &t.grad_gamma},
                               {"grad_beta", &t.grad_beta},
                               {names.grad_weight, &t.up.grad_weight},
                               {names.grad_bias, &t.up.grad_bias}};
  for (const NamedTensor& result :
       {NamedTensor{"grad_down_weight", &t.down.grad_weight}, {"grad_down_bias", &t.down.grad_bias}}) {
    for (const NamedTensor& other : of_up) check.disjoint(result, {other});
    // Read after this result is written.
    check.disjoint(result, {{"the input", &t.input}, {names.weight, &t.up.weight}});
  }
}

// `check_parts`: the checks of the layers' parts.
template <class CheckParts>
void check_pass(const MlpPlan& plan, Backend& backend, const MlpForwardTensors& t, LinearPass pass,
                const LinearRun& run, const CheckParts& check_parts) {
  const ModuleChecker check(plan.subject);
  if (pass == LinearPass::recompute && t.saved == nullptr) {
    check.refuse("saved", "is missing; it is what recompute makes");
  }
  if (!plan.up.norm && (is_given(t.gamma) || is_given(t.beta))) {
    check.refuse("gamma", "or beta is given, but the MLP has no norm in front: set norm in its options");
  }
  MlpForwardParts parts = forward_parts(plan, backend.device(), t, pass, observes_values(run));
  if (t.saved != nullptr) {
    parts.up.saved = &parts.up_saved;
    parts.down.saved = &parts.down_saved;
  }
  check_parts(check, parts);
  check.disjoint(
      {"output", &t.output},
      {{"input", &t.input}, {names_of_first(plan).weight, &t.up.weight}, {"gamma", &t.gamma}, {"beta", &t.beta}});
}

template <class CheckParts>
void check_backward(const MlpPlan& plan, Backend& backend, const MlpBackwardTensors& t, const LinearRun& run,
                    const CheckParts& check_parts) {
  const ModuleChecker check(plan.subject);
  check.stamp(t.saved, plan.identity);
  if (!plan.up.norm && (is_given(t.grad_gamma) || is_given(t.grad_beta))) {
    check.refuse("grad_gamma", "or grad_beta is given, but the MLP has no norm in front: set norm in its options");
  }
  MlpBackwardParts parts = backward_parts(plan, backend.device(), t, observes_values(run));
  parts.down.saved = &parts.down_saved;
  parts.up.saved = &parts.up_saved;
  check_parts(check, parts);
  check_results_apart(check, plan, t);
}

}  // namespace

void check_mlp_pass(const MlpPlan& plan, Backend& backend, const MlpForwardTensors& t, LinearPass pass,
                    const LinearRun& run) {
  check_pass(plan, backend, t, pass, run, [&](const ModuleChecker& check, const MlpForwardParts& parts) {
    check_forward_memory(check, plan, t, pass, observes_values(run));
    check_norm_linear_pass(plan.up, backend, parts.up, pass_of_up(pass), run);
    if (pass == LinearPass::recompute) return check_linear_recompute(plan.down, backend, parts.down, run);
    check_linear_forward(plan.down, backend, parts.down, run);
  });
}

void check_mlp_tensors(const MlpPlan& plan, Backend& backend, const MlpForwardTensors& t, LinearPass pass,
                       const LinearRun& run) {
  check_pass(plan, backend, t, pass, run, [&](const ModuleChecker&, const MlpForwardParts& parts) {
    check_norm_linear_tensors(plan.up, backend, parts.up, pass_of_up(pass), run);
    check_forward_tensors(plan.down, backend, parts.down, run.stream, true);
  });
}

void check_mlp_backward(const MlpPlan& plan, Backend& backend, const MlpBackwardTensors& t, const LinearRun& run) {
  check_backward(plan, backend, t, run, [&](const ModuleChecker& check, const MlpBackwardParts& parts) {
    check_backward_memory(check, plan, t, observes_values(run));
    check_linear_backward(plan.down, backend, parts.down, run);
    if (wanted_gradients(t).reaches_up()) check_norm_linear_backward(plan.up, backend, parts.up, run);
  });
}

void check_mlp_tensors(const MlpPlan& plan, Backend& backend, const MlpBackwardTensors& t, const LinearRun& run) {
  check_backward(plan, backend, t, run, [&](const ModuleChecker&, const MlpBackwardParts& parts) {
    refuse_one_element(plan.down, parts.down);
    check_backward_tensors(plan.down, backend, parts.down, run.stream);
    if (wanted_gradients(t).reaches_up()) check_norm_linear_tensors(plan.up, backend, parts.up, run);
  });
}

// ---- the functions -------------------------------------------------------------------------------------------------

namespace {

// A forward or recompute with all of its checks, those of tensors in the scratch included.
void run_pass(const MlpPlan& plan, Backend& backend, const MlpForwardTensors& tensors, LinearPass pass,
              const LinearRun& run) {
  const LayerCall call(plan.subject, run);
  const auto bytes = [&] { return plan.forward_scratch(tensors.input.rows, pass, observes_values(run)).bytes; };
  call.with_scratch(tensors, nullptr, bytes, [&](const MlpForwardTensors& all) {
    check_mlp_pass(plan, backend, all, pass, run);
    watched_forward(plan, backend, all, run.stream, [&] { enqueue_mlp_pass(plan, backend, all, pass, run); });
  });
}

}  // namespace

void mlp_forward(const MlpPlan& plan, Backend& backend, const MlpForwardTensors& tensors, const LinearRun& run) {
  run_pass(plan, backend, tensors, tensors.saved != nullptr ? LinearPass::training : LinearPass::inference, run);
}

void mlp_recompute(const MlpPlan& plan, Backend& backend, const MlpForwardTensors& tensors, const LinearRun& run) {
  run_pass(plan, backend, tensors, LinearPass::recompute, run);
}

LinearGradientDtypes gradient_dtypes_of_down(const MlpPlan& plan, const MlpBackwardTensors& t) {
  LinearGradientDtypes dtypes;
  if (wanted_gradients(t).reaches_up()) dtypes.input = plan.up.linear.dtypes.input;
  if (!is_given(t.down.grad_weight)) return dtypes;
  dtypes.weight = t.down.grad_weight.dtype;
  dtypes.accumulate = t.accumulate;
  return dtypes;
}

LinearGradientDtypes gradient_dtypes_of_up(const MlpPlan& plan, const MlpBackwardTensors& t) {
  return gradient_dtypes(
      plan.up,
      {.grad_output = {}, .grad_input = t.grad_input, .grad_weight = t.up.grad_weight, .accumulate = t.accumulate});
}

bool multiplies_together(const MlpPlan& plan, Backend& backend, const MlpBackwardTensors& tensors) {
  if (tensors.saved == nullptr) return false;
  const std::int64_t tokens = tensors.saved->tokens;
  return multiplies_together(plan.down, backend, tokens, gradient_dtypes_of_down(plan, tensors)) &&
         multiplies_together(plan.up.linear, backend, tokens, gradient_dtypes_of_up(plan, tensors));
}

void mlp_backward(const MlpPlan& plan, Backend& backend, const MlpBackwardTensors& tensors, const LinearRun& run) {
  const LayerCall call(plan.subject, run);
  const MlpGradients wants = wanted_gradients(tensors);
  Stream* const of_down = run.side_for(wants.of_down());
  Stream* const side = of_down != nullptr ? of_down : run.side_for(wants.of_up());
  const auto bytes = [&]() -> std::size_t {
    if (tensors.saved == nullptr) return 0;  // which is then refused
    return plan.backward_scratch(tensors.saved->tokens, wants, observes_values(run)).bytes;
  };
  call.with_scratch(tensors, side, bytes, [&](const MlpBackwardTensors& all) {
    check_mlp_backward(plan, backend, all, run);
    watch_backward(plan, backend, all, run.stream);
    enqueue_mlp_backward(plan, backend, all, run, run);
  });
}

}  // namespace ingot
