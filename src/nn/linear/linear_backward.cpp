// The backward of linear_functions.h, and what it reads again or writes out first.
#include "ingot/nn/linear/float8_tensor.h"
#include "ingot/nn/linear/layer_call.h"
#include "ingot/nn/linear/linear_checks.h"
#include "ingot/nn/linear/linear_functions.h"
#include "ingot/nn/linear/linear_step.h"
#include "ingot/nn/linear/memory_watch.h"
#include "ingot/nn/linear/tensor_checks.h"

namespace ingot {
namespace {

Tensor element(const Tensor& of, std::int64_t index) {
  if (of.data == nullptr) return {};
  return vector(static_cast<float*>(of.data) + index, Dtype::f32, 1, of.device);
}

const Tensor& gradient_x(const LinearPlan& plan, const LinearBackwardTensors& t, const Tensor& preactivation) {
  if (plan.gradient.of_output()) return t.output;
  return plan.needs_preactivation() ? preactivation : t.grad_output;
}

struct BackwardMemory {
  BackwardMemory(const LinearStep& step, const LinearBackwardTensors& t)
      : wants(wanted_gradients(t)),
        scratch(step.plan.backward_scratch(t.saved->tokens, wants, step.observes_values)),
        saved(step.plan.saved_memory(t.saved->tokens)) {}

