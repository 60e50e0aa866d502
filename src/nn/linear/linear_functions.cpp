#include "ingot/nn/linear/linear_functions.h"

#include <fmt/format.h>

#include <algorithm>

#include "ingot/nn/linear/float8_tensor.h"
#include "ingot/nn/linear/layer_call.h"
#include "ingot/nn/linear/linear_checks.h"
#include "ingot/nn/linear/linear_step.h"
#include "ingot/nn/linear/memory_watch.h"
#include "ingot/nn/linear/tensor_checks.h"
#include "ingot/runtime/util/error.h"

namespace ingot {

// ---- what the files of a linear layer share (linear_step.h) --------------------------------------------------------

namespace {

void report(const LinearStep& step, const LinearCastNames& names, const CastSpec& spec, const CastTensors& tensors,
            Stream& stream) {
  CastEvent event{.layer = step.plan.name,
                  .tensor = names.tensor,
                  .gemms = names.of_codes,
                  .values = has_expert_scales(spec)                    ? Tensor{}  // which rows share one is not known
                            : spec.result                              ? tensors.result
                            : spec.pointwise.empty() && !spec.gathered ? tensors.input
                                                                       : Tensor{},
                  .codes = tensors.codes,
                  .scale_inv = tensors.scale_inv,
                  .scale = spec.scale};
  if (spec.codes) step.run.observer->cast(event, stream);
  if (!spec.transposed) return;
  event.gemms = names.of_transposed;
  event.codes = tensors.transposed;
  event.transposed = true;
  if (spec.experts) event.values = {};  // whose rows are in slots
  if (spec.transposed_scale) {
    event.scale_inv = tensors.transposed_scale_inv;
    event.scale = *spec.transposed_scale;
  }
  step.run.observer->cast(event, stream);
}

void cast_as(const LinearStep& step, const LinearCastNames& names, const CastSpec& spec, const CastTensors& tensors,
             Stream& stream) {
  step.backend.cast(spec, tensors, stream);
  if (step.run.observer != nullptr) report(step, names, spec, tensors, stream);
}

}  // namespace

void cast(const LinearStep& step, const LinearCastNames& names, const CastSpec& spec, CastTensors& tensors,
          const Tensor& observed, Stream& stream) {
  if (!step.observes_values || spec.pointwise.empty() || spec.result) {
    return cast_as(step, names, spec, tensors, stream);
  }
  CastSpec with_values = spec;
  with_values.result = true;
  tensors.result = observed;
  cast_as(step, names, with_values, tensors, stream);
}

void give_scale(const LinearStep& step, CastTensors& tensors, const LinearCast& of, const LinearScale& scale,
                const Tensor& scratch, Stream& stream) {
  if (of.scaling == Scaling::dynamic) return;
  tensors.scales = scale.scale;
  tensors.amax = of.scaling == Scaling::fixed ? scratch : scale.amax;
  if (!scale.start) return;
  // A cast of the same values finds their maximum, whatever is fused with it; the codes that it writes are cast again.
  CastTensors measured = tensors;
  measured.amax = scale.start->amax;
  step.backend.cast(of.spec, measured, stream);
  step.backend.amax_history(scale.start_spec, *scale.start, stream);
}

void report(const LinearStep& step, const char* role, const GemmSpec& spec, const GemmTensors& tensors,
            Stream& stream) {
  if (step.run.observer == nullptr) return;
  step.run.observer->gemm({.layer = step.plan.name, .role = role, .spec = spec, .tensors = tensors}, stream);
}

void multiply(const LinearStep& step, const char* role, const GemmSpec& spec, const GemmTensors& tensors,
              Stream& stream) {
  step.backend.gemm(spec, tensors, stream);
  report(step, role, spec, tensors, stream);
}
namespace {

// ---- forward -------------------------------------------------------------------------------------------------------

// A forward's parts of its memory.
struct ForwardMemory {
  ForwardMemory(const LinearPlan& plan, std::int64_t of_tokens, LinearPass of, bool observed)
      : pass(of),
        tokens(of_tokens),
        scratch(plan.forward_scratch(of_tokens, of, observed)),
        saved(of == LinearPass::inference ? LinearSavedMemory{} : plan.saved_memory(of_tokens)) {}
  ForwardMemory(const LinearStep& step, const LinearForwardTensors& tensors, LinearPass of)
      : ForwardMemory(step.plan, tensors.input.rows, of, step.observes_values) {}

