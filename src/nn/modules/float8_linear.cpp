#include "ingot/nn/modules/float8_linear.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "ingot/nn/linear/layer_call.h"
#include "ingot/nn/linear/linear_checks.h"
#include "ingot/nn/linear/linear_part_calls.h"
#include "ingot/nn/linear/memory_watch.h"
#include "ingot/nn/linear/tensor_checks.h"
#include "ingot/nn/modules/delayed_scaling.h"

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

Float8Linear::Float8Linear(Backend& backend, LinearShape shape, LinearConfig config, LinearOptions options)
    : backend_(&backend),
      options_(std::move(options)),
      // Until a call tells the input's dtype, one that goes with every config.
      plan_(make_plan(shape, config, options_, options_.weight_dtype.value_or(Dtype::bf16))) {
  if (options_.side != nullptr && &options_.side->backend() != backend_) {
    refuse_argument("Float8Linear side", "belongs to another backend than the layer: make it from the layer's backend");
  }
  const auto add_slot = [&](const char* tensor, const std::optional<Cast>& cast, int& slot) {
    if (!cast || cast->scaling != Scaling::delayed) return;
    if (options_.delayed == nullptr) {
      refuse_argument(
          "Float8Linear delayed",
          fmt::format("is missing, but {} has delayed scales: give LinearOptions the model's DelayedScaling", tensor));
    }
    slot = options_.delayed->add(fmt::format("{}.{}", options_.name, tensor), cast->dtype, cast->pow2);
  };
  add_slot("input", plan_.scaling.input, slots_.input);
  add_slot("weight", plan_.scaling.weight, slots_.weight);
  add_slot("grad_output", plan_.scaling.grad_output, slots_.grad_output);
}

void Float8Linear::plan_for(Dtype dtype) {
  if (plan_.dtypes.input == dtype) return;
  LinearPlan made = make_plan(plan_.shape, plan_.config, options_, dtype);
  // Codes of a weight with a dtype of its own are the same for every input's.
  if (made.weight.spec != plan_.weight.spec) weight_is_current_ = false;
  plan_ = std::move(made);
  sizes_ = {};
  saved_stamp_.kept = false;
}

LinearForwardTensors Float8Linear::forward_tensors(const LinearForward& tensors) const {
  return {.input = tensors.input,
          .weight = tensors.weight,
          .bias = tensors.bias,
          .output = tensors.output,
          .prologue_inputs = tensors.prologue_inputs,
          .epilogue_inputs = tensors.epilogue_inputs,
          .codes = codes_};
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
          .codes = codes_};
}

void Float8Linear::check_forward(const LinearForward& tensors, const Stream& stream) const {
  const Dtype dtype = tensors.input.dtype;
  const auto check = [&](const LinearPlan& plan) {
    check_forward_tensors(plan, *backend_, forward_tensors(tensors), stream, true);
  };
  if (dtype == plan_.dtypes.input || !is_high_precision(dtype)) return check(plan_);
  check(make_plan(plan_.shape, plan_.config, options_, dtype));
}

void Float8Linear::check_backward(const LinearBackward& tensors, const Stream& stream) const {
  check_backward_tensors(plan_, *backend_, backward_tensors(tensors), stream);
}

// ---- memory and scales ---------------------------------------------------------------------------------------------

