#include "ingot/nn/modules/norm_linear.h"

#include "ingot/nn/linear/layer_call.h"
#include "ingot/nn/linear/linear_checks.h"
#include "ingot/nn/modules/norm_linear_parts.h"

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

// The layer itself has the norm in front, so that it makes its first delayed scale of the norm's values.
LinearOptions with_norm(LinearOptions options, const NormLinearPlan& plan) {
  options.fusion.prologue = plan.linear.fusion.prologue;
  return options;
}

}  // namespace

NormLinear::NormLinear(NormKind kind, Backend& backend, NormLinearShape shape, LinearConfig config,
                       const LinearOptions& options)
    : backend_(&backend),
      kind_(kind),
      shape_(shape),
      options_(options),
      // Until a call tells the input's dtype, one that goes with every config.
      plan_(make_plan(kind, shape, config, options_, options_.weight_dtype.value_or(Dtype::bf16))),
      linear_(backend, plan_.linear.shape, plan_.linear.config, with_norm(options_, plan_)) {}

void NormLinear::plan_for(Dtype dtype) {
  if (dtype == plan_.linear.dtypes.input || !is_high_precision(dtype)) return;
  plan_ = make_plan(kind_, shape_, plan_.linear.config, options_, dtype);
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
          .epilogue_inputs = saved_.epilogue_inputs};
}

void NormLinear::run_pass(LinearPass pass, const NormLinearForward& tensors, Stream& stream) {
  LayerCall use(plan_.subject, stream, nullptr, linear_.name());
  const std::int64_t tokens = tensors.input.rows;
  plan_for(tensors.input.dtype);
  const NormLinearPlan& plan = plan_;
  const LinearRun run{.stream = stream, .observer = linear_.options_.observer};
  NormLinearForwardTensors all = forward_tensors(tensors);
  saved_stamp_.kept = false;
  if (pass != LinearPass::inference) {
    saved_stamp_.memory = saved_memory_.renew(*backend_, plan.saved_memory(tokens).bytes, stream);
    all.saved = &saved_stamp_;
  }
  all.scratch = use.scratch_or(linear_.workspace(), *backend_,
                               plan.forward_scratch(tokens, pass, linear_.observes_values()).bytes);
  check_norm_linear_pass(plan, *backend_, all, pass, run, true);
  const Float8Linear::Call call(linear_, stream);
  linear_.plan_for(plan.linear.dtypes.input);
  if (pass != LinearPass::recompute) linear_.start_weight(tensors.weight, tokens, stream);
  if (pass != LinearPass::inference) saved_ = tensors;  // before it is kept, whatever fails after that
  watched_forward(plan, *backend_, all, stream,
                  [&] { enqueue_norm_linear_pass(plan, *backend_, all, pass, run, &linear_); });
}

void NormLinear::forward(const NormLinearForward& tensors, Stream& stream) {
  run_pass(tensors.keep_for_backward ? LinearPass::training : LinearPass::inference, tensors, stream);
}

void NormLinear::recompute(const NormLinearForward& tensors, Stream& stream) {
  run_pass(LinearPass::recompute, tensors, stream);
}

void NormLinear::backward(const NormLinearBackward& tensors, Stream& stream) {
  const NormLinearPlan& plan = plan_;
  LayerCall use(plan.subject, stream, nullptr, linear_.name());
  const LinearRun run{.stream = stream, .observer = linear_.options_.observer};
  NormLinearBackwardTensors all = backward_tensors(tensors);
  if (saved_stamp_.kept) {
    all.scratch = use.scratch_or(
        linear_.workspace(), *backend_,
        plan.backward_scratch(saved_stamp_.tokens, wanted_gradients(tensors), linear_.observes_values()).bytes);
  }
  check_norm_linear_backward(plan, *backend_, all, run, true);
  watch_backward(plan, *backend_, all, stream);
  const Float8Linear::Call call(linear_, stream);
  enqueue_norm_linear_backward(plan, *backend_, all, run, &linear_);
}

void NormLinear::release_saved() {
  saved_stamp_.kept = false;
  saved_stamp_.memory = {};
  saved_memory_.give_back();
}

void NormLinear::release() {
  linear_.release();
  saved_memory_ = {};
  saved_stamp_ = {};
}

std::size_t NormLinear::saved_bytes() const {
  return saved_stamp_.kept ? plan_.saved_memory(saved_stamp_.tokens).bytes_of_parts() : 0;
}

}  // namespace ingot
