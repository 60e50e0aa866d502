// Checks the arguments of Float8Linear's forward() and backward() before anything is launched.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "ingot/nn/float8_linear.h"
#include "ingot/nn/tensor_checks.h"

namespace ingot {
namespace {

Dtype layer_bias_dtype(const LinearConfig& config, Dtype dtype) {
  const bool float8 = is_float8(config.output);
  return bias_dtype({.a = float8 ? config.output.a->dtype : dtype,
                     .b = float8 ? config.output.b->dtype : dtype,
                     .out = dtype,
                     .bias = true});
}

void check_dtype(const NamedTensor& named, std::initializer_list<Dtype> allowed, const char* why) {
  if (std::ranges::find(allowed, named.tensor->dtype) != allowed.end()) return;
  std::string names;
  for (const Dtype dtype : allowed) names += fmt::format("{}{}", names.empty() ? "" : " or ", name(dtype));
  if (!is_given(*named.tensor)) refuse_argument(named.name, fmt::format("is missing; it must be {}{}", names, why));
  refuse_argument(named.name, fmt::format("is {}, but must be {}{}", name(named.tensor->dtype), names, why));
}

void check_shape(const NamedTensor& named, std::int64_t rows, std::int64_t cols, const char* meaning) {
  const Tensor& tensor = *named.tensor;
  if (tensor.rows == rows && tensor.cols == cols) return;
  if (!is_given(tensor))
    refuse_argument(named.name, fmt::format("is missing; it must be [{}, {}] = {}", rows, cols, meaning));
  refuse_argument(named.name, fmt::format("is {}, but must be [{}, {}] = {}", describe(tensor), rows, cols, meaning));
}

void check_memory(const NamedTensor& named, Device device) { check_memory(named.name, *named.tensor, device); }

// The inputs of an expression: matrices [rows, cols] and column vectors of the layer's dtype, column vectors of f32,
// and row vectors of f32.
using InputNames = std::array<const char*, kMaxPointwiseInputs>;
constexpr InputNames kPrologueInputs{"Float8Linear prologue_inputs[0]", "Float8Linear prologue_inputs[1]",
                                     "Float8Linear prologue_inputs[2]", "Float8Linear prologue_inputs[3]"};
constexpr InputNames kEpilogueInputs{"Float8Linear epilogue_inputs[0]", "Float8Linear epilogue_inputs[1]",
                                     "Float8Linear epilogue_inputs[2]", "Float8Linear epilogue_inputs[3]"};

void check_inputs(const InputNames& names, const Pointwise& expression, const PointwiseTensors& tensors,
                  const Tensor& like, std::int64_t cols, Device device) {
  const auto inputs = expression.inputs();
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const NamedTensor named{names[i], &tensors[i]};
    if (i >= inputs.size()) {
      if (!is_given(tensors[i])) continue;
      refuse_argument(named.name,
                      fmt::format("is given, but the layer's expression there has {} inputs", inputs.size()));
    }
    using Kind = PointwiseInput::Kind;
    const Kind kind = inputs[i].kind;
    check_dtype(named, {kind == Kind::row || kind == Kind::column_f32 ? Dtype::f32 : like.dtype}, "");
    check_shape(named, kind == Kind::matrix ? like.rows : 1, kind == Kind::row ? like.rows : cols,
                kind == Kind::matrix ? "a matrix beside x"
                : kind == Kind::row  ? "a value for each row"
                                     : "a value for each column");
    check_memory(named, device);
  }
}

void check_own_stream(const Backend& backend, const Stream& stream) {
  if (&stream.backend() != &backend) {
    refuse_argument("Float8Linear stream",
                    "belongs to another backend than the layer: make it from the layer's backend");
  }
}

}  // namespace

