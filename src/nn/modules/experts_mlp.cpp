#include "ingot/nn/modules/experts_mlp.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <span>
#include <string>

#include "ingot/nn/linear/float8_tensor.h"
#include "ingot/nn/linear/layer_call.h"
#include "ingot/nn/linear/linear_checker.h"
#include "ingot/nn/linear/linear_functions.h"
#include "ingot/nn/linear/linear_step.h"
#include "ingot/nn/linear/memory_places.h"
#include "ingot/runtime/cast/row_index.h"
#include "ingot/runtime/util/count_of.h"

namespace ingot {
namespace {

// ---- checks --------------------------------------------------------------------------------------------------------

class ExpertsChecker : public LinearChecker {
 public:
  ExpertsChecker(const ExpertsMlpPlan& plan, Backend& backend)
      : LinearChecker(plan.up.rows, backend.device_api()), plan_(&plan), backend_(&backend) {}

  void run(const LinearRun& run) const {
    stream(backend_->device_api(), run.stream);
    if (run.side != nullptr) refuse("side", "is given, but the work of experts is on one stream");
  }
  // [tokens, features] of the plan's dtype.
  void tokens(const NamedTensor& tensor, std::int64_t tokens) const {
    all(tensor, plan_->up.rows.dtypes.input, ", the plan's dtype", tokens, plan_->shape.features, "[tokens, features]");
  }
  // The first layer's output, dense.
  void hidden(const NamedTensor& tensor, std::int64_t rows) const {
    all(tensor, plan_->up.rows.dtypes.input, ", the plan's dtype", rows, plan_->hidden_columns(),
        "the first layer's output of each row");
    if (rows > 1 && tensor.tensor->row_stride != tensor.tensor->cols) {
      refuse(tensor.name, "has rows that are apart, but must be dense");
    }
  }
  void ends(const ExpertEnds& ends) const {
    if (ends.experts != plan_->up.experts) {
      const std::string experts = count_of(ends.experts, "expert");
      refuse("ends", fmt::format("are of {}, but the layers have {}", experts, plan_->up.experts));
    }
    if (ends.capacity) refuse("ends", "have a capacity, but the rows of these experts follow each other");
    index("ends", {.data = ends.data, .rows = ends.experts, .device = ends.device}, ends.experts);
  }
  void routing(const ExpertsRouting& routing, std::int64_t tokens) const {
    ends(routing.ends);
    index("routing.tokens", routing.tokens, tokens);
    rows_of_tokens("routing.rows", routing.rows, routing.tokens.rows, tokens);
    all({"routing.weights", &routing.weights}, Dtype::f32, ", as the router's weights are", 1, routing.tokens.rows,
        "one for each row");
  }
  void rows_of_tokens(const char* name, const RowIndex& rows, std::int64_t of, std::int64_t tokens) const {
    index(name, rows, of);
    const std::int64_t named = rows.rows;
    if (tokens == 0 ? named == 0 : named % tokens == 0) return;
    refuse(name, fmt::format("name {}, but must name as many for each of {} tokens", count_of(named, "row"), tokens));
  }
  void codes(const char* name, const GroupedLinearPlan& layer, const Float8View& codes) const {
    const auto [in, out, bias] = layer.rows.shape;
    one_set(name, codes.codes, codes.scale_inv, layer.weight.spec, layer.experts * out, in,
            layer.experts * scale_count(layer.weight.spec.scale, out, in));
  }
  void scale(const char* of, const GroupedLinearPlan& layer, const LinearCast& cast, const LinearScale& scale) const {
    LinearChecker::scale(of, cast, scale, layer.experts);
  }
  void gradient_scale(const char* of, const GroupedLinearPlan& layer, const LinearGradients& wants,
                      const LinearScales& scales) const {
    scale(of, layer, layer.rows.grad_output_of(wants).cast, scales.grad_output);
  }
  void weight(const char* name, const GroupedLinearPlan& layer, const ExpertsBackwardWeight& weight) const {
    const auto [in, out, bias] = layer.rows.shape;
    const std::int64_t maxima = layer.weight_amax_count();
    if (is_given(weight.weight_amax)) {
      if (maxima == 0)
        refuse(name, "has maxima, but its cast in backward takes none that forward's finds: leave them out");
      all({name, &weight.weight_amax}, Dtype::f32, ", as maxima are", 1, maxima, "the weights' maxima");
    }
    const std::int64_t scales = layer.experts * scale_count(layer.weight_scale_of_grad_input(), out, in);
    if (layer.weight_again.any && !is_given(weight.weight) && is_given(weight.codes.codes)) {
      return one_set(name, weight.codes.codes, weight.codes.scale_inv, layer.weight_again.spec, layer.experts * out, in,
                     scales);
    }
    if (layer.weight_again.any) {
      scale(fmt::format("{}.weight", name).c_str(), layer, layer.weight_again, weight.scale);
      return all({name, &weight.weight}, *layer.rows.dtypes.weight, ", the plan's dtype", layer.experts * out, in,
                 "[experts * out_features, in_features]");
    }
    one_set(name, weight.codes.transposed, weight.codes.transposed_scale_inv, layer.weight.spec, layer.experts * in,
            out, scales);
  }
  void wanted(const NamedTensor& grad, bool wanted) const {
    if (!wanted) refuse(grad.name, "is given, but backward did not want it, and kept nothing for it");
  }
  void grad_weight(const NamedTensor& grad, const GroupedLinearPlan& layer, bool accumulate) const {
    const auto [in, out, bias] = layer.rows.shape;
    if (!layer.rows.trains_weight) {
      refuse(grad.name, "is wanted, but the plan was made without it, so forward kept nothing for it");
    }
    dtype(grad, {Dtype::f32, Dtype::bf16, Dtype::f16}, "");
    if (accumulate) dtype(grad, {Dtype::f32}, ", which sums are added to");
    all(grad, grad.tensor->dtype, "", layer.experts * out, in, "[experts * out_features, in_features]");
  }

