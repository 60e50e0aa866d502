#include "ingot/nn/modules/experts_mlp_checks.h"

#include <fmt/format.h>

#include <array>
#include <initializer_list>

#include "ingot/nn/linear/linear_checker.h"
#include "ingot/nn/linear/linear_functions.h"
#include "ingot/nn/linear/linear_step.h"
#include "ingot/runtime/cast/row_index.h"
#include "ingot/runtime/util/count_of.h"

namespace ingot {
namespace {

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

}  // namespace

void check_experts_mlp_forward(const ExpertsMlpPlan& plan, Backend& backend, const ExpertsMlpForwardTensors& t,
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

void check_experts_mlp_backward(const ExpertsMlpPlan& plan, Backend& backend, const ExpertsMlpBackwardTensors& t,
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

void check_experts_mlp_input_gradient(const ExpertsMlpPlan& plan, Backend& backend,
                                      const ExpertsMlpInputGradientTensors& t, const LinearRun& run) {
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

void check_experts_mlp_weight_gradients(const ExpertsMlpPlan& plan, Backend& backend,
                                        const ExpertsMlpWeightGradientTensors& t, const LinearRun& run) {
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

}  // namespace ingot