const Float8Linear::Sizes& Float8Linear::sizes(std::int64_t tokens) {
  const bool observed = observes_values();
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

void Float8Linear::make_constants(Stream& stream) {
  if (constant_memory_.data() != nullptr || !plan_.has_constants) return;
  constant_memory_.reserve(*backend_, kLinearConstantBytes, stream);
  constants_ = linear_constants(plan_, *backend_, region_of(constant_memory_), stream);
}

bool Float8Linear::needs_start(int slot) const { return slot >= 0 && options_.delayed->needs_start(slot); }

LinearScale Float8Linear::scale_of(const LinearScale& fixed, int slot) const {
  if (slot < 0 || !options_.delayed->is_allocated()) return fixed;
  return {.scale = options_.delayed->scale(slot), .amax = options_.delayed->amax(slot)};
}

// The first scale comes from the first data that have any.
void Float8Linear::start_scale(int slot, const Tensor& data, Stream& stream) {
  if (needs_start(slot)) options_.delayed->start(slot, data, stream);
}

// Only the first step writes an expression's values for it.
template <class Values>
void Float8Linear::start_scale_of_values(int slot, const Tensor& like, Stream& stream, const Values& values) {
  if (!needs_start(slot)) return;
  OwnerMemory memory;
  Tensor made = matrix(nullptr, like.dtype, like.rows, like.cols, backend_->device());
  made.data = memory.renew(*backend_, byte_span(made, "values"), stream).data;
  values(made);
  start_scale(slot, made, stream);
}

// ---- the weight ----------------------------------------------------------------------------------------------------

bool Float8Linear::weight_is_cast(const Tensor& weight) const {
  return !plan_.weight.any || (weight_is_current_ && weight.data == cast_weight_.data &&
                               weight.dtype == cast_weight_.dtype && weight.row_stride == cast_weight_.row_stride);
}

WeightCastTensors Float8Linear::prepare_weight(const Tensor& weight, Stream& stream) {
  weight_is_current_ = false;
  make_constants(stream);
  start_scale(slots_.weight, weight, stream);
  const MemoryRegion memory = weight_memory_.reserve(*backend_, plan_.weight_memory().bytes, stream);
  codes_ = weight_codes(plan_, memory, backend_->device());
  cast_weight_ = weight;
  return {.weight = weight, .into = memory, .scale = scale_of(constants_.weight, slots_.weight)};
}

WeightCastTensors Float8Linear::list_weight(const Tensor& weight, Stream& stream) {
  weight_is_listed_ = true;
  return prepare_weight(weight, stream);
}

// A cast that is only recorded leaves the codes as they were, and so whose they are.
void Float8Linear::weight_was_cast(const Tensor& weight, const Stream& stream) {
  if (backend_->capturing(stream)) return;
  cast_weight_ = weight;
  weight_is_current_ = true;
}

// ---- the side stream -----------------------------------------------------------------------------------------------

bool Float8Linear::may_use_side(std::int64_t tokens) const {
  const bool is_small = LinearOptions::is_small(tokens, plan_.shape.in_features, plan_.shape.out_features);
  return options_.side != nullptr && is_small && options_.observer == nullptr && !backend_->checks_memory();
}

bool Float8Linear::uses_side(std::int64_t tokens, std::int64_t& most, Stream& stream) {
  if (!may_use_side(tokens) || (tokens > most && backend_->capturing(stream))) return false;
  most = std::max(most, tokens);
  return true;
}

void Float8Linear::join(Stream& stream) {
  if (!is_beside_) return;
  stream.wait_for(*options_.side);
  is_beside_ = false;
}

Float8Linear::Call::~Call() {
  try {
    layer_->join(*stream_);
  } catch (const Error&) {  // the context is broken; the next call reports it
    layer_->is_beside_ = false;
  }
}

// ---- steps ---------------------------------------------------------------------------------------------------------

void Float8Linear::forward(const LinearForward& tensors, Stream& stream) {
  LayerCall use(plan_.subject, stream, nullptr, options_.name);
  check_forward(tensors, stream);
  const Call call(*this, stream);
  plan_for(tensors.input.dtype);
  saved_stamp_.kept = false;  // before the weight's codes change
  LinearForwardTensors all = forward_tensors(tensors);
  start_weight(tensors.weight, tensors.input.rows, stream);
  run_pass(tensors.keep_for_backward ? LinearPass::training : LinearPass::inference, tensors, all, use, stream);
}

void Float8Linear::start_weight(const Tensor& weight, std::int64_t tokens, Stream& stream) {
  if (weight_is_cast(weight)) return;
  // The first delayed scale is computed in the order of the layer's own stream.
  if (needs_start(slots_.weight) || !uses_side(tokens, most_beside_forward_, stream)) return;
  const WeightCastTensors cast = prepare_weight(weight, stream);
  options_.side->wait_for(stream);
  is_beside_ = true;
  enqueue_cast_weight(plan_, *backend_, cast, {.stream = *options_.side});
  weight_is_enqueued(*options_.side);
}

void Float8Linear::before_forward(LinearPass pass, LinearForwardTensors& tensors, Stream& stream) {
  plan_for(tensors.input.dtype);
  const LinearPlan& plan = plan_;
  make_constants(stream);
  if (plan.input_of(pass).any) {
    if (plan.fusion.prologue) {
      start_scale_of_values(slots_.input, tensors.input, stream, [&](const Tensor& values) {
        linear_input_values(plan, *backend_, tensors, values, stream);
      });
    }
    start_scale(slots_.input, tensors.input, stream);
    tensors.scales.input = scale_of(constants_.input, slots_.input);
  }
  if (is_beside_) {
    tensors.codes_from = options_.side;
  } else if (!weight_is_cast(tensors.weight)) {
    const WeightCastTensors weight = prepare_weight(tensors.weight, stream);
    tensors.weight_into = weight.into;
    tensors.scales.weight = weight.scale;
  }
  tensors.codes = codes_;
}

void Float8Linear::after_forward(const LinearForwardTensors& tensors, Stream& stream) {
  is_beside_ = false;
  if (tensors.weight_into) weight_is_enqueued(stream);
}

void Float8Linear::run_pass(LinearPass pass, const LinearForward& tensors, LinearForwardTensors& all, LayerCall& use,
                            Stream& stream) {
  plan_for(tensors.input.dtype);
  saved_stamp_.kept = false;
  const Sizes& bytes = sizes(tensors.input.rows);
  if (pass != LinearPass::inference) {
    saved_stamp_.memory = saved_memory_.renew(*backend_, bytes.saved, stream);
    all.saved = &saved_stamp_;
  }
  all.scratch = use.scratch_or(workspace(), *backend_, bytes.forward[static_cast<std::size_t>(pass)]);
  if (pass != LinearPass::inference) saved_ = tensors;  // before it is kept, whatever fails after that
  watched_forward(plan_, *backend_, all, stream, [&] {
    enqueue_forward_part(plan_, *backend_, all, pass, {.stream = stream, .observer = options_.observer}, this);
  });
}

void Float8Linear::recompute(const LinearForward& tensors, Stream& stream) {
  LinearForward again = tensors;
  again.keep_for_backward = true;
  if (plan_.recomputes_output()) return forward(again, stream);
  LayerCall use(plan_.subject, stream, nullptr, options_.name);
  check_forward(again, stream);
  LinearForwardTensors all = forward_tensors(again);
  run_pass(LinearPass::recompute, again, all, use, stream);
}

void Float8Linear::backward(const LinearBackward& tensors, Stream& stream) {
  LayerCall use(plan_.subject, stream, nullptr, options_.name);
  LinearBackwardTensors all = backward_tensors(tensors);
  check_backward_tensors(plan_, *backend_, all, stream);
  watch_backward(plan_, *backend_, all, stream);
  const Call call(*this, stream);
  const LinearRun run{.stream = stream, .observer = options_.observer};
  const LinearGradients wants = wanted_gradients(all);
  const std::int64_t tokens = saved_stamp_.tokens;
  const bool expands = expands_grad_output(plan_, all);
  all.scratch = use.scratch_or(workspace(), *backend_,
                               expands ? plan_.backward_scratch(tokens, wants, observes_values(), true).bytes
                                       : sizes(tokens).backward[wants.index()]);
  if (expands) all.grad_output = expanded_grad_output(plan_, *backend_, all, run);
  enqueue_backward_part(plan_, *backend_, all, run, this);
  finish_backward_part(run, wants, this);
}

void Float8Linear::start_scales_of_backward(const LinearBackwardTensors& tensors, Stream& stream) {
  const LinearPlan& plan = plan_;
  const LinearGradients wants = wanted_gradients(tensors);
  if (plan.grad_output_of(wants).cast.any) {
    if (plan.fusion.epilogue) {
      start_scale_of_values(slots_.grad_output, tensors.grad_output, stream, [&](const Tensor& values) {
        linear_gradient_values(plan, *backend_, tensors, values, stream);
      });
    }
    start_scale(slots_.grad_output, tensors.grad_output, stream);
  }
  if (wants.input && plan.weight_again.any) start_scale(slots_.weight, tensors.weight, stream);
  if (!wants.weight || !plan.input_again.any) return;
  if (plan.fusion.prologue) {
    start_scale_of_values(slots_.input, tensors.input, stream, [&](const Tensor& values) {
      linear_input_values(plan, *backend_,
                          {.input = tensors.input, .output = {}, .prologue_inputs = tensors.prologue_inputs}, values,
                          stream);
    });
  }
  start_scale(slots_.input, tensors.input, stream);
}

Stream* Float8Linear::before_backward(LinearBackwardTensors& tensors, Stream& stream) {
  const LinearPlan& plan = plan_;
  make_constants(stream);
  start_scales_of_backward(tensors, stream);
  tensors.codes = codes_;
  tensors.scales = {.grad_output = scale_of(constants_.grad_output, slots_.grad_output), .one = constants_.one};
  if (plan.input_again.any) tensors.scales.input = scale_of(constants_.input, slots_.input);
  if (plan.weight_again.any) tensors.scales.weight = scale_of(constants_.weight, slots_.weight);
  const LinearGradients wants = wanted_gradients(tensors);
  const std::int64_t tokens = tensors.saved->tokens;
  const bool small = wants.input && wants.weight && may_use_side(tokens);
  is_beside_ =
      small && !multiplies_together(plan, *backend_, tensors) && uses_side(tokens, most_beside_backward_, stream);
  // The weight's cast, which a forward runs there, needs no more memory for more tokens.
  if (small && !backend_->capturing(stream)) most_beside_forward_ = std::max(most_beside_forward_, tokens);
  return is_beside_ ? options_.side : nullptr;
}

void Float8Linear::release_saved() {
  saved_stamp_.kept = false;
  saved_stamp_.memory = {};
  saved_memory_.give_back();
}

void Float8Linear::release() {
  saved_stamp_ = {};
  saved_memory_ = {};
  if (weight_is_listed_) return;
  weight_is_current_ = false;
  weight_memory_ = {};
  codes_ = {};
}

std::size_t Float8Linear::saved_bytes() const {
  if (!saved_stamp_.kept) return 0;
  return plan_.saved_memory(saved_stamp_.tokens).bytes_of_parts();
}

}  // namespace ingot
