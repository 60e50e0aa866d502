#include "ingot/nn/modules/float8_linear.h"

#include <utility>

#include "ingot/nn/linear/layer_call.h"
#include "ingot/nn/linear/linear_checks.h"
#include "ingot/nn/linear/memory_watch.h"
#include "ingot/nn/linear/tensor_checks.h"

namespace ingot {
namespace {

LinearPlan make_plan(const LinearShape& shape, const LinearConfig& config, const LinearOptions& options, Dtype input) {
  return linear_plan({.name = options.name,
                      .config = config,
                      .shape = shape,
                      .dtypes = {.input = input,
                                 .weight = options.weight_dtype,
                                 .bias = options.bias_dtype,
                                 .output = options.output_dtype},
                      .fusion = options.fusion,
                      .subject = "Float8Linear",
                      .fused_products = options.fused_products});
}

}  // namespace

// Until a call tells the input's dtype, the plan is for one that goes with every config.
Float8Linear::Float8Linear(Backend& backend, LinearShape shape, LinearConfig config, LinearOptions options)
    : plan_(make_plan(shape, config, options, options.weight_dtype.value_or(Dtype::bf16))),
      owner_(backend, std::move(options)) {
  LinearOwner::add_slots({{&owner_, &plan_}});
}

std::optional<LinearPlan> Float8Linear::other_plan(Dtype input) const {
  if (input == plan_.dtypes.input || !is_high_precision(input)) return std::nullopt;
  return make_plan(plan_.shape, plan_.config, owner_.options(), input);
}

void Float8Linear::use(std::optional<LinearPlan> plan) {
  if (!plan) return;
  owner_.plan_changes(plan_, *plan);
  plan_ = *std::move(plan);
  sizes_ = {};
  saved_stamp_.kept = false;
}

OwnedLinear Float8Linear::linear_of(Dtype weight) {
  if (!owner_.options().weight_dtype) use(other_plan(weight));
  return {&owner_, &plan_};
}

LinearForwardTensors Float8Linear::forward_tensors(const LinearForward& tensors) const {
  return {.input = tensors.input,
          .weight = tensors.weight,
          .bias = tensors.bias,
          .output = tensors.output,
          .prologue_inputs = tensors.prologue_inputs,
          .epilogue_inputs = tensors.epilogue_inputs,
          .codes = owner_.codes()};
}

LinearBackwardTensors Float8Linear::backward_tensors(const LinearBackward& tensors) const {
  return {.saved = &saved_stamp_,
          .grad_output = tensors.grad_output,
          .grad_input = tensors.grad_input,
          .grad_weight = tensors.grad_weight,
          .grad_bias = tensors.grad_bias,
          .accumulate = tensors.accumulate,
          .input = saved_.input,
          .weight = saved_.weight,
          .output = saved_.output,
          .prologue_inputs = saved_.prologue_inputs,
          .epilogue_inputs = saved_.epilogue_inputs,
          .codes = owner_.codes()};
}

const Float8Linear::Sizes& Float8Linear::sizes(std::int64_t tokens) {
  const bool observed = owner_.observes_values();
  if (sizes_.tokens == tokens && sizes_.observed == observed) return sizes_;
  Sizes made{.tokens = tokens, .observed = observed, .saved = plan_.saved_memory(tokens).bytes};
  for (const LinearPass pass : {LinearPass::training, LinearPass::inference, LinearPass::recompute}) {
    made.forward[static_cast<std::size_t>(pass)] = plan_.forward_scratch(tokens, pass, observed).bytes;
  }
  for (std::size_t i = 0; i < made.backward.size(); ++i) {
    made.backward[i] = plan_.backward_scratch(tokens, LinearGradients::at(i), observed).bytes;
  }
  return sizes_ = made;
}

void Float8Linear::run_pass(LinearPass asked, const LinearForward& tensors, Stream& stream) {
  LayerCall use_of_stream(plan_.subject, stream, nullptr, name());
  Backend& backend = owner_.backend();
  const LinearPass pass = plan_.effective(asked);
  std::optional<LinearPlan> other = other_plan(tensors.input.dtype);
  LinearForwardTensors all = forward_tensors(tensors);
  check_forward_tensors(other ? *other : plan_, backend, all, stream, true);
  const LinearOwner::Call call(owner_, stream);
  use(std::move(other));
  saved_stamp_.kept = false;  // before the weight's codes change
  const std::int64_t tokens = tensors.input.rows;
  if (pass != LinearPass::recompute) owner_.start_weight(plan_, tensors.weight, tokens, stream);
  const Sizes& bytes = sizes(tokens);
  if (pass != LinearPass::inference) {
    saved_stamp_.memory = saved_memory_.renew(backend, bytes.saved, stream);
    all.saved = &saved_stamp_;
    saved_ = tensors;  // before it is kept, whatever fails after that
  }
  all.scratch = use_of_stream.scratch_or(owner_.workspace(), backend, bytes.forward[static_cast<std::size_t>(pass)]);
  watched_forward(plan_, backend, all, stream, [&] {
    owner_.before_forward(plan_, pass, tokens, all, stream);
    enqueue_linear_pass(plan_, backend, all, pass, owner_.run_on(stream));
    owner_.after_forward(all, stream);
  });
}

void Float8Linear::forward(const LinearForward& tensors, Stream& stream) {
  run_pass(tensors.keep_for_backward ? LinearPass::training : LinearPass::inference, tensors, stream);
}

void Float8Linear::recompute(const LinearForward& tensors, Stream& stream) {
  run_pass(LinearPass::recompute, tensors, stream);
}

void Float8Linear::backward(const LinearBackward& tensors, Stream& stream) {
  LayerCall use_of_stream(plan_.subject, stream, nullptr, name());
  Backend& backend = owner_.backend();
  LinearBackwardTensors all = backward_tensors(tensors);
  check_backward_tensors(plan_, backend, all, stream);
  watch_backward(plan_, backend, all, stream);
  const LinearOwner::Call call(owner_, stream);
  const LinearGradients wants = wanted_gradients(all);
  const std::int64_t tokens = saved_stamp_.tokens;
  const bool expands = expands_grad_output(plan_, all);
  all.scratch =
      use_of_stream.scratch_or(owner_.workspace(), backend,
                               expands ? plan_.backward_scratch(tokens, wants, owner_.observes_values(), true).bytes
                                       : sizes(tokens).backward[wants.index()]);
  Stream* const side = owner_.before_backward(plan_, wants, gradient_dtypes(all), tokens, all.scales, stream);
  enqueue_linear_backward(plan_, backend, all, owner_.run_on(stream, side));
  owner_.after_backward(stream);
  owner_.join(stream);
}

void Float8Linear::release_saved() {
  saved_stamp_.kept = false;
  saved_stamp_.memory = {};
  saved_memory_.give_back();
}

void Float8Linear::release() {
  saved_stamp_ = {};
  saved_memory_ = {};
  owner_.release();
}

std::size_t Float8Linear::saved_bytes() const {
  if (!saved_stamp_.kept) return 0;
  return plan_.saved_memory(saved_stamp_.tokens).bytes_of_parts();
}

}  // namespace ingot
