#include "ingot/nn/linear_functions.h"

#include <algorithm>

#include "ingot/nn/layer_call.h"
#include "ingot/nn/linear_checks.h"
#include "ingot/nn/memory_watch.h"
#include "ingot/nn/tensor_checks.h"

namespace ingot {
namespace {

// What all parts of one call share.
struct Call {
  const LinearPlan& plan;
  Backend& backend;
  const LinearRun& run;
  bool observes_values = false;

  Call(const LinearPlan& of, Backend& on, const LinearRun& with)
      : plan(of), backend(on), run(with), observes_values(with.observer != nullptr && with.observer->wants_values()) {}
  Device device() const { return backend.device(); }
};

// A cast's names for observers.
struct CastNames {
  const char* tensor = "";         // "input", "weight", "grad_output"
  const char* of_codes = "";       // the GEMM that reads the codes
  const char* of_transposed = "";  // the GEMM that reads the transposed codes
};

void report(const Call& call, const CastNames& names, const CastSpec& spec, const CastTensors& tensors,
            Stream& stream) {
  CastEvent event{.layer = call.plan.name,
                  .tensor = names.tensor,
                  .gemms = names.of_codes,
                  .values = spec.result              ? tensors.result
                            : spec.pointwise.empty() ? tensors.input
                                                     : Tensor{},
                  .codes = tensors.codes,
                  .factors = tensors.factors,
                  .scale = spec.scale};
  if (spec.codes) call.run.observer->cast(event, stream);
  if (!spec.transposed) return;
  event.gemms = names.of_transposed;
  event.codes = tensors.transposed;
  event.transposed = true;
  if (spec.transposed_scale) {
    event.factors = tensors.transposed_factors;
    event.scale = *spec.transposed_scale;
  }
  call.run.observer->cast(event, stream);
}

void cast_as(const Call& call, const CastNames& names, const CastSpec& spec, const CastTensors& tensors,
             Stream& stream) {
  call.backend.cast(spec, tensors, stream);
  if (call.run.observer != nullptr) report(call, names, spec, tensors, stream);
}

// `observed`: where to write an expression's values if only an observer wants them.
void cast(const Call& call, const CastNames& names, const CastSpec& spec, CastTensors& tensors, const Tensor& observed,
          Stream& stream) {
  if (!call.observes_values || spec.pointwise.empty() || spec.result) {
    return cast_as(call, names, spec, tensors, stream);
  }
  CastSpec with_values = spec;
  with_values.result = true;
  tensors.result = observed;
  cast_as(call, names, with_values, tensors, stream);
}

// A fixed scale's amax is written to scratch, because calls that run at once may share the scale.
void give_scale(CastTensors& tensors, const LinearCast& of, const LinearScale& scale, const Tensor& scratch) {
  if (of.scaling == Scaling::dynamic) return;
  tensors.scales = scale.scale;
  tensors.amax = of.scaling == Scaling::fixed ? scratch : scale.amax;
}

Tensor element(const Tensor& of, std::int64_t index) {
  if (of.data == nullptr) return {};
  return vector(static_cast<float*>(of.data) + index, Dtype::f32, 1, of.device);
}

void report(const Call& call, const char* role, const GemmSpec& spec, const GemmTensors& tensors, Stream& stream) {
  if (call.run.observer == nullptr) return;
  call.run.observer->gemm({.layer = call.plan.name, .role = role, .spec = spec, .tensors = tensors}, stream);
}

void multiply(const Call& call, const char* role, const GemmSpec& spec, const GemmTensors& tensors, Stream& stream) {
  call.backend.gemm(spec, tensors, stream);
  report(call, role, spec, tensors, stream);
}

// ---- forward -------------------------------------------------------------------------------------------------------

// A forward's parts of its memory.
struct ForwardMemory {
  ForwardMemory(const LinearPlan& plan, std::int64_t of_tokens, LinearPass of, bool observed)
      : pass(of),
        tokens(of_tokens),
        scratch(plan.forward_scratch(of_tokens, of, observed)),
        saved(of == LinearPass::inference ? LinearSavedMemory{} : plan.saved_memory(of_tokens)) {}
  ForwardMemory(const Call& call, const LinearForwardTensors& tensors, LinearPass of)
      : ForwardMemory(call.plan, tensors.input.rows, of, call.observes_values) {}

