#include "ingot/nn/linear/grouped_linear_checks.h"

#include <fmt/format.h>

#include <initializer_list>
#include <string>

#include "ingot/nn/linear/layer_call.h"
#include "ingot/nn/linear/linear_checker.h"
#include "ingot/nn/linear/linear_step.h"
#include "ingot/nn/linear/tensor_checks.h"
#include "ingot/runtime/cast/row_index.h"
#include "ingot/runtime/util/count_of.h"

namespace ingot {

MemoryRegion lent_by_grad_weight(const GroupedLinearPlan& plan, const GroupedLinearBackwardTensors& t) {
  const Tensor& lender = t.grad_weight;
  const bool is_read = overlap(lender, t.weight) || overlap(lender, t.codes.codes);
  if (!is_given(lender) || t.accumulate || lender.row_stride != lender.cols || is_read) return {};
  const MemoryRegion region{lender.data, static_cast<std::size_t>(lender.rows * lender.cols * size_of(lender.dtype))};
  const bool aligned = reinterpret_cast<std::uintptr_t>(region.data) % kLinearAlignment == 0;
  return aligned && region.bytes >= plan.weight_again_memory().bytes ? region : MemoryRegion{};
}

std::size_t grouped_backward_scratch(const GroupedLinearPlan& plan, const GroupedLinearBackwardTensors& t) {
  const std::int64_t tokens = t.saved->tokens;
  const LinearGradients wants = wanted_of_grouped(t);
  if (!wants.input || lent_by_grad_weight(plan, t).data == nullptr) return plan.backward_scratch(tokens, wants);
  return plan.grad_output_scratch(tokens, wants).bytes;
}

namespace {

Tensor memory_of(const std::optional<RowIndex>& index) { return index ? bytes_of(*index) : Tensor{}; }

class GroupedChecker : public LinearChecker {
 public:
  GroupedChecker(const GroupedLinearPlan& plan, Backend& backend)
      : LinearChecker(plan.rows, backend.device_api()), plan_(&plan), backend_(&backend) {}

  void run(const LinearRun& run) const {
    stream(backend_->device_api(), run.stream);
    if (run.side != nullptr) refuse("side", "is given, but the work of experts is on one stream");
  }
  void weight(const Tensor& tensor) const {
    all({"weight", &tensor}, *rows().dtypes.weight, ", the plan's dtype", plan_->experts * rows().shape.out_features,
        rows().shape.in_features, "[experts * out_features, in_features]");
  }
  void weight_amax(const char* name, const Tensor& amax) const {
    if (!is_given(amax)) return;
    const std::int64_t count = plan_->weight_amax_count();
    if (count == 0) refuse(name, "is given, but backward looks for no maxima that forward's cast finds: leave it out");
    all({name, &amax}, Dtype::f32, ", as maxima are", 1, count, "the weights' maxima: the plan says how many");
  }
  void scale(const char* of, const LinearCast& cast, const LinearScale& scale) const {
    LinearChecker::scale(of, cast, scale, plan_->experts);
  }
  void ends(const ExpertEnds& ends) const {
    if (ends.experts != plan_->experts) {
      refuse("ends", fmt::format("are of {}, but the layer has {}", count_of(ends.experts, "expert"), plan_->experts));
    }
    if (ends.capacity) refuse("ends", "have a capacity, but the rows of these experts follow each other");
  }
  void row_index(const char* name, const std::optional<RowIndex>& index, const Tensor& of) const {
    if (!index) return;
    const std::string fault = fault_of(*index, of.rows, backend_->device());
    if (!fault.empty()) refuse(name, fault);
  }
  // For grad_input: the weight that is cast again, or its codes.
  void weight_of_backward(const GroupedLinearBackwardTensors& t) const {
    const auto [in, out, bias] = rows().shape;
    const ScaleGranularity scale = plan_->weight_scale_of_grad_input();
    if (!plan_->weight_again.any) {
      return expert_codes({"transposed codes", &t.codes.transposed},
                          {"scale_inv of transposed codes", &t.codes.transposed_scale_inv}, plan_->weight.spec, in, out,
                          scale);
    }
    if (!is_given(t.weight) && is_given(t.codes.codes)) {
      return expert_codes({"codes", &t.codes.codes}, {"scale_inv of codes", &t.codes.scale_inv},
                          plan_->weight_again.spec, out, in, scale);
    }
    weight(t.weight);
    weight_amax("weight_amax", t.weight_amax);
    this->scale("weight", plan_->weight_again, t.scales.weight);
  }
  // One set of codes and its scale_inv: all experts' rows of `of`, whose own are one expert's.
  void expert_codes(const NamedTensor& codes, const NamedTensor& scale_inv, const CastSpec& cast, std::int64_t own,
                    std::int64_t cols, ScaleGranularity scale) const {
    const char* const why = ": cast_expert_weights() makes them";
    all(codes, cast.out, why, plan_->experts * own, cols, "the experts' weights as their GEMM reads them");
    const auto [in, out, bias] = rows().shape;
    all(scale_inv, Dtype::f32, why, 1, plan_->experts * scale_count(scale, out, in), "scale_inv of each expert");
  }

