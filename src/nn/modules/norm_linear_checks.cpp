// What the functions of norm_linear_functions.h ask of their arguments before anything is enqueued.
#include "ingot/nn/linear/linear_checks.h"
#include "ingot/nn/linear/module_checks.h"
#include "ingot/nn/modules/norm_linear_parts.h"
#include "ingot/runtime/norm/check_norm.h"

namespace ingot {
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
    check.refuse("grad_input", "is missing, but grad_gamma is computed beside it: give it memory");
  }
  if (is_given(t.grad_input) && plan.has_gamma() && !is_given(t.grad_gamma)) {
    check.refuse("grad_gamma", "is missing, but is computed beside grad_input: give it memory");
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

// `check_layer`: what is asked of the linear layer's part.
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

}  // namespace ingot