  LinearPass pass;
  std::int64_t tokens;
  LinearForwardScratch scratch;
  LinearSavedMemory saved;
};

// The factors of codes of [rows, cols], in the order that the kernel reads best that will probably run.
Tensor factors_in_order(const LinearPlan& plan, const Tensor& factors, ScaleGranularity scale, std::int64_t rows,
                        std::int64_t cols) {
  return std::min(rows, cols) < plan.by_group_from ? factors : factors_by_group(factors, scale, rows, cols);
}

// Codes and transposed codes may share their factors.
Float8View input_codes(const LinearPlan& plan, const ForwardMemory& memory, const MemoryRegion& kept,
                       const MemoryRegion& scratch, Device device) {
  const Tensor factors = memory.saved.input_factors.in(kept, device);
  const LinearCast& order = plan.input_of(memory.pass);
  const bool own = order.has_own_factors();
  const Tensor of_codes = own ? memory.scratch.input_factors.in(scratch, device) : factors;
  return {.codes = memory.scratch.input_codes.in(scratch, device),
          .transposed = memory.saved.input_transposed.in(kept, device),
          .factors = factors_in_order(plan, of_codes, order.spec.scale, memory.tokens, plan.shape.in_features),
          .transposed_factors = factors};
}

void cast_input(const Call& call, const LinearForwardTensors& t, const ForwardMemory& memory) {
  const LinearPlan& plan = call.plan;
  const Device device = call.device();
  const MemoryRegion kept = t.saved != nullptr ? t.saved->memory : MemoryRegion{};
  const LinearCast& order = plan.input_of(memory.pass);
  const TensorPlace& kept_values = memory.saved.input_values;
  const Tensor values =
      kept_values.used ? kept_values.in(kept, device) : memory.scratch.input_values.in(t.scratch, device);
  if (!order.any) {
    if (!kept_values.used && !memory.scratch.input_values.used) return;
    return linear_input_values(plan, call.backend, t, values, call.run.stream);
  }
  const CastSpec& spec = order.spec;
  const Float8View codes = input_codes(plan, memory, kept, t.scratch, device);
  CastTensors tensors{.input = t.input,
                      .codes = codes.codes,
                      .transposed = codes.transposed,
                      .factors = codes.factors,
                      .inputs = t.prologue_inputs};
  if (spec.transposed_scale) tensors.transposed_factors = codes.transposed_factors;
  if (spec.result) tensors.result = values;
  give_scale(tensors, order, t.scales.input, memory.scratch.amax.in(t.scratch, device));
  cast(call, {"input", "output", "grad_weight"}, spec, tensors, memory.scratch.observed.in(t.scratch, device),
       call.run.stream);
}

// The bias in the dtype that the output GEMM takes.
Tensor bias_of(const Call& call, const LinearForwardTensors& t, const ForwardMemory& memory) {
  if (!memory.scratch.bias.used) return t.bias;
  const Tensor rounded = memory.scratch.bias.in(t.scratch, call.device());
  // The sum of a single row: rounded once.
  call.backend.column_sum({.in = t.bias.dtype, .out = rounded.dtype}, {.input = t.bias, .sum = rounded},
                          call.run.stream);
  return rounded;
}

// In high precision, cuBLASLt without an epilogue and a pass for the epilogue are faster than a GEMM with both.
void multiply_output_in_high_precision(const Call& call, const LinearForwardTensors& t, const Tensor& input,
                                       const Tensor& bias, const Tensor& preactivation) {
  const LinearPlan& plan = call.plan;
  Stream& stream = call.run.stream;
  const GemmSpec& spec = plan.output_gemm[0];
  const Tensor& sum = preactivation.data != nullptr ? preactivation : t.output;
  GemmTensors gemm{.a = input, .b = t.weight, .bias = bias, .out = sum};
  if (plan.fusion.epilogue.empty()) return multiply(call, "output", spec, gemm, stream);
  call.backend.gemm(spec, gemm, stream);
  call.backend.elementwise(plan.epilogue_values, {.input = sum, .inputs = t.epilogue_inputs, .output = t.output},
                           stream);
  gemm.out = t.output;
  report(call, "output", spec, gemm, stream);
}

// output[M, N] = epilogue(input[M, K] @ weight[N, K]^T + bias)
void multiply_output(const Call& call, const LinearForwardTensors& t, const ForwardMemory& memory,
                     const Float8View& codes) {
  const LinearPlan& plan = call.plan;
  const Device device = call.device();
  const ObservedRange range(call.run.observer, plan.name, "output");
  const MemoryRegion kept = t.saved != nullptr ? t.saved->memory : MemoryRegion{};
  const Tensor preactivation = memory.saved.preactivation.in(kept, device);
  const Tensor bias = bias_of(call, t, memory);
  if (plan.output_reads_weight()) {
    Tensor input = t.input;
    if (plan.fusion.prologue) {
      const TensorPlace& values = memory.saved.input_values;
      input = values.used ? values.in(kept, device) : memory.scratch.input_values.in(t.scratch, device);
    }
    return multiply_output_in_high_precision(call, t, input, bias, preactivation);
  }
  const Float8View input = plan.given_input.any ? t.given_input : input_codes(plan, memory, kept, t.scratch, device);
  GemmTensors gemm{.a = input.codes,
                   .b = codes.codes,
                   .factor_a = input.factors,
                   .factor_b = codes.factors,
                   .bias = bias,
                   .out = t.output};
  if (plan.fusion.epilogue) gemm.inputs = t.epilogue_inputs;
  if (memory.saved.preactivation.used) gemm.preactivation = preactivation;
  multiply(call, "output", plan.output_gemm[memory.saved.preactivation.used ? 1 : 0], gemm, call.run.stream);
}

Float8View cast_into(const Call& call, const LinearForwardTensors& t) {
  return enqueue_cast_weight(call.plan, call.backend,
                             {.weight = t.weight, .into = *t.weight_into, .scale = t.scales.weight}, call.run);
}

void stamp(const LinearPlan& plan, const LinearForwardTensors& tensors) {
  if (tensors.saved == nullptr) return;
  tensors.saved->plan = plan.identity;
  tensors.saved->tokens = tensors.input.rows;
  tensors.saved->kept = true;
  tensors.saved->sums = {};  // of another forward
}

// ---- backward ------------------------------------------------------------------------------------------------------

struct BackwardMemory {
  BackwardMemory(const Call& call, const LinearBackwardTensors& t)
      : wants(wanted_gradients(t)),
        scratch(call.plan.backward_scratch(t.saved->tokens, wants, call.observes_values)),
        saved(call.plan.saved_memory(t.saved->tokens)) {}

