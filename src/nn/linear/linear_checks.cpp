#include "ingot/nn/linear/linear_checks.h"

#include <fmt/format.h>

#include <cstdint>
#include <initializer_list>
#include <string>

#include "ingot/nn/linear/layer_call.h"
#include "ingot/nn/linear/linear_checker.h"
#include "ingot/nn/linear/linear_step.h"
#include "ingot/nn/linear/tensor_checks.h"
#include "ingot/runtime/util/count_of.h"

namespace ingot {
namespace {

void check_input(const LinearChecker& check, const LinearForwardTensors& t) {
  const LinearPlan& plan = check.plan();
  const NamedTensor input{"input", &t.input};
  const std::int64_t in = plan.shape.in_features;
  if (!is_given(t.input) && in != 0) {
    check.refuse(input.name, fmt::format("is missing; it must have {} = in_features", count_of(in, "column")));
  }
  check.dtype(input, {Dtype::f32, Dtype::bf16, Dtype::f16}, "");
  check.dtype(input, {plan.dtypes.input}, ", the plan's dtype");
  if (t.input.cols == in) return;
  check.refuse(input.name,
               fmt::format("is {}, but must have {} = in_features", describe(t.input), count_of(in, "column")));
}

void check_bias(const LinearChecker& check, const LinearForwardTensors& t) {
  const LinearPlan& plan = check.plan();
  const NamedTensor bias{"bias", &t.bias};
  if (!plan.shape.bias) {
    if (!is_given(t.bias)) return;
    check.refuse(bias.name, "is given, but the layer was made without one: set bias in its LinearShape");
  }
  const bool narrow = *plan.dtypes.output == Dtype::f32 && is_float8(plan.config.output);
  check.shape(bias, 1, plan.shape.out_features, "a vector of out_features");
  check.dtype(bias, {*plan.dtypes.bias},
              plan.rounds_bias() ? ", the plan's dtype"
              : narrow           ? ": an FP8 GEMM with f32 output takes a bf16 bias"
                                 : ", as input is");
  check.memory(bias);
}

// Why a tensor has this dtype.
const char* because(const LinearPlan& plan, Dtype dtype) {
  return dtype == plan.dtypes.input ? ", as input is" : ", the plan's dtype";
}

// An FP8 GEMM writes any dtype; one in high precision that of its operands, or f32.
void check_gradient_dtype(const LinearChecker& check, const NamedTensor& gradient, const GemmConfig& gemm) {
  const Dtype dtype = check.plan().dtypes.input;
  const Dtype output = *check.plan().dtypes.output;
  if (is_float8(gemm)) {
    check.dtype(gradient, {Dtype::f32, Dtype::bf16, Dtype::f16}, "");
  } else if (output != dtype) {
    check.refuse(gradient.name,
                 fmt::format("is wanted, but its GEMM is in high precision, whose operands have one dtype, and "
                             "grad_output is {} with an input of {}: choose a recipe that casts grad_output for it",
                             name(output), name(dtype)));
  } else if (dtype == Dtype::f32) {
    check.dtype(gradient, {dtype}, ", as input is");
  } else {
    check.dtype(gradient, {dtype, Dtype::f32}, "");
  }
}

// What is read of grad_output must be its codes alone.
void check_cast_grad_output(const LinearChecker& check, const LinearBackwardTensors& t) {
  const LinearGradOutputCast& order = check.plan().grad_output_of(wanted_gradients(t));
  const bool reads_codes = (!is_given(t.grad_input) || order.codes) && (!is_given(t.grad_weight) || order.transposed);
  if (reads_codes && !order.folds && !is_given(t.grad_bias) && check.plan().fusion.epilogue.empty()) return;
  check.refuse("grad_output_is_cast",
               "is set, but this backward reads the values too: for an epilogue, a GEMM in high precision, folded "
               "scale_inv or grad_bias");
}

// Does a forward, or its backward, read the values of the input besides its codes?
bool reads_input_values(const LinearPlan& plan, bool keeps) {
  return plan.output_reads_weight() || plan.fusion.prologue ||
         (keeps && plan.trains_weight && plan.grad_weight_reads_input());
}

void check_cast_input(const LinearChecker& check, bool keeps) {
  if (!check.plan().given_input.any && !reads_input_values(check.plan(), keeps)) return;
  check.refuse(
      "input_is_cast",
      "is set, but the layer reads the values too, or is given codes: for a prologue, a GEMM in high precision, "
      "a cast in backward or given_input");
}

void check_grad_input_of_others(const LinearChecker& check, const LinearBackwardTensors& t) {
  if (!is_given(t.grad_input_of_others)) return;
  const NamedTensor others{"grad_input_of_others", &t.grad_input_of_others};
  if (!is_given(t.grad_input)) check.refuse(others.name, "is given, but grad_input, its sum, is not: give it memory");
  check.all(others, t.grad_input.dtype, ", as grad_input is", t.saved->tokens, check.plan().shape.in_features,
            "[rows of the last forward's input, in_features]");
  const bool in_place =
      t.grad_input_of_others.data == t.grad_input.data && t.grad_input_of_others.row_stride == t.grad_input.row_stride;
  if (!in_place) check.disjoint({"grad_input", &t.grad_input}, {others});
  check.disjoint({"grad_weight", &t.grad_weight}, {others});
  check.disjoint({"grad_bias", &t.grad_bias}, {others});
}

void check_gradients(const LinearChecker& check, const LinearBackwardTensors& t) {
  const LinearPlan& plan = check.plan();
  const auto [in, out, bias] = plan.shape;
  const Dtype dtype = *plan.dtypes.output;
  const std::int64_t tokens = t.saved->tokens;
  const NamedTensor grad_weight{"grad_weight", &t.grad_weight};
  const NamedTensor grad_bias{"grad_bias", &t.grad_bias};
  const bool one = expands_grad_output(plan, t);
  const NamedTensor grad_output{"grad_output", &t.grad_output};
  check.dtype(grad_output, {dtype}, because(plan, dtype));
  check.shape(grad_output, one ? 1 : tokens, one ? 1 : out, "[rows of the last forward's input, out_features]");
  if (t.grad_output_is_cast) {
    check_cast_grad_output(check, t);
  } else {
    check.memory(grad_output);
  }
  if (is_given(t.grad_input)) {
    const NamedTensor grad_input{"grad_input", &t.grad_input};
    check_gradient_dtype(check, grad_input, plan.config.grad_input);
    check.shape(grad_input, tokens, in, "[rows of the last forward's input, in_features]");
    check.memory(grad_input);
  }
  check_grad_input_of_others(check, t);
  if (t.accumulate && !is_given(t.grad_weight)) {
    check.refuse(grad_weight.name, "is missing, but accumulate asks for it to be added to");
  }
  if (is_given(t.grad_weight)) {
    if (!plan.trains_weight) {
      check.refuse(grad_weight.name,
                   "is given, but the plan was made without it, so forward kept nothing for it: set "
                   "LinearPlanOptions::grad_weight");
    }
    check_gradient_dtype(check, grad_weight, plan.config.grad_weight);
    check.shape(grad_weight, out, in, "[out_features, in_features]");
    check.memory(grad_weight);
  }
  if (!is_given(t.grad_bias)) return;
  if (!bias) check.refuse(grad_bias.name, "is given, but the layer was made without a bias");
  check.dtype(grad_bias, {Dtype::f32, Dtype::bf16, Dtype::f16}, "");
  check.shape(grad_bias, 1, out, "a vector of out_features");
  check.memory(grad_bias);
}

// Several results come from one grad_output: a result written over it, or over another result, would corrupt the next
// one. The tensors of the forward matter only where this config reads them again.
void check_results_apart(const LinearChecker& check, const LinearBackwardTensors& t) {
  const LinearPlan& plan = check.plan();
  const NamedTensor grad_output{"grad_output", &t.grad_output};
  const NamedTensor grad_input{"grad_input", &t.grad_input};
  const NamedTensor grad_weight{"grad_weight", &t.grad_weight};
  const NamedTensor grad_bias{"grad_bias", &t.grad_bias};
  check.disjoint(grad_input, {grad_output, grad_weight, grad_bias});
  check.disjoint(grad_weight, {grad_output, grad_bias});
  check.disjoint(grad_bias, {grad_output});
  const bool reads_input = !is_float8(plan.config.grad_weight) || plan.config.input == OtherCodes::again;
  for (const NamedTensor& result : {grad_input, grad_weight, grad_bias}) {
    if (plan.gradient.of_output()) check.disjoint(result, {{"output", &t.output}});
    for (std::size_t i = 0; i < kMaxPointwiseInputs; ++i) {
      if (reads_input) check.disjoint_from_input(result, "an input of the prologue", t.prologue_inputs[i]);
      check.disjoint_from_input(result, "an input of the epilogue", t.epilogue_inputs[i]);
    }
    if (reads_input) check.disjoint(result, {{"input", &t.input}});
    if (plan.grad_input_reads_weight()) check.disjoint(result, {{"weight", &t.weight}});
  }
}

void check_stamp(const LinearChecker& check, const LinearSaved* saved) {
  if (saved == nullptr || !saved->kept) {
    check.refuse("backward", "has no forward() before it that kept what it needs: run forward() first, or recompute()");
  }
  if (saved->plan == check.plan().identity) return;
  check.refuse("saved", "was written by a forward of another plan: give this backward what its own forward kept");
}

// One set of the given input's codes, [rows, cols], and its scale_inv.
void check_given(const LinearChecker& check, const NamedTensor& codes, std::int64_t rows, std::int64_t cols,
                 const NamedTensor& scale_inv, ScaleGranularity scale) {
  if (!is_given(*codes.tensor) && rows != 0 && cols != 0) {
    check.refuse(codes.name,
                 "is missing, but the plan was made with given_input: linear_input_codes() has those of the layer that "
                 "casts it");
  }
  check.all(codes, check.plan().given_input.spec.out, ", the input's format", rows, cols,
            "the input as its GEMM reads it");
  // Those of a row's groups may be ordered by group, as linear_input_codes() has them, or row by row.
  if (scale.rows == 1 && scale.cols != 0 && scale_inv.tensor->rows > 1) {
    return check.all(scale_inv, Dtype::f32, ", as scale_inv are", scale_count(scale, 1, cols), rows,
                     "a row of scale_inv for each group of columns");
  }
  check.all(scale_inv, Dtype::f32, ", as scale_inv are", 1, scale_count(scale, rows, cols),
            "a factor for each scale of the input");
}

void refuse_given(const LinearChecker& check, const Float8View& input) {
  if (check.plan().given_input.any || (!is_given(input.codes) && !is_given(input.transposed))) return;
  check.refuse("given_input", "is given, but the plan casts its input itself: set LinearPlanOptions::given_input");
}

void check_given_of_forward(const LinearChecker& check, const LinearForwardTensors& t) {
  refuse_given(check, t.given_input);
  const CastSpec& spec = check.plan().given_input.spec;
  if (!check.plan().given_input.any || !spec.codes) return;
  check_given(check, {"given_input.codes", &t.given_input.codes}, t.input.rows, t.input.cols,
              {"given_input.scale_inv", &t.given_input.scale_inv}, spec.scale);
}

void check_given_of_backward(const LinearChecker& check, const LinearBackwardTensors& t) {
  refuse_given(check, t.given_input);
  const CastSpec& spec = check.plan().given_input.spec;
  if (!check.plan().given_input.any || !spec.transposed || !is_given(t.grad_weight)) return;
  const std::int64_t tokens = t.saved->tokens;
  const std::int64_t in = check.plan().shape.in_features;
  check_given(check, {"given_input.transposed", &t.given_input.transposed}, in, tokens,
              {"given_input.transposed_scale_inv", &t.given_input.transposed_scale_inv},
              transposed(spec.transposed_scale.value_or(spec.scale)));
}

// What forward had and backward reads again.
void check_read_again(const LinearChecker& check, const LinearBackwardTensors& t) {
  const LinearPlan& plan = check.plan();
  const auto [in, out, bias] = plan.shape;
  const std::int64_t tokens = t.saved->tokens;
  const LinearGradients wants = wanted_gradients(t);
  const bool codes_are_given = plan.weight_again.any && is_given(t.codes.transposed);
  if (wants.input && plan.grad_input_reads_weight() && !codes_are_given) {
    check.all({"weight", &t.weight}, *plan.dtypes.weight, ": this config reads it again for grad_input", out, in,
              "[out_features, in_features]");
  }
  if (wants.weight && plan.grad_weight_reads_input()) {
    check.all({"input", &t.input}, plan.dtypes.input, ": this config reads it again for grad_weight", tokens, in,
              "[rows of the last forward's input, in_features]");
    if (plan.input_again.any) check.prologue_inputs(t.prologue_inputs, tokens);
  }
  if (plan.gradient.of_output()) {
    check.all({"output", &t.output}, *plan.dtypes.output, ": the epilogue's derivative is computed from it", tokens,
              out, "[rows of the last forward's input, out_features]");
  }
  check.epilogue_inputs(t.epilogue_inputs, tokens);
}

void check_grad_output_amax(const LinearChecker& check, const LinearBackwardTensors& t) {
  if (!is_given(t.grad_output_amax)) return;
  const NamedTensor amax{"grad_output_amax", &t.grad_output_amax};
  if (t.grad_output_is_cast || !check.plan().takes_grad_output_amax(wanted_gradients(t))) {
    check.refuse(amax.name,
                 "is given, but only a cast of grad_output itself takes it, with one dynamic scale: ask the plan's "
                 "takes_grad_output_amax()");
  }
  check.all(amax, Dtype::f32, ", as the maxima of casts are", 1, 1, "one for all of grad_output");
  for (const NamedTensor& result :
       {NamedTensor{"grad_input", &t.grad_input}, {"grad_weight", &t.grad_weight}, {"grad_bias", &t.grad_bias}}) {
    check.disjoint(result, {amax});
  }
}

void check_codes_of_backward(const LinearChecker& check, const LinearBackwardTensors& t) {
  const LinearPlan& plan = check.plan();
  const auto [in, out, bias] = plan.shape;
  if (!is_given(t.grad_input) || !is_float8(plan.config.grad_input)) return;
  const NamedTensor transposed{"codes.transposed", &t.codes.transposed};
  const NamedTensor scale_inv{"codes.scale_inv", &t.codes.scale_inv};
  const NamedTensor own{"codes.transposed_scale_inv", &t.codes.transposed_scale_inv};
  if (plan.weight_again.any && !is_given(t.codes.transposed)) return;
  const bool has_own = plan.weight_again.any || plan.weight.spec.transposed_scale;
  check.codes(transposed, in, out, has_own ? own : scale_inv, plan.weight_scale_of_grad_input());
}

void check_scratch(const LinearChecker& check, const MemoryRegion& scratch, std::size_t bytes, const Stream& stream,
                   std::initializer_list<NamedTensor> tensors) {
  if (scratch.data != nullptr || !gives_scratch(stream)) check.scratch(scratch, bytes, tensors);
}

void check_forward_memory(const LinearChecker& check, const LinearForwardTensors& t, const LinearRun& run,
                          LinearPass pass) {
  const LinearPlan& plan = check.plan();
  const std::int64_t tokens = t.input.rows;
  const std::size_t scratch = plan.forward_scratch(tokens, pass, observes_values(run)).bytes;
  const auto tensors = {
      NamedTensor{"input", &t.input}, {"weight", &t.weight}, {"codes", &t.codes.codes}, {"output", &t.output}};
  check_scratch(check, t.scratch, scratch, run.stream, tensors);
  if (pass == LinearPass::inference) return;
  const std::size_t saved = plan.saved_memory(tokens).bytes;
  check.region("saved", t.saved->memory, saved, tensors);
  check.saved_apart(t.saved->memory, saved, t.scratch, scratch);
}

}  // namespace

void check_region(const LinearPlan& plan, const char* what, const MemoryRegion& region, std::size_t bytes) {
  ModuleChecker(plan.subject).region(what, region, bytes, {});
}

void check_forward_tensors(const LinearPlan& plan, const DeviceApi& device_api, const LinearForwardTensors& t,
                           const Stream& stream, bool weight_is_given) {
  const LinearChecker check(plan, device_api);
  const auto [in, out, bias] = plan.shape;
  check.stream(device_api, stream);
  check_input(check, t);
  const NamedTensor input{"input", &t.input};
  const NamedTensor weight{"weight", &t.weight};
  const NamedTensor output{"output", &t.output};
  const bool has_weight = weight_is_given || plan.output_reads_weight();
  if (has_weight) check.dtype(weight, {*plan.dtypes.weight}, because(plan, *plan.dtypes.weight));
  check.dtype(output, {*plan.dtypes.output}, because(plan, *plan.dtypes.output));
  if (has_weight) check.shape(weight, out, in, "[out_features, in_features]");
  check.shape(output, t.input.rows, out, "[rows of input, out_features]");
  if (t.input_is_cast) {
    check_cast_input(check, t.saved != nullptr);
  } else if (!plan.given_input.any || reads_input_values(plan, t.saved != nullptr)) {
    check.memory(input);
  }
  if (has_weight) check.memory(weight);
  check.memory(output);
  check_bias(check, t);
  check.disjoint(output, {input, weight, {"bias", &t.bias}});
  check.prologue_inputs(t.prologue_inputs, t.input.rows);
  check.epilogue_inputs(t.epilogue_inputs, t.input.rows);
  for (std::size_t i = 0; i < kMaxPointwiseInputs; ++i) {
    check.disjoint_from_input(output, "an input of the prologue", t.prologue_inputs[i]);
    check.disjoint_from_input(output, "an input of the epilogue", t.epilogue_inputs[i]);
  }
}

void refuse_one_element(const LinearPlan& plan, const LinearBackwardTensors& tensors) {
  if (!expands_grad_output(plan, tensors)) return;
  refuse_argument(
      fmt::format("{} grad_output", plan.subject).c_str(),
      "is [1, 1], which stands for a whole matrix in a linear layer alone; here give [tokens, out_features]");
}

void check_backward_tensors(const LinearPlan& plan, const DeviceApi& device_api, const LinearBackwardTensors& t,
                            const Stream& stream) {
  const LinearChecker check(plan, device_api);
  check.stream(device_api, stream);
  check_stamp(check, t.saved);
  check_gradients(check, t);
  check_results_apart(check, t);
}

void check_linear_forward(const LinearPlan& plan, const DeviceApi& device_api, const LinearForwardTensors& t,
                          const LinearRun& run) {
  const LinearChecker check(plan, device_api);
  check_forward_tensors(plan, device_api, t, run.stream, is_given(t.weight));
  if (t.weight_into) {
    check_weight_cast(plan, device_api, {.weight = t.weight, .into = *t.weight_into, .scale = t.scales.weight}, run);
  } else if (!plan.output_reads_weight()) {
    check_weight_codes(plan, device_api, t.codes);
  }
  check_given_of_forward(check, t);
  const LinearPass pass = t.saved != nullptr ? LinearPass::training : LinearPass::inference;
  check.scale("input", plan.input_of(pass), t.scales.input);
  check_forward_memory(check, t, run, pass);
}

void check_linear_recompute(const LinearPlan& plan, const DeviceApi& device_api, const LinearForwardTensors& t,
                            const LinearRun& run) {
  const LinearChecker check(plan, device_api);
  if (t.saved == nullptr) check.refuse("saved", "is missing; it is what recompute makes");
  if (plan.recomputes_output()) return check_linear_forward(plan, device_api, t, run);
  check.stream(device_api, run.stream);
  check_input(check, t);
  check.memory({"input", &t.input});
  check.prologue_inputs(t.prologue_inputs, t.input.rows);
  check.scale("input", plan.input_of(LinearPass::recompute), t.scales.input);
  if (t.weight_into) {
    check_weight_cast(plan, device_api, {.weight = t.weight, .into = *t.weight_into, .scale = t.scales.weight}, run);
  }
  check_forward_memory(check, t, run, LinearPass::recompute);
}

void check_linear_backward(const LinearPlan& plan, const DeviceApi& device_api, const LinearBackwardTensors& t,
                           const LinearRun& run) {
  const LinearChecker check(plan, device_api);
  check_backward_tensors(plan, device_api, t, run.stream);
  check_grad_output_amax(check, t);
  check_read_again(check, t);
  check_codes_of_backward(check, t);
  check_given_of_backward(check, t);
  const LinearGradients wants = wanted_gradients(t);
  check.scale("grad_output", plan.grad_output_of(wants).cast, t.scales.grad_output);
  if (wants.weight) check.scale("input", plan.input_again, t.scales.input);
  if (wants.input && !is_given(t.codes.transposed)) check.scale("weight", plan.weight_again, t.scales.weight);
  if (plan.grad_output_of(wants).folds) check.one(t.scales);
  const std::size_t saved = plan.saved_memory(t.saved->tokens).bytes;
  const std::size_t scratch =
      plan.backward_scratch(t.saved->tokens, wants, observes_values(run), expands_grad_output(plan, t)).bytes;
  const std::initializer_list<NamedTensor> tensors{
      {"grad_output", &t.grad_output}, {"grad_output_amax", &t.grad_output_amax},
      {"grad_input", &t.grad_input},   {"grad_input_of_others", &t.grad_input_of_others},
      {"grad_weight", &t.grad_weight}, {"grad_bias", &t.grad_bias}};
  check.region("saved", t.saved->memory, saved, tensors);
  check_scratch(check, t.scratch, scratch, run.stream, tensors);
  check.saved_apart(t.saved->memory, saved, t.scratch, scratch);
}

void check_weight_codes(const LinearPlan& plan, const DeviceApi& device_api, const Float8View& codes) {
  LinearChecker(plan, device_api)
      .codes({"codes.codes", &codes.codes}, plan.shape.out_features, plan.shape.in_features,
             {"codes.scale_inv", &codes.scale_inv}, plan.weight.spec.scale);
}

void check_weight(const LinearPlan& plan, const DeviceApi& device_api, const Tensor& weight, const Stream& stream) {
  const LinearChecker check(plan, device_api);
  check.stream(device_api, stream);
  if (!plan.weight.any) return;
  check.all({"weight", &weight}, *plan.dtypes.weight, ", the plan's dtype", plan.shape.out_features,
            plan.shape.in_features, "[out_features, in_features]");
}

void check_weight_cast(const LinearPlan& plan, const DeviceApi& device_api, const WeightCastTensors& t,
                       const LinearRun& run) {
  check_weight(plan, device_api, t.weight, run.stream);
  if (!plan.weight.any) return;
  const LinearChecker check(plan, device_api);
  check.scale("weight", plan.weight, t.scale);
  check.region("into", t.into, plan.weight_memory().bytes, {{"weight", &t.weight}});
}

}  // namespace ingot
