#include "ingot/nn/modules/norm_linear_functions.h"

#include "ingot/nn/linear/layer_call.h"
#include "ingot/nn/linear/linear_checker.h"
#include "ingot/nn/linear/linear_checks.h"
#include "ingot/nn/linear/linear_functions.h"
#include "ingot/nn/linear/memory_places.h"
#include "ingot/nn/modules/module_parts.h"
#include "ingot/runtime/norm/norm_operations.h"

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

// The inputs of norm_expression() (module_plans.cpp), in its order.
PointwiseTensors prologue_inputs(const NormLinearPlan& plan, const Tensor& mean, const Tensor& rstd,
                                 const Tensor& gamma, const Tensor& beta) {
  if (!plan.norm || plan.writes_values) return {};
  if (!plan.has_mean()) return {rstd, gamma};
  return {mean, rstd, gamma, beta};
}

struct LayerRegions {
  LinearPass pass;
  MemoryRegion saved, scratch;
};

// The layer's own parts of the module's memory.
LayerRegions layer_regions(const NormLinearPlan& plan, std::int64_t tokens, const MemoryRegion& saved,
                           const MemoryRegion& scratch) {
  const bool keeps = saved.data != nullptr || plan.linear.saves_no_bytes(tokens);
  const LinearPass pass = keeps ? LinearPass::training : LinearPass::inference;
  const NormLinearSavedMemory kept = plan.saved_memory(tokens);
  const NormLinearForwardScratch used = plan.forward_scratch(tokens, pass);
  return {.pass = pass,
          .saved = part_of(saved, kept.layer_begin, kept.layer.bytes),
          .scratch = part_of(scratch, used.layer_begin, used.layer_bytes)};
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

// ---- several layers after one norm ---------------------------------------------------------------------------------

Float8View norm_linear_input_codes(const NormLinearPlan& plan, std::int64_t tokens, const MemoryRegion& saved,
                                   const MemoryRegion& scratch, Device device) {
  const LayerRegions regions = layer_regions(plan, tokens, saved, scratch);
  return linear_input_codes(plan.linear, tokens, regions.saved, regions.scratch, device);
}

Tensor norm_linear_input_values(const NormLinearPlan& plan, std::int64_t tokens, const MemoryRegion& saved,
                                const MemoryRegion& scratch, Device device) {
  const LayerRegions regions = layer_regions(plan, tokens, saved, scratch);
  if (regions.pass == LinearPass::training) {
    const NormLinearSavedMemory kept = plan.saved_memory(tokens);
    if (kept.values.used) return kept.values.in(saved, device);
    if (kept.layer.input_values.used) return kept.layer.input_values.in(regions.saved, device);
  }
  const NormLinearForwardScratch used = plan.forward_scratch(tokens, regions.pass);
  if (used.values.used) return used.values.in(scratch, device);
  return plan.linear.forward_scratch(tokens, regions.pass).input_values.in(regions.scratch, device);
}

// ---- the calls of a step -------------------------------------------------------------------------------------------

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
                 .grad_output_amax = t.grad_output_amax,
                 .grad_input = grad_values,
                 .grad_input_of_others = t.grad_values,
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
  if (plan.norm && is_given(tensors.grad_input)) backend.norm_backward(parts.norm_spec, parts.norm, run.stream);
}

void watch(Watch& watch, const NormLinearPlan& plan, const NormLinearForwardTensors& t) {
  watch_call(watch, plan, t, LinearGradients{});
}

void watch(Watch& watch, const NormLinearPlan& plan, const NormLinearBackwardTensors& t) {
  watch_call(watch, plan, t, wanted_gradients(t));
}

// ---- checks of the arguments, before anything is enqueued ----------------------------------------------------------

