#include "ingot/nn/modules/norm_linear.h"

#include <utility>

#include "ingot/nn/linear/layer_call.h"
#include "ingot/nn/linear/linear_checks.h"
#include "ingot/nn/modules/module_parts.h"

namespace ingot {
namespace {

NormLinearPlan make_plan(NormKind kind, const NormLinearShape& shape, const LinearConfig& config,
                         const LinearOptions& options, Dtype input) {
  return norm_linear_plan(
      {.linear = {.name = options.name,
                  .config = config,
                  .shape = shape.linear,
                  .dtypes = {.input = input,
                             .weight = options.weight_dtype,
                             .bias = options.bias_dtype,
                             .output = options.output_dtype},
                  .fusion = options.fusion,
                  .subject = "Float8Linear",
                  .fused_products = options.fused_products},
       .norm = NormOptions{.kind = kind, .affine = shape.affine, .eps = shape.eps, .zero_centred = shape.zero_centred},
       .subject = "NormLinear"});
}

}  // namespace

// Until a call tells the input's dtype, the plan is for one that goes with every config.
NormLinear::NormLinear(NormKind kind, Backend& backend, NormLinearShape shape, LinearConfig config,
                       const LinearOptions& options)
    : kind_(kind),
      shape_(shape),
      plan_(make_plan(kind, shape, config, options, options.weight_dtype.value_or(Dtype::bf16))),
      owner_(backend, options) {
  LinearOwner::add_slots({{&owner_, &plan_.linear}});
}

void NormLinear::plan_for(Dtype input) {
  if (input == plan_.linear.dtypes.input || !is_high_precision(input)) return;
  NormLinearPlan made = make_plan(kind_, shape_, plan_.linear.config, owner_.options(), input);
  owner_.plan_changes(plan_.linear, made.linear);
  plan_ = std::move(made);
  saved_stamp_.kept = false;
}

OwnedLinear NormLinear::linear_of(Dtype weight) {
  if (!owner_.options().weight_dtype) plan_for(weight);
  return {&owner_, &plan_.linear};
}

NormLinearForwardTensors NormLinear::forward_tensors(const NormLinearForward& tensors) {
  return {.input = tensors.input,
          .gamma = tensors.gamma,
          .beta = tensors.beta,
          .weight = tensors.weight,
          .bias = tensors.bias,
          .output = tensors.output,
          .epilogue_inputs = tensors.epilogue_inputs};
}

NormLinearBackwardTensors NormLinear::backward_tensors(const NormLinearBackward& tensors) const {
  return {.saved = &saved_stamp_,
          .grad_output = tensors.grad_output,
          .grad_input = tensors.grad_input,
          .grad_gamma = tensors.grad_gamma,
          .grad_beta = tensors.grad_beta,
          .grad_weight = tensors.grad_weight,
          .grad_bias = tensors.grad_bias,
          .accumulate = tensors.accumulate,
          .input = saved_.input,
          .gamma = saved_.gamma,
          .beta = saved_.beta,
          .weight = saved_.weight,
          .output = saved_.output,
          .epilogue_inputs = saved_.epilogue_inputs,
          .codes = owner_.codes()};
}

void NormLinear::run_pass(LinearPass pass, const NormLinearForward& tensors, Stream& stream) {
  LayerCall use(plan_.subject, stream, nullptr, owner_.options().name);
  Backend& backend = owner_.backend();
  const std::int64_t tokens = tensors.input.rows;
  plan_for(tensors.input.dtype);
  const LinearRun run = owner_.run_on(stream);
  NormLinearForwardTensors all = forward_tensors(tensors);
  saved_stamp_.kept = false;
  if (pass != LinearPass::inference) {
    saved_stamp_.memory = saved_memory_.renew(backend, plan_.saved_memory(tokens).bytes, stream);
    all.saved = &saved_stamp_;
  }
  all.scratch =
      use.scratch_or(owner_.workspace(), backend, plan_.forward_scratch(tokens, pass, owner_.observes_values()).bytes);
  check_norm_linear_tensors(plan_, backend, all, pass, run);
  const LinearOwner::Call call(owner_, stream);
  if (pass != LinearPass::recompute) owner_.start_weight(plan_.linear, tensors.weight, tokens, stream);
  if (pass != LinearPass::inference) saved_ = tensors;  // before it is kept, whatever fails after that
  watched_forward(plan_, backend, all, stream, [&] {
    owner_.before_forward(plan_.linear, pass, tokens, all, stream);
    enqueue_norm_linear_pass(plan_, backend, all, pass, run);
    owner_.after_forward(all, stream);
  });
}

void NormLinear::forward(const NormLinearForward& tensors, Stream& stream) {
  run_pass(tensors.keep_for_backward ? LinearPass::training : LinearPass::inference, tensors, stream);
}

void NormLinear::recompute(const NormLinearForward& tensors, Stream& stream) {
  run_pass(LinearPass::recompute, tensors, stream);
}

void NormLinear::backward(const NormLinearBackward& tensors, Stream& stream) {
  LayerCall use(plan_.subject, stream, nullptr, owner_.options().name);
  Backend& backend = owner_.backend();
  const LinearGradients wants = wanted_gradients(tensors);
  const std::int64_t tokens = saved_stamp_.tokens;
  NormLinearBackwardTensors all = backward_tensors(tensors);
  if (saved_stamp_.kept) {
    all.scratch = use.scratch_or(owner_.workspace(), backend,
                                 plan_.backward_scratch(tokens, wants, owner_.observes_values()).bytes);
  }
  check_norm_linear_tensors(plan_, backend, all, owner_.run_on(stream));
  watch_backward(plan_, backend, all, stream);
  const LinearOwner::Call call(owner_, stream);
  Stream* const side =
      owner_.before_backward(plan_.linear, wants, gradient_dtypes(plan_, all), tokens, all.scales, stream);
  enqueue_norm_linear_backward(plan_, backend, all, owner_.run_on(stream, side));
  owner_.after_backward(stream);
}

void NormLinear::release_saved() {
  saved_stamp_.kept = false;
  saved_stamp_.memory = {};
  saved_memory_.give_back();
}

void NormLinear::release() {
  owner_.release();
  saved_memory_ = {};
  saved_stamp_ = {};
}

std::size_t NormLinear::saved_bytes() const {
  return saved_stamp_.kept ? plan_.saved_memory(saved_stamp_.tokens).bytes_of_parts() : 0;
}

}  // namespace ingot
