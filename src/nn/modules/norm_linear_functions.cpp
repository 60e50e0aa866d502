#include "ingot/nn/modules/norm_linear_functions.h"

#include "ingot/nn/linear/layer_call.h"
#include "ingot/nn/linear/linear_checks.h"
#include "ingot/nn/linear/memory_places.h"
#include "ingot/nn/modules/norm_linear_parts.h"

namespace ingot {
namespace {

// The statistics and the norm's values, in saved memory or in the scratch of a pass that keeps nothing.
struct NormMemory {
  Tensor mean, rstd, values;
};

NormMemory norm_memory(Device device, const NormLinearForwardTensors& t, const NormLinearForwardScratch& scratch,
                       const NormLinearSavedMemory& saved) {
  const MemoryRegion kept = t.saved != nullptr ? t.saved->memory : MemoryRegion{};
  const auto in = [&](const TensorPlace& keeping, const TensorPlace& using_up) {
    return keeping.used ? keeping.in(kept, device) : using_up.in(t.scratch, device);
  };
  return {in(saved.mean, scratch.mean), in(saved.rstd, scratch.rstd), in(saved.values, scratch.values)};
}

// The inputs of norm_expression() (norm_linear_plan.cpp), in its order.
PointwiseTensors prologue_inputs(const NormLinearPlan& plan, const Tensor& mean, const Tensor& rstd,
                                 const Tensor& gamma, const Tensor& beta) {
  if (!plan.norm || plan.writes_values) return {};
  if (!plan.has_mean()) return {rstd, gamma};
  return {mean, rstd, gamma, beta};
}

template <class Tensors>
void watch_call(Watch& watch, const NormLinearPlan& plan, const Tensors& t, const LinearGradients& wants) {
  watch.saved(plan.saved_memory(t.saved->tokens).bytes);
  watch_norm(watch, plan, t, wants);
  if (wants.input) watch.weight(plan.linear, t, "weight", "codes");
  if (plan.linear.gradient.of_output()) watch("output", t.output);
  watch("an input of the epilogue", t.epilogue_inputs);
}

}  // namespace

NormLinearForwardParts forward_parts(const NormLinearPlan& plan, Device device, const NormLinearForwardTensors& t,
                                     LinearPass pass, bool observed) {
  const std::int64_t tokens = t.input.rows;
  const NormLinearForwardScratch scratch = plan.forward_scratch(tokens, pass, observed);
  const NormLinearSavedMemory saved = t.saved != nullptr ? plan.saved_memory(tokens) : NormLinearSavedMemory{};
  const NormMemory memory = norm_memory(device, t, scratch, saved);
  NormLinearForwardParts parts;
  if (t.saved != nullptr) {
    parts.layer_saved.memory = part_of(t.saved->memory, saved.layer_begin, saved.layer.bytes);
  }
  parts.layer = {.input = plan.writes_values ? memory.values : t.input,
                 .weight = t.weight,
                 .bias = t.bias,
                 .output = t.output,
                 .prologue_inputs = prologue_inputs(plan, memory.mean, memory.rstd, t.gamma, t.beta),
                 .epilogue_inputs = t.epilogue_inputs,
                 .codes = t.codes,
                 .weight_into = t.weight_into,
                 .codes_from = t.codes_from,
                 .scales = t.scales,
                 .scratch = part_of(t.scratch, scratch.layer_begin, scratch.layer_bytes)};
  if (!plan.norm) return parts;
  const bool writes = plan.writes_values;
  const bool stats = !writes || t.saved != nullptr;
  parts.norm_spec = {.kind = plan.norm->kind,
                     .in = plan.linear.dtypes.input,
                     .affine = writes && plan.has_gamma(),
                     .result = writes,
                     .stats = stats};
  parts.norm = {.input = t.input, .result = memory.values, .eps = plan.norm->eps};
  if (stats) parts.norm.mean = memory.mean;
  if (stats) parts.norm.rstd = memory.rstd;
  if (writes) parts.norm.gamma = t.gamma;
  if (writes) parts.norm.beta = t.beta;
  return parts;
}

NormLinearBackwardParts backward_parts(const NormLinearPlan& plan, Device device, const NormLinearBackwardTensors& t,
                                       bool observed) {
  const LinearGradients wants = wanted_gradients(t);
  const NormLinearSavedMemory saved = plan.saved_memory(t.saved->tokens);
  const NormLinearBackwardScratch scratch = plan.backward_scratch(t.saved->tokens, wants, observed);
  const MemoryRegion& kept = t.saved->memory;
  const Tensor mean = saved.mean.in(kept, device);
  const Tensor rstd = saved.rstd.in(kept, device);
  const bool flows_on = plan.norm && wants.input;
  const Tensor grad_values = flows_on ? scratch.grad_values.in(t.scratch, device) : t.grad_input;
  NormLinearBackwardParts parts;
  parts.layer_saved = {.memory = part_of(kept, saved.layer_begin, saved.layer.bytes),
                       .plan = plan.linear.identity,
                       .tokens = t.saved->tokens,
                       .kept = true};
  parts.layer = {.grad_output = t.grad_output,
                 .grad_input = grad_values,
                 .grad_weight = t.grad_weight,
                 .grad_bias = t.grad_bias,
                 .accumulate = t.accumulate,
                 .input = plan.writes_values ? saved.values.in(kept, device) : t.input,
                 .weight = t.weight,
                 .output = t.output,
                 .prologue_inputs = prologue_inputs(plan, mean, rstd, t.gamma, t.beta),
                 .epilogue_inputs = t.epilogue_inputs,
                 .codes = t.codes,
                 .scales = t.scales,
                 .scratch = part_of(t.scratch, scratch.layer_begin, scratch.layer_bytes)};
  if (!flows_on) return parts;
  parts.norm_spec = {.kind = plan.norm->kind,
                     .in = plan.linear.dtypes.input,
                     .affine = plan.has_gamma(),
                     .sums = plan.has_gamma() ? t.grad_gamma.dtype : Dtype::f32,
                     .zero_centred = plan.norm->zero_centred};
  parts.norm = {.grad_output = grad_values,
                .input = t.input,
                .mean = mean,
                .rstd = rstd,
                .grad_input = t.grad_input,
                .grad_gamma = t.grad_gamma,
                .grad_beta = t.grad_beta};
  if (plan.has_gamma()) parts.norm.gamma = t.gamma;
  return parts;
}

void enqueue_norm_linear_pass(const NormLinearPlan& plan, Backend& backend, const NormLinearForwardTensors& tensors,
                              LinearPass pass, const LinearRun& run) {
  if (tensors.saved != nullptr) tensors.saved->kept = false;
  NormLinearForwardParts parts = forward_parts(plan, backend.device(), tensors, pass, observes_values(run));
  if (tensors.saved != nullptr) parts.layer.saved = &parts.layer_saved;
  if (plan.norm) backend.norm(parts.norm_spec, parts.norm, run.stream);
  enqueue_linear_pass(plan.linear, backend, parts.layer, pass, run);
  stamp(tensors.saved, plan.identity, tensors.input.rows);
}

void enqueue_norm_linear_backward(const NormLinearPlan& plan, Backend& backend,
                                  const NormLinearBackwardTensors& tensors, const LinearRun& run) {
  NormLinearBackwardParts parts = backward_parts(plan, backend.device(), tensors, observes_values(run));
  parts.layer.saved = &parts.layer_saved;
  enqueue_linear_backward(plan.linear, backend, parts.layer, run);
  add_grad_values(plan, backend, tensors, parts.norm.grad_output, run.stream);
  if (plan.norm && is_given(tensors.grad_input)) backend.norm_backward(parts.norm_spec, parts.norm, run.stream);
}

void watch(Watch& watch, const NormLinearPlan& plan, const NormLinearForwardTensors& t) {
  watch_call(watch, plan, t, LinearGradients{});
}

void watch(Watch& watch, const NormLinearPlan& plan, const NormLinearBackwardTensors& t) {
  watch_call(watch, plan, t, wanted_gradients(t));
}

namespace {

// A forward or recompute with all of its checks, which are also of tensors that lie in the scratch.
void run_pass(const NormLinearPlan& plan, Backend& backend, const NormLinearForwardTensors& tensors, LinearPass pass,
              const LinearRun& run) {
  const LayerCall call(plan.subject, run);
  const auto bytes = [&] { return plan.forward_scratch(tensors.input.rows, pass, observes_values(run)).bytes; };
  call.with_scratch(tensors, nullptr, bytes, [&](const NormLinearForwardTensors& all) {
    check_norm_linear_pass(plan, backend, all, pass, run);
    watched_forward(plan, backend, all, run.stream, [&] { enqueue_norm_linear_pass(plan, backend, all, pass, run); });
  });
}

}  // namespace

void norm_linear_forward(const NormLinearPlan& plan, Backend& backend, const NormLinearForwardTensors& tensors,
                         const LinearRun& run) {
  run_pass(plan, backend, tensors, tensors.saved != nullptr ? LinearPass::training : LinearPass::inference, run);
}

void norm_linear_recompute(const NormLinearPlan& plan, Backend& backend, const NormLinearForwardTensors& tensors,
                           const LinearRun& run) {
  run_pass(plan, backend, tensors, LinearPass::recompute, run);
}

LinearGradientDtypes gradient_dtypes(const NormLinearPlan& plan, const NormLinearBackwardTensors& tensors) {
  LinearGradientDtypes dtypes = gradient_dtypes(tensors);
  if (plan.norm && dtypes.input) dtypes.input = plan.linear.dtypes.input;
  return dtypes;
}

bool multiplies_together(const NormLinearPlan& plan, Backend& backend, const NormLinearBackwardTensors& tensors) {
  return tensors.saved != nullptr &&
         multiplies_together(plan.linear, backend, tensors.saved->tokens, gradient_dtypes(plan, tensors));
}

void norm_linear_backward(const NormLinearPlan& plan, Backend& backend, const NormLinearBackwardTensors& tensors,
                          const LinearRun& run) {
  const LayerCall call(plan.subject, run);
  const LinearGradients wants = wanted_gradients(tensors);
  const auto bytes = [&]() -> std::size_t {
    if (tensors.saved == nullptr) return 0;  // which is then refused
    return plan.backward_scratch(tensors.saved->tokens, wants, observes_values(run)).bytes;
  };
  call.with_scratch(tensors, run.side_for(wants), bytes, [&](const NormLinearBackwardTensors& all) {
    check_norm_linear_backward(plan, backend, all, run);
    watch_backward(plan, backend, all, run.stream);
    enqueue_norm_linear_backward(plan, backend, all, run);
  });
}

}  // namespace ingot