namespace {

void check_parameters(const ModuleChecker& check, const NormLinearPlan& plan, const NormLinearForwardTensors& t) {
  if (!plan.has_gamma() && (is_given(t.gamma) || is_given(t.beta))) {
    check.refuse("gamma", "or beta is given, but the layer was made without them: set affine in its shape");
  }
  if (!plan.has_beta() && is_given(t.beta)) check.refuse("beta", "is given, but an RMSNorm has none");
  check.disjoint({"output", &t.output}, {{"input", &t.input}, {"gamma", &t.gamma}, {"beta", &t.beta}});
}

void check_gradients_of_norm(const ModuleChecker& check, const NormLinearPlan& plan,
                             const NormLinearBackwardTensors& t) {
  const bool parameters = is_given(t.grad_gamma) || is_given(t.grad_beta);
  if (parameters && !plan.has_gamma()) {
    check.refuse("grad_gamma", "or grad_beta is given, but the layer was made without gamma and beta");
  }
  const bool is_empty = plan.linear.shape.in_features == 0 && t.saved->tokens == 0;  // as a default tensor is
  if (parameters && !is_given(t.grad_input) && !is_empty) {
    check.refuse("grad_input", "is missing, but grad_gamma is computed together with it: give it memory");
  }
  if (is_given(t.grad_input) && plan.has_gamma() && !is_given(t.grad_gamma)) {
    check.refuse("grad_gamma", "is missing, but is computed together with grad_input: give it memory");
  }
  if (!plan.norm) return;
  for (const NamedTensor& result :
       {NamedTensor{"grad_input", &t.grad_input}, {"grad_gamma", &t.grad_gamma}, {"grad_beta", &t.grad_beta}}) {
    check.disjoint(result, {{"grad_output", &t.grad_output},
                            {"grad_weight", &t.grad_weight},
                            {"grad_bias", &t.grad_bias},
                            {"the input", &t.input}});
  }
  for (const NamedTensor& result : {NamedTensor{"grad_weight", &t.grad_weight}, {"grad_bias", &t.grad_bias}}) {
    check.disjoint(result, {{"the input", &t.input}});
  }
}

void check_grad_values(const NormLinearPlan& plan, const DeviceApi& device_api, const NormLinearBackwardTensors& t) {
  const ModuleChecker check(plan.subject);
  const Tensor& tensor = t.grad_values;
  const NamedTensor grad_values{"grad_values", &tensor};
  if (!is_given(tensor)) return;
  if (!is_given(t.grad_input)) {
    check.refuse(grad_values.name, "is given, but no gradient of the input to add it to: give grad_input memory");
  }
  const Dtype dtype = plan.norm ? plan.linear.dtypes.input : t.grad_input.dtype;
  const std::int64_t cols = plan.linear.shape.in_features;
  if (tensor.dtype != dtype || tensor.rows != t.saved->tokens || tensor.cols != cols) {
    check.refuse(grad_values.name, fmt::format("is {}, but must be {} [{}, {}] = [tokens, in_features]",
                                               describe(tensor), name(dtype), t.saved->tokens, cols));
  }
  try {
    check_memory(grad_values.name, tensor, device_api.device());
  } catch (const Error& error) {
    check.refuse(grad_values.name, error.message());
  }
  const std::size_t scratch = t.scratch.data == nullptr ? 0 : t.scratch.bytes;
  const auto bytes = static_cast<std::int64_t>(scratch);
  const Tensor used{.data = t.scratch.data, .dtype = Dtype::e4m3fn, .rows = 1, .cols = bytes, .row_stride = bytes};
  check.disjoint(grad_values, {{"the scratch", &used}});
  if (plan.norm) check.disjoint(grad_values, {{"grad_input", &t.grad_input}});
}

// What forward had and the norm's backward reads again.
void check_read_again(const ModuleChecker& check, const NormLinearPlan& plan, const NormLinearBackwardTensors& t) {
  if (t.saved->tokens == 0 || !plan.backward_reads_input(wanted_gradients(t))) return;
  if (plan.linear.shape.in_features == 0) return;
  const char* const why = "is missing; backward reads it again: give it what its forward had";
  if (!is_given(t.input)) check.refuse("input", why);
  if (plan.has_gamma() && !is_given(t.gamma)) check.refuse("gamma", why);
}

// The norm's own checks, by the layer's name.
template <class Spec, class Tensors>
void check_norm(const ModuleChecker& check, const Spec& spec, const Tensors& tensors, Device device) {
  try {
    validate(spec);
    ingot::check(spec, tensors, device);
  } catch (const Error& error) {
    check.refuse(error.subject().c_str(), error.message());
  }
}

void check_forward_memory(const ModuleChecker& check, const NormLinearPlan& plan, const NormLinearForwardTensors& t,
                          LinearPass pass, bool observed) {
  const std::int64_t tokens = t.input.rows;
  const std::size_t scratch = plan.forward_scratch(tokens, pass, observed).bytes;
  const auto tensors = {NamedTensor{"input", &t.input}, {"gamma", &t.gamma}, {"beta", &t.beta}, {"output", &t.output}};
  check.scratch(t.scratch, scratch, tensors);
  if (t.saved == nullptr) return;
  const std::size_t saved = plan.saved_memory(tokens).bytes;
  check.region("saved", t.saved->memory, saved, tensors);
  check.saved_apart(t.saved->memory, saved, t.scratch, scratch);
}

void check_backward_memory(const ModuleChecker& check, const NormLinearPlan& plan, const NormLinearBackwardTensors& t,
                           bool observed) {
  const std::size_t scratch = plan.backward_scratch(t.saved->tokens, wanted_gradients(t), observed).bytes;
  const std::size_t saved = plan.saved_memory(t.saved->tokens).bytes;
  const auto tensors = {NamedTensor{"input", &t.input},
                        {"grad_output", &t.grad_output},
                        {"grad_input", &t.grad_input},
                        {"grad_gamma", &t.grad_gamma},
                        {"grad_beta", &t.grad_beta}};
  check.scratch(t.scratch, scratch, tensors);
  check.region("saved", t.saved->memory, saved, tensors);
  check.saved_apart(t.saved->memory, saved, t.scratch, scratch);
}

// `check_layer`: the checks of the linear layer's part.
template <class CheckLayer>
void check_pass(const NormLinearPlan& plan, Backend& backend, const NormLinearForwardTensors& t, LinearPass pass,
                const LinearRun& run, const CheckLayer& check_layer) {
  const ModuleChecker check(plan.subject);
  if (pass == LinearPass::recompute && t.saved == nullptr) {
    check.refuse("saved", "is missing; it is what recompute makes");
  }
  if (plan.norm) check_parameters(check, plan, t);
  NormLinearForwardParts parts = forward_parts(plan, backend.device(), t, pass, observes_values(run));
  if (t.saved != nullptr) parts.layer.saved = &parts.layer_saved;
  check_layer(check, parts.layer);
  if (plan.norm) check_norm(check, parts.norm_spec, parts.norm, backend.device());
}

template <class CheckLayer>
void check_backward(const NormLinearPlan& plan, Backend& backend, const NormLinearBackwardTensors& t,
                    const LinearRun& run, const CheckLayer& check_layer) {
  const ModuleChecker check(plan.subject);
  check.stamp(t.saved, plan.identity);
  check_gradients_of_norm(check, plan, t);
  check_read_again(check, plan, t);
  check_grad_values(plan, backend, t);
  NormLinearBackwardParts parts = backward_parts(plan, backend.device(), t, observes_values(run));
  parts.layer.saved = &parts.layer_saved;
  check_layer(check, parts.layer);
  // Before anything is added to a main gradient, which cannot be undone.
  if (plan.norm && is_given(t.grad_input)) check_norm(check, parts.norm_spec, parts.norm, backend.device());
}

}  // namespace