  LinearGradients wants;
  LinearBackwardScratch scratch;
  LinearSavedMemory saved;
};

// grad_output's values for GEMMs in high precision: itself, or times the epilogue's derivative.
struct GradOutput {
  Tensor values;
  bool is_summed = false;  // the cast has already summed the bias' gradient
};

const Tensor& gradient_x(const LinearPlan& plan, const LinearBackwardTensors& t, const Tensor& preactivation) {
  if (plan.gradient.of_output()) return t.output;
  return plan.needs_preactivation() ? preactivation : t.grad_output;
}

void fold_and_cast(const Call& call, const LinearBackwardTensors& t, const BackwardMemory& memory,
                   const Tensor& values) {
  const LinearPlan& plan = call.plan;
  const Device device = call.device();
  const LinearBackwardScratch& scratch = memory.scratch;
  const Tensor observed = scratch.observed.in(t.scratch, device);
  if (scratch.codes.used) {
    CastTensors tensors{.input = values,
                        .codes = scratch.codes.in(t.scratch, device),
                        .factors = scratch.factors.in(t.scratch, device)};
    if (plan.folded_codes.spec.pointwise) tensors.inputs = {t.codes.factors};
    cast(call, {"grad_output", "grad_input", ""}, plan.folded_codes.spec, tensors, observed, call.run.stream);
  }
  if (scratch.transposed.used) {
    CastTensors tensors{.input = values,
                        .transposed = scratch.transposed.in(t.scratch, device),
                        .factors = scratch.transposed_factors.in(t.scratch, device)};
    if (plan.folded_transposed.spec.pointwise) {
      tensors.inputs = {plan.given_input.any ? t.given_input.transposed_factors
                                             : memory.saved.input_factors.in(t.saved->memory, device)};
    }
    cast(call, {"grad_output", "", "grad_weight"}, plan.folded_transposed.spec, tensors, observed, call.run.stream);
  }
}

// Of the one cast of grad_output.
Tensor grad_output_factors(const Call& call, const LinearBackwardTensors& t, const BackwardMemory& memory) {
  return factors_in_order(call.plan, memory.scratch.factors.in(t.scratch, call.device()),
                          call.plan.grad_output_of(memory.wants).cast.spec.scale, t.saved->tokens,
                          call.plan.shape.out_features);
}

// The one cast of grad_output for both GEMMs, with the epilogue's gradient in front.
void cast_for_both(const Call& call, const LinearBackwardTensors& t, const BackwardMemory& memory,
                   const LinearGradOutputCast& order, const Tensor& values) {
  const LinearPlan& plan = call.plan;
  const Device device = call.device();
  const LinearBackwardScratch& scratch = memory.scratch;
  CastTensors tensors{.input = t.grad_output,
                      .codes = scratch.codes.in(t.scratch, device),
                      .transposed = scratch.transposed.in(t.scratch, device),
                      .factors = grad_output_factors(call, t, memory),
                      .transposed_factors = scratch.transposed_factors.in(t.scratch, device)};
  if (plan.fusion.epilogue) {
    tensors.input = gradient_x(plan, t, memory.saved.preactivation.in(t.saved->memory, device));
    tensors.inputs = plan.gradient.inputs(t.grad_output, t.epilogue_inputs);
  }
  if (order.values) tensors.result = values;
  give_scale(tensors, order.cast, t.scales.grad_output, element(scratch.amaxes.in(t.scratch, device), 0));
  const CastNames names{"grad_output", "grad_input", "grad_weight"};
  const Tensor observed = scratch.observed.in(t.scratch, device);
  if (!order.sums) return cast(call, names, order.cast.spec, tensors, observed, call.run.stream);
  CastSpec summing = order.cast.spec;
  summing.sum = t.grad_bias.dtype;
  tensors.sum = t.grad_bias;
  cast(call, names, summing, tensors, observed, call.run.stream);
}

GradOutput cast_grad_output(const Call& call, const LinearBackwardTensors& t, const BackwardMemory& memory) {
  const LinearPlan& plan = call.plan;
  const LinearGradOutputCast& order = plan.grad_output_of(memory.wants);
  const Tensor values = order.values ? memory.scratch.values.in(t.scratch, call.device()) : t.grad_output;
  if (order.cast.any) {
    cast_for_both(call, t, memory, order, values);
  } else if (order.values) {
    linear_gradient_values(plan, call.backend, t, values, call.run.stream);
  }
  if (order.folds) fold_and_cast(call, t, memory, values);
  return {.values = values, .is_summed = order.sums};
}

Tensor cast_input_again(const Call& call, const LinearBackwardTensors& t, const BackwardMemory& memory,
                        Stream& stream) {
  const Device device = call.device();
  const LinearCast& order = call.plan.input_again;
  const LinearBackwardScratch& scratch = memory.scratch;
  CastTensors tensors{.input = t.input,
                      .transposed = scratch.input_transposed.in(t.scratch, device),
                      .factors = scratch.input_factors.in(t.scratch, device),
                      .inputs = t.prologue_inputs};
  give_scale(tensors, order, t.scales.input, element(scratch.amaxes.in(t.scratch, device), 1));
  cast(call, {"input", "output", "grad_weight"}, order.spec, tensors, scratch.observed_input.in(t.scratch, device),
       stream);
  return tensors.factors;
}

Tensor cast_weight_again(const Call& call, const LinearBackwardTensors& t, const BackwardMemory& memory) {
  const Device device = call.device();
  const LinearCast& order = call.plan.weight_again;
  const LinearBackwardScratch& scratch = memory.scratch;
  CastTensors tensors{.input = t.weight,
                      .transposed = scratch.weight_transposed.in(t.scratch, device),
                      .factors = scratch.weight_factors.in(t.scratch, device)};
  give_scale(tensors, order, t.scales.weight, element(scratch.amaxes.in(t.scratch, device), 2));
  cast(call, {"weight", "", "grad_input"}, order.spec, tensors, {}, call.run.stream);
  return tensors.factors;
}

// grad_input[M, K] = grad_output[M, N] @ weight[N, K]: the sum runs over the weight's rows
void multiply_grad_input(const Call& call, const LinearBackwardTensors& t, const BackwardMemory& memory,
                         const GradOutput& grad_output) {
  const LinearPlan& plan = call.plan;
  const Device device = call.device();
  const ObservedRange range(call.run.observer, plan.name, "grad_input");
  Stream& stream = call.run.stream;
  GemmTensors gemm{.a = grad_output.values, .b = t.weight, .out = t.grad_input};
  GemmSpec spec = plan.grad_input_gemm;
  spec.out = t.grad_input.dtype;
  if (!is_float8(plan.config.grad_input)) return multiply(call, "grad_input", spec, gemm, stream);
  Tensor factors = plan.weight.spec.transposed_scale ? t.codes.transposed_factors : t.codes.factors;
  gemm.b = t.codes.transposed;
  if (plan.weight_again.any) {
    const bool given = is_given(t.codes.transposed);
    factors = given ? t.codes.transposed_factors : cast_weight_again(call, t, memory);
    if (!given) gemm.b = memory.scratch.weight_transposed.in(t.scratch, device);
  }
  gemm.a = memory.scratch.codes.in(t.scratch, device);
  gemm.factor_a = grad_output_factors(call, t, memory);
  gemm.factor_b = plan.config.weight == OtherCodes::folded
                      ? t.scales.one
                      : transposed_factors(factors, transposed(plan.config.grad_input.b->granularity),
                                           plan.shape.out_features, plan.shape.in_features);
  multiply(call, "grad_input", spec, gemm, stream);
}

// The operands of grad_weight's GEMM in FP8.
void give_codes(const Call& call, const LinearBackwardTensors& t, const BackwardMemory& memory, GemmTensors& gemm,
                Stream& stream) {
  const LinearPlan& plan = call.plan;
  const Device device = call.device();
  const LinearBackwardScratch& scratch = memory.scratch;
  const std::int64_t tokens = t.saved->tokens;
  Tensor factors = memory.saved.input_factors.in(t.saved->memory, device);
  gemm.b = memory.saved.input_transposed.in(t.saved->memory, device);
  if (plan.given_input.any) {
    factors = t.given_input.transposed_factors;
    gemm.b = t.given_input.transposed;
  }
  if (plan.input_again.any) {
    factors = cast_input_again(call, t, memory, stream);
    gemm.b = scratch.input_transposed.in(t.scratch, device);
  }
  const bool apart = plan.grad_output_of(memory.wants).apart;
  gemm.a = scratch.transposed.in(t.scratch, device);
  gemm.factor_a =
      transposed_factors((apart ? scratch.transposed_factors : scratch.factors).in(t.scratch, device),
                         transposed(plan.config.grad_weight.a->granularity), tokens, plan.shape.out_features);
  gemm.factor_b = plan.config.input == OtherCodes::folded
                      ? t.scales.one
                      : transposed_factors(factors, transposed(plan.config.grad_weight.b->granularity), tokens,
                                           plan.shape.in_features);
}

// grad_weight[N, K] = grad_output[M, N]^T @ input[M, K]: the sum runs over the rows of both
void multiply_grad_weight(const Call& call, const LinearBackwardTensors& t, const BackwardMemory& memory,
                          const GradOutput& grad_output, Stream& stream) {
  const LinearPlan& plan = call.plan;
  const ObservedRange range(call.run.observer, plan.name, "grad_weight");
  GemmSpec spec = plan.grad_weight_gemm;
  spec.out = t.grad_weight.dtype;
  if (t.accumulate) spec.epilogue.c = spec.out;
  GemmTensors gemm{
      .a = grad_output.values, .b = t.input, .out = t.grad_weight, .c = t.accumulate ? t.grad_weight : Tensor{}};
  if (is_float8(plan.config.grad_weight)) {
    give_codes(call, t, memory, gemm, stream);
  } else if (plan.keeps_values()) {
    gemm.b = memory.saved.input_values.in(t.saved->memory, call.device());
  }
  multiply(call, "grad_weight", spec, gemm, stream);
}

}  // namespace

// ---- the weight ----------------------------------------------------------------------------------------------------

LinearScales linear_constants(const LinearPlan& plan, Backend& backend, const MemoryRegion& into, Stream& stream) {
  LinearScales scales;
  if (!plan.has_constants) return scales;
  const LayerCall call(plan.subject, stream);
  check_region(plan, "constants", into, kLinearConstantBytes);
  auto* next = static_cast<float*>(into.data);
  const auto add = [&](Tensor& tensor, float value) {
    backend.fill(next, value, 1, stream);
    tensor = vector(next, Dtype::f32, 1, backend.device());
    next += kLinearAlignment / sizeof(float);
  };
  const auto add_fixed = [&](LinearScale& scale, const std::optional<Cast>& cast) {
    if (cast && cast->scaling == Scaling::fixed) add(scale.scale, cast->scale);
  };
  add_fixed(scales.input, plan.scaling.input);
  add_fixed(scales.weight, plan.scaling.weight);
  add_fixed(scales.grad_output, plan.scaling.grad_output);
  if (plan.folds()) add(scales.one, 1.0F);
  return scales;
}

Float8View weight_codes(const LinearPlan& plan, const MemoryRegion& region, Device device) {
  const LinearWeightMemory memory = plan.weight_memory();
  return {.codes = memory.codes.in(region, device),
          .transposed = memory.transposed.in(region, device),
          .factors = memory.factors.in(region, device),
          .transposed_factors = memory.transposed_factors.in(region, device)};
}

Float8View enqueue_cast_weight(const LinearPlan& plan, Backend& backend, const WeightCastTensors& tensors,
                               const LinearRun& run) {
  const Call call(plan, backend, run);
  const Float8View codes = weight_codes(plan, tensors.into, call.device());
  if (!plan.weight.any) return codes;
  CastTensors to{.input = tensors.weight,
                 .codes = codes.codes,
                 .transposed = codes.transposed,
                 .factors = codes.factors,
                 .transposed_factors = codes.transposed_factors};
  give_scale(to, plan.weight, tensors.scale, plan.weight_memory().amax.in(tensors.into, call.device()));
  cast(call, {"weight", "output", "grad_input"}, plan.weight.spec, to, {}, run.stream);
  return codes;
}

Float8View cast_weight(const LinearPlan& plan, Backend& backend, const WeightCastTensors& tensors,
                       const LinearRun& run) {
  const LayerCall call(plan.subject, run);
  check_weight_cast(plan, backend, tensors, run);
  return enqueue_cast_weight(plan, backend, tensors, run);
}

Float8View linear_input_codes(const LinearPlan& plan, std::int64_t tokens, const MemoryRegion& saved,
                              const MemoryRegion& scratch, Device device) {
  const LinearPass pass = saved.data != nullptr ? LinearPass::training : LinearPass::inference;
  return input_codes(plan, {plan, tokens, pass, false}, saved, scratch, device);
}

// ---- steps ---------------------------------------------------------------------------------------------------------

void linear_input_values(const LinearPlan& plan, Backend& backend, const LinearForwardTensors& tensors,
                         const Tensor& values, Stream& stream) {
  backend.elementwise(plan.prologue_values,
                      {.input = tensors.input, .inputs = tensors.prologue_inputs, .output = values}, stream);
}

void linear_gradient_values(const LinearPlan& plan, Backend& backend, const LinearBackwardTensors& tensors,
                            const Tensor& values, Stream& stream) {
  const Tensor preactivation =
      plan.saved_memory(tensors.saved->tokens).preactivation.in(tensors.saved->memory, backend.device());
  backend.elementwise(plan.gradient_values,
                      {.input = gradient_x(plan, tensors, preactivation),
                       .inputs = plan.gradient.inputs(tensors.grad_output, tensors.epilogue_inputs),
                       .output = values},
                      stream);
}

void enqueue_linear_forward(const LinearPlan& plan, Backend& backend, const LinearForwardTensors& tensors,
                            const LinearRun& run) {
  const Call call(plan, backend, run);
  if (tensors.saved != nullptr) tensors.saved->kept = false;
  const ForwardMemory memory(call, tensors, tensors.saved != nullptr ? LinearPass::training : LinearPass::inference);
  cast_input(call, tensors, memory);
  const Float8View codes = tensors.weight_into ? cast_into(call, tensors) : tensors.codes;
  if (tensors.codes_from != nullptr) run.stream.wait_for(*tensors.codes_from);
  multiply_output(call, tensors, memory, codes);
  stamp(plan, tensors);
}

void enqueue_linear_recompute(const LinearPlan& plan, Backend& backend, const LinearForwardTensors& tensors,
                              const LinearRun& run) {
  if (plan.recomputes_output()) return enqueue_linear_forward(plan, backend, tensors, run);
  const Call call(plan, backend, run);
  tensors.saved->kept = false;
  cast_input(call, tensors, {call, tensors, LinearPass::recompute});
  if (tensors.weight_into) cast_into(call, tensors);
  stamp(plan, tensors);
}

bool expands_grad_output(const LinearPlan& plan, const LinearBackwardTensors& tensors) {
  const Tensor& given = tensors.grad_output;
  const bool is_one = given.rows == 1 && given.cols == 1;
  return is_one && (tensors.saved->tokens != 1 || plan.shape.out_features != 1);
}

// One element to a row, which is a column of as many rows, and the row to all rows.
Tensor expanded_grad_output(const LinearPlan& plan, Backend& backend, const LinearBackwardTensors& tensors,
                            const LinearRun& run) {
  const Call call(plan, backend, run);
  const Device device = call.device();
  const LinearBackwardScratch scratch =
      plan.backward_scratch(tensors.saved->tokens, wanted_gradients(tensors), call.observes_values, true);
  const Tensor all = scratch.expanded.in(tensors.scratch, device);
  const Tensor row = scratch.expanded_row.in(tensors.scratch, device);
  const Tensor column = matrix(row.data, row.dtype, row.cols, 1, device);
  const auto repeat = [&](const Tensor& one, const Tensor& to) {
    Tensor shape = to;  // the expression reads no x
    shape.data = nullptr;
    backend.elementwise(plan.repeated, {.input = shape, .inputs = {one}, .output = to}, run.stream);
  };
  repeat(tensors.grad_output, column);
  repeat(row, all);
  return all;
}

void enqueue_linear_backward(const LinearPlan& plan, Backend& backend, const LinearBackwardTensors& tensors,
                             const LinearRun& run) {
  if (expands_grad_output(plan, tensors)) {
    LinearBackwardTensors all = tensors;
    all.grad_output = expanded_grad_output(plan, backend, tensors, run);
    return enqueue_linear_backward(plan, backend, all, run);
  }
  const Call call(plan, backend, run);
  const BackwardMemory memory(call, tensors);
  const GradOutput grad_output = cast_grad_output(call, tensors, memory);
  Stream* const beside = run.side_for(memory.wants);
  if (beside != nullptr) beside->wait_for(run.stream);
  if (memory.wants.input) multiply_grad_input(call, tensors, memory, grad_output);
  if (memory.wants.weight) {
    multiply_grad_weight(call, tensors, memory, grad_output, beside != nullptr ? *beside : run.stream);
  }
  // grad_bias[N] = the sum over grad_output's rows
  if (!memory.wants.bias || grad_output.is_summed) return;
  backend.column_sum({.in = grad_output.values.dtype, .out = tensors.grad_bias.dtype},
                     {.input = grad_output.values, .sum = tensors.grad_bias}, run.stream);
}

namespace {

// A forward or recompute behind its checks.
void run_forward(const LayerCall& call, const LinearPlan& plan, Backend& backend, const LinearForwardTensors& tensors,
                 LinearPass pass, const LinearRun& run) {
  const auto bytes = [&] {
    return plan.forward_scratch(tensors.input.rows, pass, Call(plan, backend, run).observes_values).bytes;
  };
  watched_forward(plan.subject, plan, backend, tensors, run.stream, [&] {
    call.with_scratch(tensors, nullptr, bytes, [&](const LinearForwardTensors& all) {
      if (pass == LinearPass::recompute) return enqueue_linear_recompute(plan, backend, all, run);
      enqueue_linear_forward(plan, backend, all, run);
    });
  });
}

}  // namespace

void linear_forward(const LinearPlan& plan, Backend& backend, const LinearForwardTensors& tensors,
                    const LinearRun& run) {
  const LayerCall call(plan.subject, run);
  check_linear_forward(plan, backend, tensors, run);
  const ObservedRange range(run.observer, plan.name, "forward");
  run_forward(call, plan, backend, tensors, tensors.saved != nullptr ? LinearPass::training : LinearPass::inference,
              run);
}

void linear_recompute(const LinearPlan& plan, Backend& backend, const LinearForwardTensors& tensors,
                      const LinearRun& run) {
  const LayerCall call(plan.subject, run);
  check_linear_recompute(plan, backend, tensors, run);
  const bool whole = plan.recomputes_output();
  const ObservedRange range(run.observer, plan.name, whole ? "forward" : "recompute");
  run_forward(call, plan, backend, tensors, whole ? LinearPass::training : LinearPass::recompute, run);
}

void linear_backward(const LinearPlan& plan, Backend& backend, const LinearBackwardTensors& tensors,
                     const LinearRun& run) {
  const LayerCall call(plan.subject, run);
  check_linear_backward(plan, backend, tensors, run);
  if (backend.checks_memory()) look_at_backward(plan.subject, plan, backend, tensors, run.stream);
  const ObservedRange range(run.observer, plan.name, "backward");
  const LinearGradients wants = wanted_gradients(tensors);
  const auto bytes = [&] {
    const bool observed = Call(plan, backend, run).observes_values;
    return plan.backward_scratch(tensors.saved->tokens, wants, observed, expands_grad_output(plan, tensors)).bytes;
  };
  call.with_scratch(tensors, run.side_for(wants), bytes,
                    [&](const LinearBackwardTensors& all) { enqueue_linear_backward(plan, backend, all, run); });
}

}  // namespace ingot
