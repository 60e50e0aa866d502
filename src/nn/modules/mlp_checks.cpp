// What the functions of mlp_functions.h ask of their arguments before anything is enqueued.
#include "ingot/nn/linear/linear_checks.h"
#include "ingot/nn/linear/module_checks.h"
#include "ingot/nn/modules/mlp_parts.h"
#include "ingot/nn/modules/norm_linear_parts.h"

namespace ingot {
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

// `check_parts`: what is asked of the layers' parts.
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

}  // namespace ingot
