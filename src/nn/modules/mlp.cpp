#include "ingot/nn/modules/mlp.h"

#include "ingot/nn/linear/layer_call.h"
#include "ingot/nn/modules/module_parts.h"

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

LinearOptions layer_options(const MlpOptions& options, const LinearPlan& plan) {
  return {.name = plan.name,
          .weight_dtype = options.weight_dtype,
          .delayed = options.delayed,
          .observer = options.observer,
          .side = options.side};
}

}  // namespace

Mlp::Mlp(Backend& backend, MlpShape shape, LinearConfig config, const MlpOptions& options)
    : plan_options_(plan_options(shape, config, options)),
      plan_(mlp_plan(plan_options_)),
      shared_workspace_(options.workspace),
      up_(backend, layer_options(options, plan_.up.linear)),
      down_(backend, layer_options(options, plan_.down)) {
  LinearOwner::add_slots({{&up_, &plan_.up.linear}, {&down_, &plan_.down}});
}

void Mlp::plan_for(Dtype input) {
  if (input == plan_options_.dtypes.input || !is_high_precision(input)) return;
  MlpPlanOptions options = plan_options_;
  options.dtypes.input = input;
  MlpPlan made = mlp_plan(options);
  up_.plan_changes(plan_.up.linear, made.up.linear);
  down_.plan_changes(plan_.down, made.down);
  plan_ = std::move(made);
  plan_options_ = std::move(options);
  saved_stamp_.kept = false;
}

std::array<OwnedLinear, 2> Mlp::linears_of(Dtype weight) {
  if (!up_.options().weight_dtype) plan_for(weight);
  return {OwnedLinear{&up_, &plan_.up.linear}, OwnedLinear{&down_, &plan_.down}};
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
  return {.saved = &saved_stamp_,
          .grad_output = tensors.grad_output,
          .grad_input = tensors.grad_input,
          .grad_gamma = tensors.grad_gamma,
          .grad_beta = tensors.grad_beta,
          .accumulate = tensors.accumulate,
          .input = saved_.input,
          .gamma = saved_.gamma,
          .beta = saved_.beta,
          .up = {.grad_weight = tensors.grad_up_weight,
                 .grad_bias = tensors.grad_up_bias,
                 .weight = saved_.up_weight,
                 .codes = up_.codes()},
          .down = {.grad_weight = tensors.grad_down_weight,
                   .grad_bias = tensors.grad_down_bias,
                   .weight = saved_.down_weight,
                   .codes = down_.codes()}};
}

void Mlp::run_pass(LinearPass pass, const MlpForward& tensors, Stream& stream) {
  LayerCall use(plan_.subject, stream, nullptr, plan_.name);
  Backend& backend = up_.backend();
  const std::int64_t tokens = tensors.input.rows;
  plan_for(tensors.input.dtype);
  const LinearRun run = up_.run_on(stream);
  MlpForwardTensors all = forward_tensors(tensors);
  saved_stamp_.kept = false;
  if (pass != LinearPass::inference) {
    saved_stamp_.memory = saved_memory_.renew(backend, plan_.saved_memory(tokens).bytes, stream);
    all.saved = &saved_stamp_;
  }
  all.scratch = use.scratch_or(workspace(), backend, plan_.forward_scratch(tokens, pass, up_.observes_values()).bytes);
  check_mlp_tensors(plan_, backend, all, pass, run);
  const LinearOwner::Call first(up_, stream);
  const LinearOwner::Call second(down_, stream);
  if (pass != LinearPass::recompute) {
    up_.start_weight(plan_.up.linear, tensors.up_weight, tokens, stream);
    down_.start_weight(plan_.down, tensors.down_weight, tokens, stream);
  }
  if (pass != LinearPass::inference) saved_ = tensors;  // before it is kept, whatever fails after that
  watched_forward(plan_, backend, all, stream, [&] {
    up_.before_forward(plan_.up.linear, pass_of_up(pass), tokens, all.up, stream);
    down_.before_forward(plan_.down, pass, tokens, all.down, stream);
    enqueue_mlp_pass(plan_, backend, all, pass, run);
    up_.after_forward(all.up, stream);
    down_.after_forward(all.down, stream);
  });
}

void Mlp::forward(const MlpForward& tensors, Stream& stream) {
  run_pass(tensors.keep_for_backward ? LinearPass::training : LinearPass::inference, tensors, stream);
}

void Mlp::recompute(const MlpForward& tensors, Stream& stream) { run_pass(LinearPass::recompute, tensors, stream); }

void Mlp::backward(const MlpBackward& tensors, Stream& stream) {
  LayerCall use(plan_.subject, stream, nullptr, plan_.name);
  Backend& backend = up_.backend();
  const std::int64_t tokens = saved_stamp_.tokens;
  MlpBackwardTensors all = backward_tensors(tensors);
  const MlpGradients wants = wanted_gradients(all);
  if (saved_stamp_.kept) {
    all.scratch =
        use.scratch_or(workspace(), backend, plan_.backward_scratch(tokens, wants, up_.observes_values()).bytes);
  }
  check_mlp_tensors(plan_, backend, all, up_.run_on(stream));
  watch_backward(plan_, backend, all, stream);
  const LinearOwner::Call second(down_, stream);
  const LinearOwner::Call first(up_, stream);
  const LinearRun down =
      down_.run_on(stream, down_.before_backward(plan_.down, wants.of_down(), gradient_dtypes_of_down(plan_, all),
                                                 tokens, all.down.scales, stream));
  LinearRun up = up_.run_on(stream);
  if (wants.reaches_up()) {
    up.side = up_.before_backward(plan_.up.linear, wants.of_up(), gradient_dtypes_of_up(plan_, all), tokens,
                                  all.up.scales, stream);
  }
  enqueue_mlp_backward(plan_, backend, all, down, up);
  down_.after_backward(stream);
  if (!wants.reaches_up()) return;
  down_.joined();
  up_.after_backward(stream);
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