 private:
  void index(const char* name, const RowIndex& index, std::int64_t of) const {
    const std::string fault = fault_of(index, of, backend_->device());
    if (!fault.empty()) refuse(name, fault);
  }
  void one_set(const char* name, const Tensor& codes, const Tensor& scale_inv, const CastSpec& cast, std::int64_t rows,
               std::int64_t cols, std::int64_t scales) const {
    const char* const why = ": cast_expert_weights() makes them";
    all({name, &codes}, cast.out, why, rows, cols, "the experts' weights as their GEMM reads them");
    all({name, &scale_inv}, Dtype::f32, why, 1, scales, "scale_inv of each expert");
  }

  const ExpertsMlpPlan* plan_;
  Backend* backend_;
};

void check_forward(const ExpertsMlpPlan& plan, Backend& backend, const ExpertsMlpForwardTensors& t,
                   const LinearRun& run) {
  const ExpertsChecker check(plan, backend);
  const NamedTensor input{"input", &t.input};
  const NamedTensor output{"output", &t.output};
  const NamedTensor weights{"routing.weights", &t.routing.weights};
  check.run(run);
  check.tokens(input, t.input.rows);
  check.tokens(output, t.input.rows);
  check.routing(t.routing, t.input.rows);
  check.codes("up_codes", plan.up, t.up_codes);
  check.codes("down_codes", plan.down, t.down_codes);
  const NamedTensor up_bias{"up_bias", &t.up_bias};
  if (plan.up.bias) {
    check.of_experts(up_bias, plan.up.bias_dtype(), ", as the first GEMM adds it", plan.up.experts,
                     plan.hidden_columns());
  } else if (is_given(t.up_bias)) {
    check.refuse("up_bias", "is given, but the plan was made without one");
  }
  const Tensor tokens = bytes_of(t.routing.tokens);
  const Tensor named = bytes_of(t.routing.rows);
  check.disjoint(output, {input, weights, {"routing.tokens", &tokens}, {"routing.rows", &named}});
  const std::int64_t rows = t.routing.tokens.rows;
  const LinearPass pass = t.saved != nullptr ? LinearPass::training : LinearPass::inference;
  check.scale("up.input", plan.up, plan.up.rows.input_of(pass), t.up_scales.input);
  check.scale("down.input", plan.down, plan.down.rows.input_of(pass), t.down_scales.input);
  const std::size_t saved = t.saved != nullptr ? plan.saved_memory(rows).bytes : 0;
  const NamedTensor hidden{"hidden", &t.hidden};
  if (t.saved != nullptr) {
    check.hidden(hidden, rows);
    check.disjoint(hidden, {input, output, weights});
    check.region("saved", t.saved->memory, saved, {input, output, weights, hidden});
  }
  if (gives_scratch(run.stream)) return;
  const std::size_t scratch = plan.forward_scratch(rows, pass, observes_values(run)).bytes;
  check.scratch(t.scratch, scratch, {input, output, weights, hidden});
  if (t.saved != nullptr) check.saved_apart(t.saved->memory, saved, t.scratch, scratch);
}

void check_backward(const ExpertsMlpPlan& plan, Backend& backend, const ExpertsMlpBackwardTensors& t,
                    const LinearRun& run) {
  const ExpertsChecker check(plan, backend);
  check.run(run);
  check.stamp(t.saved, plan.identity);
  const std::int64_t rows = t.saved->tokens;
  const NamedTensor grad_output{"grad_output", &t.grad_output};
  const NamedTensor grad_router{"grad_router", &t.grad_router};
  const NamedTensor weights{"routing.weights", &t.routing.weights};
  check.tokens(grad_output, t.grad_output.rows);
  if (t.routing.tokens.rows != rows) {
    check.refuse("routing.tokens", fmt::format("has {} rows, but forward had {}", t.routing.tokens.rows, rows));
  }
  check.routing(t.routing, t.grad_output.rows);
  if (t.wants.router) {
    check.all(grad_router, Dtype::f32, ", as the router's weights are", 1, rows, "one for each row");
  }
  const NamedTensor hidden{"hidden", &t.hidden};
  if (t.wants.reaches_hidden()) {
    check.hidden(hidden, rows);
    check.weight("down", plan.down, t.down);
  }
  check.gradient_scale("up.grad_output", plan.up, t.wants.of_up(), t.up_scales);
  check.gradient_scale("down.grad_output", plan.down, t.wants.of_down(), t.down_scales);
  const NamedTensor grad_up_bias{"grad_up_bias", &t.grad_up_bias};
  if (t.wants.up_bias) {
    check.dtype(grad_up_bias, {Dtype::f32, Dtype::bf16, Dtype::f16}, "");
    check.of_experts(grad_up_bias, t.grad_up_bias.dtype, "", plan.up.experts, plan.hidden_columns());
    check.disjoint(grad_up_bias, {grad_output, grad_router, weights, hidden});
  }
  check.disjoint(grad_router, {grad_output, weights, hidden});
  const std::initializer_list<NamedTensor> tensors{grad_output, grad_router, weights, hidden, grad_up_bias};
  const ExpertsMlpKeptMemory kept = plan.kept_memory(rows, t.wants);
  const std::size_t saved = plan.saved_memory(rows).bytes;
  struct Kept {
    const char* name;
    ModuleChecker::Part part;
  };
  const std::array regions{Kept{"kept_input", {t.kept_input, kept.input_bytes}},
                           Kept{"kept_up", {t.kept_up, kept.up_bytes}},
                           Kept{"kept_down", {t.kept_down, kept.down_bytes}}};
  for (const auto& [name, part] : regions) {
    check.region(name, part.region, part.bytes, tensors);
    check.apart(name, part, "saved", {t.saved->memory, saved});
    for (const auto& [other, its] : regions) {
      if (name != other) check.apart(name, part, other, its);
    }
  }
  if (gives_scratch(run.stream)) return;
  const std::size_t scratch = plan.backward_scratch(rows, t.wants).bytes;
  check.scratch(t.scratch, scratch, tensors);
  check.saved_apart(t.saved->memory, saved, t.scratch, scratch);
  for (const auto& [name, part] : regions) check.apart(name, part, "the scratch", {t.scratch, scratch});
}

void check_input_gradient(const ExpertsMlpPlan& plan, Backend& backend, const ExpertsMlpInputGradientTensors& t,
                          const LinearRun& run) {
  const ExpertsChecker check(plan, backend);
  check.run(run);
  check.stamp(t.saved, plan.identity);
  const std::int64_t rows = t.saved->tokens;
  const NamedTensor grad_input{"grad_input", &t.grad_input};
  check.wanted(grad_input, t.wants.input);
  check.tokens(grad_input, t.grad_input.rows);
  check.ends(t.ends);
  check.rows_of_tokens("rows", t.rows, rows, t.grad_input.rows);
  check.weight("up", plan.up, t.up);
  const ExpertsMlpKeptMemory kept = plan.kept_memory(rows, t.wants);
  check.region("kept_input", t.kept_input, kept.input_bytes, {grad_input});
  check.region("kept_up", t.kept_up, kept.up_bytes, {grad_input});
  if (gives_scratch(run.stream)) return;
  const std::size_t scratch = plan.input_gradient_scratch(rows).bytes;
  check.scratch(t.scratch, scratch, {grad_input});
  check.apart("kept_input", {t.kept_input, kept.input_bytes}, "the scratch", {t.scratch, scratch});
  check.apart("kept_up", {t.kept_up, kept.up_bytes}, "the scratch", {t.scratch, scratch});
}

void check_weight_gradients(const ExpertsMlpPlan& plan, Backend& backend, const ExpertsMlpWeightGradientTensors& t,
                            const LinearRun& run) {
  const ExpertsChecker check(plan, backend);
  check.run(run);
  check.stamp(t.saved, plan.identity);
  check.ends(t.ends);
  const NamedTensor grad_up{"grad_up", &t.grad_up};
  const NamedTensor grad_down{"grad_down", &t.grad_down};
  const std::int64_t rows = t.saved->tokens;
  const ExpertsMlpKeptMemory kept = plan.kept_memory(rows, t.wants);
  check.region("saved", t.saved->memory, plan.saved_memory(rows).bytes, {grad_up, grad_down});
  if (is_given(t.grad_up)) {
    check.wanted(grad_up, t.wants.up_weight);
    check.grad_weight(grad_up, plan.up, t.accumulate_up);
    check.region("kept_up", t.kept_up, kept.up_bytes, {grad_up, grad_down});
  }
  if (is_given(t.grad_down)) {
    check.wanted(grad_down, t.wants.down_weight);
    check.grad_weight(grad_down, plan.down, t.accumulate_down);
    check.disjoint(grad_down, {grad_up});
    check.region("kept_down", t.kept_down, kept.down_bytes, {grad_up, grad_down});
  }
}

// ---- steps ---------------------------------------------------------------------------------------------------------

// The first half of the hidden columns, which is the gate's, or all of them; and the second half, or none.
Tensor first_of(const ExpertsMlpPlan& plan, Tensor hidden) {
  hidden.cols = plan.shape.hidden;
  return hidden;
}
Tensor second_of(const ExpertsMlpPlan& plan, Tensor hidden) {
  if (!plan.gated) return {};
  hidden.cols = plan.shape.hidden;
  if (hidden.data != nullptr) {
    hidden.data = static_cast<std::byte*>(hidden.data) + hidden.cols * size_of(hidden.dtype);
  }
  return hidden;
}

// What an expression reads besides x, by the inputs' names.
PointwiseTensors inputs_of(std::span<const PointwiseInput* const> inputs, const Tensor& up, const Tensor& router,
                           const Tensor& grad) {
  PointwiseTensors tensors{};
  std::ranges::transform(inputs, tensors.begin(), [&](const PointwiseInput* input) {
    return input->name == "up" ? up : input->kind == PointwiseInput::Kind::row ? router : grad;
  });
  return tensors;
}

// A layer's own saved memory within that of the experts.
LinearSaved saved_of(const GroupedLinearPlan& layer, const MemoryRegion& all, std::size_t begin, std::size_t bytes,
                     std::int64_t rows) {
  return {.memory = part_of(all, begin, bytes), .plan = layer.identity, .tokens = rows, .kept = true};
}

// A GEMM leaves rows as they are that no expert has; the casts after it read them.
void clear_unless_all_have_experts(const ExpertsRouting& routing, const Tensor& rows, Backend& backend,
                                   const LinearRun& run) {
  if (routing.all_have_experts || rows.empty()) return;
  backend.device_api().fill_zero(rows.data, static_cast<std::size_t>(rows.rows * rows.row_stride * size_of(rows.dtype)),
                                 run.stream);
}

void enqueue_forward(const ExpertsMlpPlan& plan, Backend& backend, const ExpertsMlpForwardTensors& t,
                     const LinearRun& run) {
  const Device device = backend.device();
  const std::int64_t rows = t.routing.tokens.rows;
  const bool keeps = t.saved != nullptr;
  if (keeps) t.saved->kept = false;
  const ExpertsMlpForwardScratch scratch =
      plan.forward_scratch(rows, keeps ? LinearPass::training : LinearPass::inference, observes_values(run));
  const ExpertsMlpSavedMemory saved = plan.saved_memory(rows);
  const MemoryRegion memory = keeps ? t.saved->memory : MemoryRegion{};
  const Tensor hidden = keeps ? t.hidden : scratch.hidden.in(t.scratch, device);
  const MemoryRegion of_layer = part_of(t.scratch, scratch.layer_begin, scratch.layer_bytes);
  LinearSaved up_saved = saved_of(plan.up, memory, saved.up_begin, saved.up_bytes, rows);
  LinearSaved down_saved = saved_of(plan.down, memory, saved.down_begin, saved.down_bytes, rows);

  clear_unless_all_have_experts(t.routing, hidden, backend, run);
  enqueue_grouped_forward(plan.up, backend,
                          {.input = t.input,
                           .row_index = t.routing.tokens,
                           .ends = t.routing.ends,
                           .bias = t.up_bias,
                           .output = hidden,
                           .codes = t.up_codes,
                           .scales = t.up_scales,
                           .saved = keeps ? &up_saved : nullptr,
                           .scratch = of_layer},
                          run);
  const Tensor outputs = scratch.rows.in(t.scratch, device);
  std::array<const PointwiseInput*, kMaxPointwiseInputs> inputs{};
  const auto read = plan.down.rows.fusion.prologue.inputs();
  std::ranges::transform(read, inputs.begin(), [](const PointwiseInput& input) { return &input; });
  enqueue_grouped_forward(plan.down, backend,
                          {.input = first_of(plan, hidden),
                           .prologue_inputs = inputs_of(std::span(inputs).first(read.size()), second_of(plan, hidden),
                                                        t.routing.weights, {}),
                           .ends = t.routing.ends,
                           .output = outputs,
                           .codes = t.down_codes,
                           .scales = t.down_scales,
                           .saved = keeps ? &down_saved : nullptr,
                           .scratch = of_layer},
                          run);
  backend.combine({.in = outputs.dtype}, {.input = outputs, .index = t.routing.rows, .output = t.output}, run.stream);
  stamp(t.saved, plan.identity, rows);
}

// The codes of the gradient of a layer's output: those for grad_input in `memory`, the others in kept memory.
Float8View gradient_codes(const GroupedLinearPlan& layer, const ExpertsMlpCodes& made, const ExpertsMlpCodes& kept,
                          const MemoryRegion& memory, const MemoryRegion& kept_memory, std::int64_t rows,
                          Device device) {
  Tensor transposed = kept.codes.in(kept_memory, device);
  if (kept.codes.used && !layer.in_slots()) transposed.cols = rows;  // its rows have room for more
  const Tensor of_transposed = kept.scale_inv.in(kept_memory, device);
  const ScaleGranularity scale = layer.in_slots() ? kRowGroups : kRowwise;
  return {.codes = made.codes.in(memory, device),
          .transposed = transposed,
          .scale_inv = made.scale_inv.used ? scale_inv_by_group(made.scale_inv.in(memory, device), scale, rows,
                                                                layer.rows.shape.out_features)
                                           : of_transposed,
          .transposed_scale_inv = of_transposed};
}

// The gradients of the activation's inputs with their maxima, if the cast after it takes these, and of the router's
// weights.
void enqueue_activation_gradients(const ExpertsMlpPlan& plan, Backend& backend, const ExpertsMlpBackwardTensors& t,
                                  const Tensor& grad_activation, const GroupedGradOutput& grad_hidden,
                                  const LinearRun& run) {
  const ElementwiseSpec spec = plan.activation_gradients(t.wants);
  const ElementwiseInputs inputs(spec);
  ElementwiseTensors tensors{
      .input = first_of(plan, t.hidden),
      .inputs = inputs_of(inputs.all(), second_of(plan, t.hidden), t.routing.weights, grad_activation),
      .output = first_of(plan, grad_hidden.values),
      .second = second_of(plan, grad_hidden.values),
      .row_amax = grad_hidden.row_amax,
      .column_amax = grad_hidden.column_amax};
  if (t.wants.router) tensors.sums = t.grad_router;
  backend.elementwise(spec, tensors, run.stream);
}

void enqueue_grad_input(const GroupedLinearPlan& layer, Backend& backend, const ExpertsBackwardWeight& weight,
                        const ExpertEnds& ends, const Float8View& codes, const MemoryRegion& of_weight,
                        const Tensor& into, const LinearRun& run) {
  GroupedLinearBackwardTensors tensors{.ends = ends, .grad_output = {}};
  tensors.grad_input = into;
  tensors.weight = weight.weight;
  tensors.weight_amax = weight.weight_amax;
  tensors.codes = weight.codes;
  tensors.scales.weight = weight.scale;
  multiply_grouped_grad_input(layer, backend, tensors, codes, of_weight, run);
}

void enqueue_backward(const ExpertsMlpPlan& plan, Backend& backend, const ExpertsMlpBackwardTensors& t,
                      const LinearRun& run) {
  const Device device = backend.device();
  const std::int64_t rows = t.saved->tokens;
  const ExpertsMlpBackwardScratch scratch = plan.backward_scratch(rows, t.wants);
  const ExpertsMlpKeptMemory kept = plan.kept_memory(rows, t.wants);

  const ObservedRange range(run.observer, plan.down.rows.name, "backward");
  const MemoryRegion& of_down = scratch.down_is_in_kept_input ? t.kept_input : t.scratch;
  const Float8View of_output = gradient_codes(plan.down, scratch.down, kept.down, of_down, t.kept_down, rows, device);
  if (t.wants.reaches_hidden() || t.wants.down_weight) {
    cast_grouped_grad_output(plan.down, backend,
                             {.values = t.grad_output,
                              .index = t.routing.tokens,
                              .wants = t.wants.of_down(),
                              .ends = t.routing.ends,
                              .codes = of_output,
                              .scale = t.down_scales.grad_output},
                             run);
  }
  if (!t.wants.reaches_hidden()) return;
  const Tensor grad_activation =
      scratch.grad_activation.in(scratch.grad_activation_is_in_kept_up ? t.kept_up : t.scratch, device);
  GroupedGradOutput grad_hidden{.values = scratch.grad_hidden.in(t.scratch, device),
                                .wants = t.wants.of_up(),
                                .ends = t.routing.ends,
                                .row_amax = scratch.row_amax.in(t.scratch, device),
                                .column_amax = scratch.column_amax.in(t.scratch, device),
                                .scale = t.up_scales.grad_output};
  clear_unless_all_have_experts(t.routing, grad_activation, backend, run);
  enqueue_grad_input(plan.down, backend, t.down, t.routing.ends, of_output,
                     part_of(t.scratch, scratch.weight_begin, scratch.weight_bytes), grad_activation, run);
  enqueue_activation_gradients(plan, backend, t, grad_activation, grad_hidden, run);
  if (t.wants.up_bias) sum_grouped_grad_bias(backend, grad_hidden, t.grad_up_bias, run.stream);
  if (!t.wants.input && !t.wants.up_weight) return;
  const ObservedRange of_up(run.observer, plan.up.rows.name, "backward");
  grad_hidden.codes = gradient_codes(plan.up, kept.input, kept.up, t.kept_input, t.kept_up, rows, device);
  cast_grouped_grad_output(plan.up, backend, grad_hidden, run);
}

void enqueue_input_gradient(const ExpertsMlpPlan& plan, Backend& backend, const ExpertsMlpInputGradientTensors& t,
                            const LinearRun& run) {
  const Device device = backend.device();
  const std::int64_t rows = t.saved->tokens;
  const ExpertsMlpInputGradientScratch scratch = plan.input_gradient_scratch(rows);
  const ExpertsMlpKeptMemory kept = plan.kept_memory(rows, t.wants);
  const ObservedRange range(run.observer, plan.up.rows.name, "backward");
  const Tensor grad_rows = scratch.grad_rows.in(t.scratch, device);
  enqueue_grad_input(plan.up, backend, t.up, t.ends,
                     gradient_codes(plan.up, kept.input, kept.up, t.kept_input, t.kept_up, rows, device),
                     part_of(t.scratch, scratch.weight_begin, scratch.weight_bytes), grad_rows, run);
  backend.combine({.in = grad_rows.dtype}, {.input = grad_rows, .index = t.rows, .output = t.grad_input}, run.stream);
}

void enqueue_weight_gradients(const ExpertsMlpPlan& plan, Backend& backend, const ExpertsMlpWeightGradientTensors& t,
                              const LinearRun& run) {
  const std::int64_t rows = t.saved->tokens;
  const ExpertsMlpSavedMemory saved = plan.saved_memory(rows);
  const ExpertsMlpKeptMemory kept = plan.kept_memory(rows, t.wants);
  const auto grad_weight = [&](const GroupedLinearPlan& layer, const LinearSaved& of_layer, const Float8View& codes,
                               const Tensor& into, bool accumulate) {
    const ObservedRange range(run.observer, layer.rows.name, "backward");
    GroupedLinearBackwardTensors tensors{.saved = &of_layer, .ends = t.ends, .grad_output = {}};
    tensors.grad_weight = into;
    tensors.accumulate = accumulate;
    multiply_grouped_grad_weight(layer, backend, tensors, codes, run);
  };
  const MemoryRegion& memory = t.saved->memory;
  if (is_given(t.grad_down)) {
    grad_weight(plan.down, saved_of(plan.down, memory, saved.down_begin, saved.down_bytes, rows),
                gradient_codes(plan.down, {}, kept.down, {}, t.kept_down, rows, backend.device()), t.grad_down,
                t.accumulate_down);
  }
  if (is_given(t.grad_up)) {
    grad_weight(plan.up, saved_of(plan.up, memory, saved.up_begin, saved.up_bytes, rows),
                gradient_codes(plan.up, {}, kept.up, {}, t.kept_up, rows, backend.device()), t.grad_up,
                t.accumulate_up);
  }
}

}  // namespace

void experts_mlp_forward(const ExpertsMlpPlan& plan, Backend& backend, const ExpertsMlpForwardTensors& tensors,
                         const LinearRun& run) {
  const LayerCall call(plan.subject, run);
  check_forward(plan, backend, tensors, run);
  const LinearPass pass = tensors.saved != nullptr ? LinearPass::training : LinearPass::inference;
  call.with_scratch(
      tensors, nullptr,
      [&] { return plan.forward_scratch(tensors.routing.tokens.rows, pass, observes_values(run)).bytes; },
      [&](const ExpertsMlpForwardTensors& all) { enqueue_forward(plan, backend, all, run); });
}

void experts_mlp_backward(const ExpertsMlpPlan& plan, Backend& backend, const ExpertsMlpBackwardTensors& tensors,
                          const LinearRun& run) {
  const LayerCall call(plan.subject, run);
  check_backward(plan, backend, tensors, run);
  call.with_scratch(
      tensors, nullptr, [&] { return plan.backward_scratch(tensors.saved->tokens, tensors.wants).bytes; },
      [&](const ExpertsMlpBackwardTensors& all) { enqueue_backward(plan, backend, all, run); });
}

void experts_mlp_input_gradient(const ExpertsMlpPlan& plan, Backend& backend,
                                const ExpertsMlpInputGradientTensors& tensors, const LinearRun& run) {
  const LayerCall call(plan.subject, run);
  check_input_gradient(plan, backend, tensors, run);
  call.with_scratch(
      tensors, nullptr, [&] { return plan.input_gradient_scratch(tensors.saved->tokens).bytes; },
      [&](const ExpertsMlpInputGradientTensors& all) { enqueue_input_gradient(plan, backend, all, run); });
}

void experts_mlp_weight_gradients(const ExpertsMlpPlan& plan, Backend& backend,
                                  const ExpertsMlpWeightGradientTensors& tensors, const LinearRun& run) {
  const LayerCall call(plan.subject, run);
  check_weight_gradients(plan, backend, tensors, run);
  enqueue_weight_gradients(plan, backend, tensors, run);
}

}  // namespace ingot