void check_norm_linear_pass(const NormLinearPlan& plan, Backend& backend, const NormLinearForwardTensors& t,
                            LinearPass pass, const LinearRun& run) {
  check_pass(plan, backend, t, pass, run, [&](const ModuleChecker& check, const LinearForwardTensors& layer) {
    check_forward_memory(check, plan, t, pass, observes_values(run));
    if (pass == LinearPass::recompute) return check_linear_recompute(plan.linear, backend, layer, run);
    check_linear_forward(plan.linear, backend, layer, run);
  });
}

void check_norm_linear_tensors(const NormLinearPlan& plan, Backend& backend, const NormLinearForwardTensors& t,
                               LinearPass pass, const LinearRun& run) {
  check_pass(plan, backend, t, pass, run, [&](const ModuleChecker&, const LinearForwardTensors& layer) {
    check_forward_tensors(plan.linear, backend, layer, run.stream, true);
  });
}

void check_norm_linear_backward(const NormLinearPlan& plan, Backend& backend, const NormLinearBackwardTensors& t,
                                const LinearRun& run) {
  check_backward(plan, backend, t, run, [&](const ModuleChecker& check, const LinearBackwardTensors& layer) {
    check_backward_memory(check, plan, t, observes_values(run));
    check_linear_backward(plan.linear, backend, layer, run);
  });
}

void check_norm_linear_tensors(const NormLinearPlan& plan, Backend& backend, const NormLinearBackwardTensors& t,
                               const LinearRun& run) {
  check_backward(plan, backend, t, run, [&](const ModuleChecker&, const LinearBackwardTensors& layer) {
    refuse_one_element(plan.linear, layer);
    check_backward_tensors(plan.linear, backend, layer, run.stream);
  });
}

// ---- the functions -------------------------------------------------------------------------------------------------

namespace {

// A forward or recompute with all of its checks, those of tensors in the scratch included.
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
  dtypes.adds_to_input = is_given(tensors.grad_values);
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
