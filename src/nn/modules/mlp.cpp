#include "ingot/nn/modules/mlp.h"

#include "ingot/nn/linear/layer_call.h"
#include "ingot/nn/modules/mlp_parts.h"

namespace ingot {
namespace {

MlpPlanOptions plan_options(const MlpShape& shape, const LinearConfig& config, const MlpOptions& options) {
  return {.name = options.name,
          .config = config,
          .shape = shape,
          // Until a call tells the input's dtype, one that goes with every config.
          .dtypes = {.input = options.weight_dtype.value_or(Dtype::bf16),
                     .weight = options.weight_dtype,
                     .bias = options.bias_dtype,
                     .output = options.output_dtype},
          .activation = options.activation,
          .fast_math = options.fast_math,
          .norm = options.norm,
          .subject = options.subject,
          .layer_subject = "Float8Linear"};
}

LinearOptions layer_options(const MlpOptions& options, const LinearPlan& plan, std::optional<Dtype> output = {}) {
  return {.name = plan.name,
          .fusion = plan.fusion,
          .weight_dtype = options.weight_dtype,
          .bias_dtype = options.bias_dtype,
          .output_dtype = output,
          .delayed = options.delayed,
          .observer = options.observer,
          .side = options.side};
}

}  // namespace

Mlp::Mlp(Backend& backend, MlpShape shape, LinearConfig config, const MlpOptions& options)
    : backend_(&backend),
      plan_options_(plan_options(shape, config, options)),
      plan_(mlp_plan(plan_options_)),
      shared_workspace_(options.workspace),
      up_(backend, plan_.up.linear.shape, plan_.up.linear.config, layer_options(options, plan_.up.linear)),
      down_(backend, plan_.down.shape, plan_.down.config, layer_options(options, plan_.down, options.output_dtype)) {}

// What is kept is of another plan then; a forward, which begins with this, forgets it.
void Mlp::plan_for(Dtype dtype) {
  if (dtype == plan_options_.dtypes.input || !is_high_precision(dtype)) return;
  MlpPlanOptions options = plan_options_;
  options.dtypes.input = dtype;
  plan_ = mlp_plan(options);
  plan_options_ = std::move(options);
}

MlpForwardTensors Mlp::forward_tensors(const MlpForward& tensors) {
  return {.input = tensors.input,
          .gamma = tensors.gamma,
          .beta = tensors.beta,
          .output = tensors.output,
          .up = {.weight = tensors.up_weight, .bias = tensors.up_bias},
          .down = {.weight = tensors.down_weight, .bias = tensors.down_bias}};
}

MlpBackwardTensors Mlp::backward_tensors(const MlpBackward& tensors) const {
  return {
      .saved = &saved_stamp_,
      .grad_output = tensors.grad_output,
      .grad_input = tensors.grad_input,
      .grad_gamma = tensors.grad_gamma,
      .grad_beta = tensors.grad_beta,
      .accumulate = tensors.accumulate,
      .input = saved_.input,
      .gamma = saved_.gamma,
      .beta = saved_.beta,
      .up = {.grad_weight = tensors.grad_up_weight, .grad_bias = tensors.grad_up_bias, .weight = saved_.up_weight},
      .down = {
          .grad_weight = tensors.grad_down_weight, .grad_bias = tensors.grad_down_bias, .weight = saved_.down_weight}};
}

void Mlp::run_pass(LinearPass pass, const MlpForward& tensors, Stream& stream) {
  LayerCall use(plan_.subject, stream, nullptr, plan_.name);
  const std::int64_t tokens = tensors.input.rows;
  plan_for(tensors.input.dtype);
  const MlpPlan& plan = plan_;
  MlpForwardTensors all = forward_tensors(tensors);
  saved_stamp_.kept = false;
  if (pass != LinearPass::inference) {
    saved_stamp_.memory = saved_memory_.renew(*backend_, plan.saved_memory(tokens).bytes, stream);
    all.saved = &saved_stamp_;
  }
  all.scratch = use.scratch_or(workspace(), *backend_, plan.forward_scratch(tokens, pass, up_.observes_values()).bytes);
  check_mlp_pass(plan, *backend_, all, pass, run_on(stream), true);
  const Float8Linear::Call first(up_, stream);
  const Float8Linear::Call second(down_, stream);
  up_.plan_for(plan.down.dtypes.input);
  down_.plan_for(plan.down.dtypes.input);
  if (pass != LinearPass::recompute) {
    up_.start_weight(tensors.up_weight, tokens, stream);
    down_.start_weight(tensors.down_weight, tokens, stream);
  }
  if (pass != LinearPass::inference) saved_ = tensors;  // before it is kept, whatever fails after that
  watched_forward(plan, *backend_, all, stream, [&] {
    enqueue_mlp_pass(plan, *backend_, all, pass, run_on(stream), {&up_, &down_});
  });
}

void Mlp::forward(const MlpForward& tensors, Stream& stream) {
  run_pass(tensors.keep_for_backward ? LinearPass::training : LinearPass::inference, tensors, stream);
}

void Mlp::recompute(const MlpForward& tensors, Stream& stream) { run_pass(LinearPass::recompute, tensors, stream); }

void Mlp::backward(const MlpBackward& tensors, Stream& stream) {
  const MlpPlan& plan = plan_;
  LayerCall use(plan.subject, stream, nullptr, plan.name);
  MlpBackwardTensors all = backward_tensors(tensors);
  if (saved_stamp_.kept) {
    all.scratch =
        use.scratch_or(workspace(), *backend_,
                       plan.backward_scratch(saved_stamp_.tokens, wanted_gradients(all), up_.observes_values()).bytes);
  }
  check_mlp_backward(plan, *backend_, all, run_on(stream), true);
  watch_backward(plan, *backend_, all, stream);
  const Float8Linear::Call second(down_, stream);
  const Float8Linear::Call first(up_, stream);
  enqueue_mlp_backward(plan, *backend_, all, run_on(stream), {&up_, &down_});
}

void Mlp::weights_changed() {
  up_.weight_changed();
  down_.weight_changed();
}

void Mlp::release_saved() {
  saved_stamp_.kept = false;
  saved_stamp_.memory = {};
  saved_memory_.give_back();
}

void Mlp::release() {
  up_.release();
  down_.release();
  saved_memory_ = {};
  saved_stamp_ = {};
}

std::size_t Mlp::saved_bytes() const {
  return saved_stamp_.kept ? plan_.saved_memory(saved_stamp_.tokens).bytes_of_parts() : 0;
}

}  // namespace ingot