  LinearGradients wants;
  LinearBackwardScratch scratch;
  LinearSavedMemory saved;
};

// grad_output's values for GEMMs in high precision: itself, or times the epilogue's derivative.
struct GradOutput {
  Tensor values;
  bool is_summed = false;  // the cast has already summed the bias' gradient
};

void fold_and_cast(const LinearStep& step, const LinearBackwardTensors& t, const BackwardMemory& memory,
                   const Tensor& values) {
  const LinearPlan& plan = step.plan;
  const Device device = step.device();
  const LinearBackwardScratch& scratch = memory.scratch;
  const Tensor observed = scratch.observed.in(t.scratch, device);
  if (scratch.codes.used) {
    CastTensors tensors{.input = values,
                        .codes = scratch.codes.in(t.scratch, device),
                        .scale_inv = scratch.scale_inv.in(t.scratch, device)};
    if (plan.folded_codes.spec.pointwise) tensors.inputs = {t.codes.scale_inv};
    cast(step, {"grad_output", "grad_input", ""}, plan.folded_codes.spec, tensors, observed, step.run.stream);
  }
  if (scratch.transposed.used) {
    CastTensors tensors{.input = values,
                        .transposed = scratch.transposed.in(t.scratch, device),
                        .scale_inv = scratch.transposed_scale_inv.in(t.scratch, device)};
    if (plan.folded_transposed.spec.pointwise) {
      tensors.inputs = {plan.given_input.any ? t.given_input.transposed_scale_inv
                                             : memory.saved.input_scale_inv.in(t.saved->memory, device)};
    }
    cast(step, {"grad_output", "", "grad_weight"}, plan.folded_transposed.spec, tensors, observed, step.run.stream);
  }
}

// The scale_inv of the one cast of grad_output.
Tensor grad_output_scale_inv(const LinearStep& step, const LinearBackwardTensors& t, const BackwardMemory& memory) {
  return scale_inv_by_group(memory.scratch.scale_inv.in(t.scratch, step.device()),
                            step.plan.grad_output_of(memory.wants).cast.spec.scale, t.saved->tokens,
                            step.plan.shape.out_features);
}

// The one cast of grad_output for both GEMMs, with the epilogue's gradient in front.
void cast_for_both(const LinearStep& step, const LinearBackwardTensors& t, const BackwardMemory& memory,
                   const LinearGradOutputCast& order, const Tensor& values) {
  const LinearPlan& plan = step.plan;
  const Device device = step.device();
  const LinearBackwardScratch& scratch = memory.scratch;
  CastTensors tensors{.input = t.grad_output,
                      .codes = scratch.codes.in(t.scratch, device),
                      .transposed = scratch.transposed.in(t.scratch, device),
                      .scale_inv = grad_output_scale_inv(step, t, memory),
                      .transposed_scale_inv = scratch.transposed_scale_inv.in(t.scratch, device),
                      .known_amax = t.grad_output_amax};
  if (plan.fusion.epilogue) {
    tensors.input = gradient_x(plan, t, memory.saved.preactivation.in(t.saved->memory, device));
    tensors.inputs = plan.gradient.inputs(t.grad_output, t.epilogue_inputs);
  }
  if (order.values) tensors.result = values;
  give_scale(step, tensors, order.cast, t.scales.grad_output, element(scratch.amaxes.in(t.scratch, device), 0),
             step.run.stream);
  const LinearCastNames names{"grad_output", "grad_input", "grad_weight"};
  const Tensor observed = scratch.observed.in(t.scratch, device);
  if (!order.sums) return cast(step, names, order.cast.spec, tensors, observed, step.run.stream);
  CastSpec summing = order.cast.spec;
  summing.sum = t.grad_bias.dtype;
  tensors.sum = t.grad_bias;
  cast(step, names, summing, tensors, observed, step.run.stream);
}

void write_gradient_values(const LinearStep& step, const LinearBackwardTensors& t, const BackwardMemory& memory,
                           const Tensor& values) {
  const LinearPlan& plan = step.plan;
  const Tensor preactivation = memory.saved.preactivation.in(t.saved->memory, step.device());
  step.backend.elementwise(plan.gradient_values,
                           {.input = gradient_x(plan, t, preactivation),
                            .inputs = plan.gradient.inputs(t.grad_output, t.epilogue_inputs),
                            .output = values},
                           step.run.stream);
}

GradOutput cast_grad_output(const LinearStep& step, const LinearBackwardTensors& t, const BackwardMemory& memory) {
  if (t.grad_output_is_cast) return {.values = t.grad_output};
  const LinearPlan& plan = step.plan;
  const LinearGradOutputCast& order = plan.grad_output_of(memory.wants);
  const Tensor values = order.values ? memory.scratch.values.in(t.scratch, step.device()) : t.grad_output;
  if (order.cast.any) {
    cast_for_both(step, t, memory, order, values);
  } else if (order.values) {
    write_gradient_values(step, t, memory, values);
  }
  if (order.folds) fold_and_cast(step, t, memory, values);
  return {.values = values, .is_summed = order.sums};
}

Tensor cast_input_again(const LinearStep& step, const LinearBackwardTensors& t, const BackwardMemory& memory,
                        Stream& stream) {
  const Device device = step.device();
  const LinearCast& order = step.plan.input_again;
  const LinearBackwardScratch& scratch = memory.scratch;
  CastTensors tensors{.input = t.input,
                      .transposed = scratch.input_transposed.in(t.scratch, device),
                      .scale_inv = scratch.input_scale_inv.in(t.scratch, device),
                      .inputs = t.prologue_inputs};
  give_scale(step, tensors, order, t.scales.input, element(scratch.amaxes.in(t.scratch, device), 1), stream);
  cast(step, {"input", "output", "grad_weight"}, order.spec, tensors, scratch.observed_input.in(t.scratch, device),
       stream);
  return tensors.scale_inv;
}

Tensor cast_weight_again(const LinearStep& step, const LinearBackwardTensors& t, const BackwardMemory& memory) {
  const Device device = step.device();
  const LinearCast& order = step.plan.weight_again;
  const LinearBackwardScratch& scratch = memory.scratch;
  CastTensors tensors{.input = t.weight,
                      .transposed = scratch.weight_transposed.in(t.scratch, device),
                      .scale_inv = scratch.weight_scale_inv.in(t.scratch, device)};
  give_scale(step, tensors, order, t.scales.weight, element(scratch.amaxes.in(t.scratch, device), 2), step.run.stream);
  cast(step, {"weight", "", "grad_input"}, order.spec, tensors, {}, step.run.stream);
  return tensors.scale_inv;
}

GemmSpec grad_input_spec(const LinearPlan& plan, Dtype out, bool adds) {
  GemmSpec spec = plan.grad_input_gemm;
  spec.out = out;
  if (adds) spec.epilogue.c = out;
  return spec;
}

GemmSpec grad_weight_spec(const LinearPlan& plan, Dtype out, bool accumulate) {
  GemmSpec spec = plan.grad_weight_gemm;
  spec.out = out;
  if (accumulate) spec.epilogue.c = out;
  return spec;
}

// grad_input[M, K] = grad_output[M, N] @ weight[N, K]: the sum runs over the weight's rows
GemmWork grad_input_work(const LinearStep& step, const LinearBackwardTensors& t, const BackwardMemory& memory,
                         const GradOutput& grad_output) {
  const LinearPlan& plan = step.plan;
  const Device device = step.device();
  GemmWork work{.spec = grad_input_spec(plan, t.grad_input.dtype, is_given(t.grad_input_of_others)),
                .tensors = {.a = grad_output.values, .b = t.weight, .out = t.grad_input, .c = t.grad_input_of_others}};
  if (!is_float8(plan.config.grad_input)) return work;
  GemmTensors& gemm = work.tensors;
  Tensor scale_inv = plan.weight.spec.transposed_scale ? t.codes.transposed_scale_inv : t.codes.scale_inv;
  gemm.b = t.codes.transposed;
  if (plan.weight_again.any) {
    const bool given = is_given(t.codes.transposed);
    scale_inv = given ? t.codes.transposed_scale_inv : cast_weight_again(step, t, memory);
    if (!given) gemm.b = memory.scratch.weight_transposed.in(t.scratch, device);
  }
  gemm.a = memory.scratch.codes.in(t.scratch, device);
  gemm.scale_inv_a = grad_output_scale_inv(step, t, memory);
  gemm.scale_inv_b = plan.config.weight == OtherCodes::folded
                         ? t.scales.one
                         : transposed_scale_inv(scale_inv, transposed(plan.config.grad_input.b->granularity),
                                                plan.shape.out_features, plan.shape.in_features);
  return work;
}

// The operands of grad_weight's GEMM in FP8.
void give_codes(const LinearStep& step, const LinearBackwardTensors& t, const BackwardMemory& memory, GemmTensors& gemm,
                Stream& stream) {
  const LinearPlan& plan = step.plan;
  const Device device = step.device();
  const LinearBackwardScratch& scratch = memory.scratch;
  const std::int64_t tokens = t.saved->tokens;
  Tensor scale_inv = memory.saved.input_scale_inv.in(t.saved->memory, device);
  gemm.b = memory.saved.input_transposed.in(t.saved->memory, device);
  if (plan.given_input.any) {
    scale_inv = t.given_input.transposed_scale_inv;
    gemm.b = t.given_input.transposed;
  }
  if (plan.input_again.any) {
    scale_inv = cast_input_again(step, t, memory, stream);
    gemm.b = scratch.input_transposed.in(t.scratch, device);
  }
  const bool apart = plan.grad_output_of(memory.wants).apart;
  gemm.a = scratch.transposed.in(t.scratch, device);
  gemm.scale_inv_a =
      transposed_scale_inv((apart ? scratch.transposed_scale_inv : scratch.scale_inv).in(t.scratch, device),
                           transposed(plan.config.grad_weight.a->granularity), tokens, plan.shape.out_features);
  gemm.scale_inv_b = plan.config.input == OtherCodes::folded
                         ? t.scales.one
                         : transposed_scale_inv(scale_inv, transposed(plan.config.grad_weight.b->granularity), tokens,
                                                plan.shape.in_features);
}

// grad_weight[N, K] = grad_output[M, N]^T @ input[M, K]: the sum runs over the rows of both
GemmWork grad_weight_work(const LinearStep& step, const LinearBackwardTensors& t, const BackwardMemory& memory,
                          const GradOutput& grad_output, Stream& stream) {
  const LinearPlan& plan = step.plan;
  GemmWork work{.spec = grad_weight_spec(plan, t.grad_weight.dtype, t.accumulate),
                .tensors = {.a = grad_output.values, .b = t.input, .out = t.grad_weight}};
  if (t.accumulate) work.tensors.c = t.grad_weight;
  if (is_float8(plan.config.grad_weight)) {
    give_codes(step, t, memory, work.tensors, stream);
  } else if (plan.keeps_values()) {
    work.tensors.b = memory.saved.input_values.in(t.saved->memory, step.device());
  }
  return work;
}

// `side`: where grad_weight's work goes, if not after grad_input's.
void multiply_apart(const LinearStep& step, const LinearBackwardTensors& t, const BackwardMemory& memory,
                    const GradOutput& grad_output, Stream* side) {
  const std::string& layer = step.plan.name;
  if (memory.wants.input) {
    const ObservedRange range(step.run.observer, layer, "grad_input");
    const GemmWork work = grad_input_work(step, t, memory, grad_output);
    multiply(step, "grad_input", work.spec, work.tensors, step.run.stream);
  }
  if (memory.wants.weight) {
    Stream& stream = side != nullptr ? *side : step.run.stream;
    const ObservedRange range(step.run.observer, layer, "grad_weight");
    const GemmWork work = grad_weight_work(step, t, memory, grad_output, stream);
    multiply(step, "grad_weight", work.spec, work.tensors, stream);
  }
}

void multiply_grad_output(const LinearStep& step, const LinearBackwardTensors& t, const BackwardMemory& memory,
                          const GradOutput& grad_output) {
  Stream& stream = step.run.stream;
  Stream* const side = step.run.side_for(memory.wants);
  if (side != nullptr) side->wait_for(stream);
  if (!multiplies_together(step.plan, step.backend, t)) return multiply_apart(step, t, memory, grad_output, side);
  const ObservedRange range(step.run.observer, step.plan.name, "grad_input and grad_weight");
  const GemmWork grad_input = grad_input_work(step, t, memory, grad_output);
  const GemmWork grad_weight = grad_weight_work(step, t, memory, grad_output, stream);
  step.backend.gemm_pair(grad_input, grad_weight, stream);
  report(step, "grad_input", grad_input.spec, grad_input.tensors, stream);
  report(step, "grad_weight", grad_weight.spec, grad_weight.tensors, stream);
}

}  // namespace

Float8View linear_grad_output_codes(const LinearPlan& plan, std::int64_t tokens, const LinearGradients& wants,
                                    const MemoryRegion& scratch, Device device) {
  const LinearBackwardScratch places = plan.backward_scratch(tokens, wants);
  const Tensor scale_inv = places.scale_inv.in(scratch, device);
  const bool apart = plan.grad_output_of(wants).apart;
  return {.codes = places.codes.in(scratch, device),
          .transposed = places.transposed.in(scratch, device),
          .scale_inv = scale_inv,
          .transposed_scale_inv = apart ? places.transposed_scale_inv.in(scratch, device) : scale_inv};
}

bool multiplies_together(const LinearPlan& plan, Backend& backend, std::int64_t tokens,
                         const LinearGradientDtypes& gradients) {
  if (!gradients.input || !gradients.weight) return false;
  const auto [in, out, bias] = plan.shape;
  return backend.pairs({.spec = grad_input_spec(plan, *gradients.input, gradients.adds_to_input),
                        .size = {.m = tokens, .n = in, .k = out}},
                       {.spec = grad_weight_spec(plan, *gradients.weight, gradients.accumulate),
                        .size = {.m = out, .n = in, .k = tokens}});
}

bool multiplies_together(const LinearPlan& plan, Backend& backend, const LinearBackwardTensors& tensors) {
  return tensors.saved != nullptr &&
         multiplies_together(plan, backend, tensors.saved->tokens, gradient_dtypes(tensors));
}

namespace {

// One element to a row, which is a column of as many rows, and the row to all rows.
Tensor expanded_grad_output(const LinearStep& step, const LinearBackwardTensors& tensors) {
  const LinearPlan& plan = step.plan;
  const Device device = step.device();
  const LinearBackwardScratch scratch =
      plan.backward_scratch(tensors.saved->tokens, wanted_gradients(tensors), step.observes_values, true);
  const Tensor all = scratch.expanded.in(tensors.scratch, device);
  const Tensor row = scratch.expanded_row.in(tensors.scratch, device);
  const Tensor column = matrix(row.data, row.dtype, row.cols, 1, device);
  const auto repeat = [&](const Tensor& one, const Tensor& to) {
    Tensor shape = to;  // the expression reads no x
    shape.data = nullptr;
    step.backend.elementwise(plan.repeated, {.input = shape, .inputs = {one}, .output = to}, step.run.stream);
  };
  repeat(tensors.grad_output, column);
  repeat(row, all);
  return all;
}

void enqueue(const LinearStep& step, const LinearBackwardTensors& t) {
  const BackwardMemory memory(step, t);
  const GradOutput grad_output = cast_grad_output(step, t, memory);
  multiply_grad_output(step, t, memory, grad_output);
  // grad_bias[N] = the sum over grad_output's rows
  if (!memory.wants.bias || grad_output.is_summed) return;
  step.backend.column_sum({.in = grad_output.values.dtype, .out = t.grad_bias.dtype},
                          {.input = grad_output.values, .sum = t.grad_bias}, step.run.stream);
}

}  // namespace

void enqueue_linear_backward(const LinearPlan& plan, Backend& backend, const LinearBackwardTensors& tensors,
                             const LinearRun& run) {
  const ObservedRange range(run.observer, plan.name, "backward");
  const LinearStep step(plan, backend, run);
  if (!expands_grad_output(plan, tensors)) return enqueue(step, tensors);
  LinearBackwardTensors all = tensors;
  all.grad_output = expanded_grad_output(step, tensors);
  enqueue(step, all);
}

void linear_backward(const LinearPlan& plan, Backend& backend, const LinearBackwardTensors& tensors,
                     const LinearRun& run) {
  const LayerCall call(plan.subject, run);
  check_linear_backward(plan, backend, tensors, run);
  watch_backward(plan, backend, tensors, run.stream);
  const LinearGradients wants = wanted_gradients(tensors);
  const auto bytes = [&] {
    return plan.backward_scratch(tensors.saved->tokens, wants, observes_values(run), expands_grad_output(plan, tensors))
        .bytes;
  };
  call.with_scratch(tensors, run.side_for(wants), bytes,
                    [&](const LinearBackwardTensors& all) { enqueue_linear_backward(plan, backend, all, run); });
}

}  // namespace ingot