 private:
  const LinearPlan& rows() const { return plan_->rows; }

  const GroupedLinearPlan* plan_;
  Backend* backend_;
};

}  // namespace

void check_grouped_forward(const GroupedLinearPlan& plan, Backend& backend, const GroupedLinearForwardTensors& t,
                           const LinearRun& run) {
  const GroupedChecker check(plan, backend);
  const auto [in, out, bias] = plan.rows.shape;
  const std::int64_t rows = rows_of(t.input, t.row_index);
  const Tensor index_bytes = memory_of(t.row_index);
  const NamedTensor input{"input", &t.input};
  const NamedTensor index{"row_index", &index_bytes};
  const NamedTensor output{"output", &t.output};
  check.run(run);
  check.all(input, plan.rows.dtypes.input, ", the plan's dtype", t.input.rows, in,
            t.row_index ? "[rows of the tokens, in_features]" : "[rows of all experts, in_features]");
  check.row_index("row_index", t.row_index, t.input);
  if (t.row_index && plan.rows.fusion.prologue) {
    check.refuse("row_index", "is given, but the layer's prologue computes its values row by row: compute them first");
  }
  check.all(output, *plan.rows.dtypes.output, ", the plan's dtype", rows, out,
            t.row_index ? "[rows of the index, out_features]" : "[rows of the input, out_features]");
  check.prologue_inputs(t.prologue_inputs, rows);
  check.ends(t.ends);
  check.expert_codes({"codes", &t.codes.codes}, {"scale_inv of codes", &t.codes.scale_inv}, plan.weight.spec, out, in,
                     plan.weight.spec.scale);
  const LinearPass pass = t.saved != nullptr ? LinearPass::training : LinearPass::inference;
  check.scale("input", plan.rows.input_of(pass), t.scales.input);
  const NamedTensor bias_tensor{"bias", &t.bias};
  if (plan.bias) {
    check.of_experts(bias_tensor, plan.bias_dtype(), ", as the output GEMM adds it", plan.experts, out);
  } else if (is_given(t.bias)) {
    check.refuse("bias", "is given, but the plan was made without one");
  }
  check.disjoint(output, {input, index, bias_tensor});
  if (t.saved != nullptr) {
    check.region("saved", t.saved->memory, plan.saved_memory(rows).bytes, {input, output, index});
  }
  if (gives_scratch(run.stream)) return;
  check.scratch(t.scratch, plan.forward_scratch(rows, pass, observes_values(run)), {input, output, index});
}

void check_grouped_backward(const GroupedLinearPlan& plan, Backend& backend, const GroupedLinearBackwardTensors& t,
                            const LinearRun& run) {
  const LinearGradients wants = wanted_of_grouped(t);
  const GroupedChecker check(plan, backend);
  check.run(run);
  check.stamp(t.saved, plan.identity);
  const auto [in, out, bias] = plan.rows.shape;
  const std::int64_t tokens = t.saved->tokens;
  const std::optional<RowIndex>& index = t.grad_output_index;
  const Tensor index_bytes = memory_of(index);
  const NamedTensor grad_output{"grad_output", &t.grad_output};
  const NamedTensor grad_output_index{"grad_output_index", &index_bytes};
  const NamedTensor grad_input{"grad_input", &t.grad_input};
  const NamedTensor grad_weight{"grad_weight", &t.grad_weight};
  check.ends(t.ends);
  check.all(grad_output, *plan.rows.dtypes.output, ", the plan's dtype", index ? t.grad_output.rows : tokens, out,
            index ? "[rows of the tokens, out_features]" : "[rows of the last forward's input, out_features]");
  check.row_index("grad_output_index", index, t.grad_output);
  if (index && index->rows != tokens) {
    check.refuse("grad_output_index", fmt::format("has {}, but the experts of the last forward had {}",
                                                  count_of(index->rows, "row"), tokens));
  }
  check.scale("grad_output", plan.rows.grad_output_of(wants).cast, t.scales.grad_output);
  if (wants.input) {
    check.dtype(grad_input, {Dtype::f32, Dtype::bf16, Dtype::f16}, "");
    check.all(grad_input, t.grad_input.dtype, "", tokens, in, "[rows of the last forward's input, in_features]");
    check.disjoint(grad_input, {grad_output, grad_output_index});
    check.weight_of_backward(t);
  }
  if (wants.weight) {
    if (!plan.rows.trains_weight) {
      check.refuse("grad_weight", "is given, but the plan was made without it, so forward kept nothing for it");
    }
    check.dtype(grad_weight, {Dtype::f32, Dtype::bf16, Dtype::f16}, "");
    if (t.accumulate) check.dtype(grad_weight, {Dtype::f32}, ", which sums are added to");
    check.all(grad_weight, t.grad_weight.dtype, "", plan.experts * out, in, "[experts * out_features, in_features]");
    check.disjoint(grad_weight, {grad_output, grad_output_index, grad_input});
  } else if (t.accumulate) {
    check.refuse("grad_weight", "is missing, but accumulate asks for it to be added to");
  }
  const NamedTensor grad_bias{"grad_bias", &t.grad_bias};
  if (is_given(t.grad_bias)) {
    check.dtype(grad_bias, {Dtype::f32, Dtype::bf16, Dtype::f16}, "");
    check.of_experts(grad_bias, t.grad_bias.dtype, "", plan.experts, out);
    check.disjoint(grad_bias, {grad_output, grad_output_index, grad_input, grad_weight});
  }
  const std::initializer_list<NamedTensor> tensors{grad_output, grad_output_index, grad_input, grad_weight, grad_bias};
  if (wants.weight) check.region("saved", t.saved->memory, plan.saved_memory(tokens).bytes, tensors);
  if (!gives_scratch(run.stream)) check.scratch(t.scratch, grouped_backward_scratch(plan, t), tensors);
}

void check_expert_weights(const GroupedLinearPlan& plan, Backend& backend, const ExpertWeightTensors& tensors,
                          const LinearRun& run) {
  const GroupedChecker check(plan, backend);
  check.run(run);
  check.weight(tensors.weight);
  check.weight_amax("amax", tensors.amax);
  check.scale("weight", plan.weight, tensors.scale);
  check.disjoint({"amax", &tensors.amax}, {{"weight", &tensors.weight}});
  check.region("into", tensors.into, plan.weight_memory().bytes,
               {{"weight", &tensors.weight}, {"amax", &tensors.amax}});
}

}  // namespace ingot