  LinearPass pass;
  std::int64_t tokens;
  LinearForwardScratch scratch;
  LinearSavedMemory saved;
};

// Codes and transposed codes may share their scale_inv.
Float8View input_codes(const LinearPlan& plan, const ForwardMemory& memory, const MemoryRegion& kept,
                       const MemoryRegion& scratch, Device device) {
  const Tensor scale_inv = memory.saved.input_scale_inv.in(kept, device);
  const LinearCast& order = plan.input_of(memory.pass);
  const bool own = order.has_own_scale_inv();
  const Tensor of_codes = own ? memory.scratch.input_scale_inv.in(scratch, device) : scale_inv;
  return {.codes = memory.scratch.input_codes.in(scratch, device),
          .transposed = memory.saved.input_transposed.in(kept, device),
          .scale_inv = scale_inv_by_group(of_codes, order.spec.scale, memory.tokens, plan.shape.in_features),
          .transposed_scale_inv = scale_inv};
}

void cast_input(const LinearStep& step, const LinearForwardTensors& t, const ForwardMemory& memory) {
  if (t.input_is_cast) return;
  const LinearPlan& plan = step.plan;
  const Device device = step.device();
  const MemoryRegion kept = t.saved != nullptr ? t.saved->memory : MemoryRegion{};
  const LinearCast& order = plan.input_of(memory.pass);
  const TensorPlace& kept_values = memory.saved.input_values;
  const Tensor values =
      kept_values.used ? kept_values.in(kept, device) : memory.scratch.input_values.in(t.scratch, device);
  if (!order.any) {
    if (!kept_values.used && !memory.scratch.input_values.used) return;
    step.backend.elementwise(plan.prologue_values, {.input = t.input, .inputs = t.prologue_inputs, .output = values},
                             step.run.stream);
    return;
  }
  const CastSpec& spec = order.spec;
  const Float8View codes = input_codes(plan, memory, kept, t.scratch, device);
  CastTensors tensors{.input = t.input,
                      .codes = codes.codes,
                      .transposed = codes.transposed,
                      .scale_inv = codes.scale_inv,
                      .inputs = t.prologue_inputs};
  if (spec.transposed_scale) tensors.transposed_scale_inv = codes.transposed_scale_inv;
  if (spec.result) tensors.result = values;
  give_scale(step, tensors, order, t.scales.input, memory.scratch.amax.in(t.scratch, device), step.run.stream);
  cast(step, {"input", "output", "grad_weight"}, spec, tensors, memory.scratch.observed.in(t.scratch, device),
       step.run.stream);
}

// The bias in the dtype that the output GEMM takes.
Tensor bias_of(const LinearStep& step, const LinearForwardTensors& t, const ForwardMemory& memory) {
  if (!memory.scratch.bias.used) return t.bias;
  const Tensor rounded = memory.scratch.bias.in(t.scratch, step.device());
  // The sum of a single row: rounded once.
  step.backend.column_sum({.in = t.bias.dtype, .out = rounded.dtype}, {.input = t.bias, .sum = rounded},
                          step.run.stream);
  return rounded;
}

// The sum by a GEMM, and the epilogue, if there is one, by a pass over it.
void multiply_apart(const LinearStep& step, const LinearForwardTensors& t, GemmTensors gemm,
                    const Tensor& preactivation) {
  const LinearPlan& plan = step.plan;
  Stream& stream = step.run.stream;
  gemm.out = preactivation.data != nullptr ? preactivation : t.output;
  if (plan.fusion.epilogue.empty()) return multiply(step, "output", plan.sum_gemm, gemm, stream);
  step.backend.gemm(plan.sum_gemm, gemm, stream);
  step.backend.elementwise(plan.epilogue_values, {.input = gemm.out, .inputs = t.epilogue_inputs, .output = t.output},
                           stream);
  gemm.out = t.output;
  report(step, "output", plan.sum_gemm, gemm, stream);
}

// output[M, N] = epilogue(input[M, K] @ weight[N, K]^T + bias)
void multiply_output(const LinearStep& step, const LinearForwardTensors& t, const ForwardMemory& memory,
                     const Float8View& codes) {
  const LinearPlan& plan = step.plan;
  const Device device = step.device();
  const ObservedRange range(step.run.observer, plan.name, "output");
  const MemoryRegion kept = t.saved != nullptr ? t.saved->memory : MemoryRegion{};
  const Tensor preactivation = memory.saved.preactivation.in(kept, device);
  const Tensor bias = bias_of(step, t, memory);
  if (plan.output_reads_weight()) {
    Tensor input = t.input;
    if (plan.fusion.prologue) {
      const TensorPlace& values = memory.saved.input_values;
      input = values.used ? values.in(kept, device) : memory.scratch.input_values.in(t.scratch, device);
    }
    return multiply_apart(step, t, {.a = input, .b = t.weight, .bias = bias, .out = t.output}, preactivation);
  }
  const Float8View input = plan.given_input.any ? t.given_input : input_codes(plan, memory, kept, t.scratch, device);
  GemmTensors gemm{.a = input.codes,
                   .b = codes.codes,
                   .scale_inv_a = input.scale_inv,
                   .scale_inv_b = codes.scale_inv,
                   .bias = bias,
                   .out = t.output};
  if (plan.runs_epilogue_apart(memory.tokens)) return multiply_apart(step, t, gemm, preactivation);
  if (plan.fusion.epilogue) gemm.inputs = t.epilogue_inputs;
  if (memory.saved.preactivation.used) gemm.preactivation = preactivation;
  multiply(step, "output", plan.output_gemm[memory.saved.preactivation.used ? 1 : 0], gemm, step.run.stream);
}

Float8View cast_into(const LinearStep& step, const LinearForwardTensors& t) {
  return enqueue_cast_weight(step.plan, step.backend,
                             {.weight = t.weight, .into = *t.weight_into, .scale = t.scales.weight}, step.run);
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
    backend.device_api().fill(next, value, 1, stream);
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

LinearScale starting_scale(Backend& backend, const Cast& cast, const Tensor& amax, const MemoryRegion& into,
                           Stream& stream) {
  const std::int64_t count = std::max<std::int64_t>(amax.cols, 1);
  const std::size_t bytes = kStartingScaleBytes * static_cast<std::size_t>(count);
  if (into.data == nullptr || into.bytes < bytes) {
    throw Error(ErrorCode::invalid_argument, "starting scale into",
                fmt::format("has {} bytes, but must have {}", into.bytes, bytes));
  }
  auto* next = static_cast<float*>(into.data);
  const auto make = [&](float value) {
    backend.device_api().fill(next, value, count, stream);
    const Tensor made = vector(next, Dtype::f32, count, backend.device());
    next += count;
    return made;
  };
  Tensor history = make(0);
  history = matrix(history.data, Dtype::f32, count, 1, history.device);
  const AmaxHistoryTensors slot{.amax = make(0),
                                .history = history,
                                .scale = make(1),
                                .limits = make(fp8_max(cast.dtype)),
                                .pow2 = make(cast.pow2 ? 1.0F : 0.0F)};
  return {.scale = slot.scale, .amax = amax, .start = slot};
}

Float8View enqueue_cast_weight(const LinearPlan& plan, Backend& backend, const WeightCastTensors& tensors,
                               const LinearRun& run) {
  const LinearStep step(plan, backend, run);
  const Float8View codes = weight_codes(plan, tensors.into, step.device());
  if (!plan.weight.any) return codes;
  CastTensors to{.input = tensors.weight,
                 .codes = codes.codes,
                 .transposed = codes.transposed,
                 .scale_inv = codes.scale_inv,
                 .transposed_scale_inv = codes.transposed_scale_inv};
  give_scale(step, to, plan.weight, tensors.scale, plan.weight_memory().amax.in(tensors.into, step.device()),
             run.stream);
  cast(step, {"weight", "output", "grad_input"}, plan.weight.spec, to, {}, run.stream);
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
  const bool keeps = saved.data != nullptr || plan.saves_no_bytes(tokens);
  const LinearPass pass = keeps ? LinearPass::training : LinearPass::inference;
  return input_codes(plan, {plan, tokens, pass, false}, saved, scratch, device);
}

// ---- steps ---------------------------------------------------------------------------------------------------------

void enqueue_linear_pass(const LinearPlan& plan, Backend& backend, const LinearForwardTensors& tensors, LinearPass pass,
                         const LinearRun& run) {
  const bool multiplies = plan.effective(pass) != LinearPass::recompute;
  const ObservedRange range(run.observer, plan.name, multiplies ? "forward" : "recompute");
  const LinearStep step(plan, backend, run);
  if (tensors.saved != nullptr) tensors.saved->kept = false;
  if (multiplies) pass = tensors.saved != nullptr ? LinearPass::training : LinearPass::inference;
  const ForwardMemory memory(step, tensors, pass);
  cast_input(step, tensors, memory);
  const Float8View codes = tensors.weight_into ? cast_into(step, tensors) : tensors.codes;
  if (multiplies && tensors.codes_from != nullptr) run.stream.wait_for(*tensors.codes_from);
  if (multiplies) multiply_output(step, tensors, memory, codes);
  stamp(tensors.saved, plan.identity, tensors.input.rows);
}

namespace {

// A forward or recompute after its checks.
void run_pass(const LayerCall& call, const LinearPlan& plan, Backend& backend, const LinearForwardTensors& tensors,
              LinearPass pass, const LinearRun& run) {
  const auto bytes = [&] { return plan.forward_scratch(tensors.input.rows, pass, observes_values(run)).bytes; };
  watched_forward(plan, backend, tensors, run.stream, [&] {
    call.with_scratch(tensors, nullptr, bytes,
                      [&](const LinearForwardTensors& all) { enqueue_linear_pass(plan, backend, all, pass, run); });
  });
}

}  // namespace

void linear_forward(const LinearPlan& plan, Backend& backend, const LinearForwardTensors& tensors,
                    const LinearRun& run) {
  const LayerCall call(plan.subject, run);
  check_linear_forward(plan, backend, tensors, run);
  run_pass(call, plan, backend, tensors, tensors.saved != nullptr ? LinearPass::training : LinearPass::inference, run);
}

void linear_recompute(const LinearPlan& plan, Backend& backend, const LinearForwardTensors& tensors,
                      const LinearRun& run) {
  const LayerCall call(plan.subject, run);
  check_linear_recompute(plan, backend, tensors, run);
  run_pass(call, plan, backend, tensors, plan.effective(LinearPass::recompute), run);
}

}  // namespace ingot