void Float8Linear::check_forward(const LinearForward& tensors, const Stream& stream) const {
  check_own_stream(*backend_, stream);
  const NamedTensor input{"Float8Linear input", &tensors.input};
  const NamedTensor weight{"Float8Linear weight", &tensors.weight};
  const NamedTensor bias{"Float8Linear bias", &tensors.bias};
  const NamedTensor output{"Float8Linear output", &tensors.output};
  const Dtype dtype = tensors.input.dtype;
  if (!is_given(tensors.input) && shape_.in_features != 0) {
    refuse_argument(input.name, fmt::format("is missing; it must have {} columns = in_features", shape_.in_features));
  }
  check_dtype(input, {Dtype::f32, Dtype::bf16, Dtype::f16}, "");
  check_dtype(weight, {dtype}, ", as input is");
  check_dtype(output, {dtype}, ", as input is");
  if (tensors.input.cols != shape_.in_features) {
    refuse_argument("Float8Linear input", fmt::format("is {}, but must have {} columns = in_features",
                                                      describe(tensors.input), shape_.in_features));
  }
  check_shape(weight, shape_.out_features, shape_.in_features, "[out_features, in_features]");
  check_shape(output, tensors.input.rows, shape_.out_features, "[rows of input, out_features]");
  for (const NamedTensor& named : {input, weight, output}) check_memory(named, backend_->device());
  if (shape_.bias) {
    check_shape(bias, 1, shape_.out_features, "a vector of out_features");
    check_dtype(bias, {layer_bias_dtype(config_, dtype)},
                dtype == Dtype::f32 && is_float8(config_.output) ? ": an FP8 GEMM with f32 output takes a bf16 bias"
                                                                 : ", as input is");
    check_memory(bias, backend_->device());
  } else if (is_given(tensors.bias)) {
    refuse_argument("Float8Linear bias", "is given, but the layer was made without one: set bias in its LinearShape");
  }
  check_disjoint(output, {input, weight, bias});
  const LinearFusion& fusion = options_.fusion;
  check_inputs(kPrologueInputs, fusion.prologue, tensors.prologue_inputs, tensors.input, shape_.in_features,
               backend_->device());
  check_inputs(kEpilogueInputs, fusion.epilogue, tensors.epilogue_inputs, tensors.input, shape_.out_features,
               backend_->device());
  for (std::size_t i = 0; i < kMaxPointwiseInputs; ++i) {
    check_disjoint(output, {{"an input of the prologue", &tensors.prologue_inputs[i]},
                            {"an input of the epilogue", &tensors.epilogue_inputs[i]}});
  }
}

void Float8Linear::check_backward(const LinearBackward& tensors, const Stream& stream) const {
  check_own_stream(*backend_, stream);
  if (!has_forward_)
    refuse_argument("Float8Linear backward",
                    "has no forward() before it that kept what it needs: run forward() first, or recompute()");
  const NamedTensor grad_output{"Float8Linear grad_output", &tensors.grad_output};
  const NamedTensor grad_input{"Float8Linear grad_input", &tensors.grad_input};
  const NamedTensor grad_weight{"Float8Linear grad_weight", &tensors.grad_weight};
  const NamedTensor grad_bias{"Float8Linear grad_bias", &tensors.grad_bias};
  const Dtype dtype = saved_.input.dtype;
  const std::int64_t tokens = saved_.input.rows;
  check_dtype(grad_output, {dtype}, ", as input is");
  check_shape(grad_output, tokens, shape_.out_features, "[rows of the last forward's input, out_features]");
  check_memory(grad_output, backend_->device());
  if (is_given(tensors.grad_input)) {
    check_dtype(grad_input, {dtype}, ", as input is");
    check_shape(grad_input, tokens, shape_.in_features, "[rows of the last forward's input, in_features]");
    check_memory(grad_input, backend_->device());
  }
  if (tensors.accumulate && !is_given(tensors.grad_weight)) {
    refuse_argument(grad_weight.name, "is missing, but accumulate asks for it to be added to");
  }
  if (is_given(tensors.grad_weight)) {
    if (dtype == Dtype::f32) {
      check_dtype(grad_weight, {dtype}, ", as input is");
    } else {
      check_dtype(grad_weight, {dtype, Dtype::f32}, "");
    }
    check_shape(grad_weight, shape_.out_features, shape_.in_features, "[out_features, in_features]");
    check_memory(grad_weight, backend_->device());
  }
  if (is_given(tensors.grad_bias)) {
    if (!shape_.bias) refuse_argument("Float8Linear grad_bias", "is given, but the layer was made without a bias");
    check_dtype(grad_bias, {Dtype::f32, Dtype::bf16, Dtype::f16}, "");
    check_shape(grad_bias, 1, shape_.out_features, "a vector of out_features");
    check_memory(grad_bias, backend_->device());
  }
  // Several results come from one grad_output: a result written over it, or over another result, would corrupt the next
  // one. The saved views matter only where this config reads them again.
  check_disjoint(grad_input, {grad_output, grad_weight, grad_bias});
  check_disjoint(grad_weight, {grad_output, grad_bias});
  check_disjoint(grad_bias, {grad_output});
  const bool reads_input = !is_float8(config_.grad_weight) || config_.input == OtherCodes::again;
  const bool reads_weight = !is_float8(config_.grad_input) || config_.weight == OtherCodes::again;
  for (const NamedTensor& result : {grad_input, grad_weight, grad_bias}) {
    if (gradient_.of_output()) check_disjoint(result, {{"Float8Linear output", &saved_.output}});
    for (std::size_t i = 0; i < kMaxPointwiseInputs; ++i) {
      if (reads_input) check_disjoint(result, {{"an input of the prologue", &saved_.prologue_inputs[i]}});
      check_disjoint(result, {{"an input of the epilogue", &saved_.epilogue_inputs[i]}});
    }
    if (reads_input) check_disjoint(result, {{"Float8Linear input", &saved_.input}});
    if (reads_weight) check_disjoint(result, {{"Float8Linear weight", &saved_.weight}});
  }
}

}  // namespace ingot
