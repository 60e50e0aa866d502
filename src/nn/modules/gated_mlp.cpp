#include "ingot/nn/modules/gated_mlp.h"

#include <fmt/format.h>

#include <utility>

#include "ingot/runtime/util/error.h"

namespace ingot {
namespace {

MlpOptions mlp_options(GatedMlpOptions options) {
  const Pointwise activation = parse_pointwise(options.activation);
  const auto inputs = activation.inputs();
  const bool fits = activation.uses_x() && inputs.size() == 1 &&
                    inputs[0] == PointwiseInput{.name = "up", .kind = PointwiseInput::Kind::matrix};
  if (!fits) {
    throw Error(ErrorCode::invalid_spec, "GatedMlp activation",
                fmt::format("\"{}\" must be an expression of x, the gate, and of the matrix up, such as silu(x) * up",
                            options.activation));
  }
  return {.name = std::move(options.name),
          .activation = std::move(options.activation),
          .norm = options.norm,
          .fast_math = options.fast_math,
          .weight_dtype = options.weight_dtype,
          .bias_dtype = options.bias_dtype,
          .output_dtype = options.output_dtype,
          .delayed = options.delayed,
          .workspace = options.workspace,
          .observer = options.observer,
          .side = options.side,
          .subject = "GatedMlp"};
}

MlpForward renamed(const GatedMlpForward& tensors) {
  return {.input = tensors.input,
          .gamma = tensors.gamma,
          .beta = tensors.beta,
          .up_weight = tensors.gate_up_weight,
          .up_bias = tensors.gate_up_bias,
          .down_weight = tensors.down_weight,
          .down_bias = tensors.down_bias,
          .output = tensors.output,
          .keep_for_backward = tensors.keep_for_backward};
}

}  // namespace

GatedMlp::GatedMlp(Backend& backend, GatedMlpShape shape, LinearConfig config, GatedMlpOptions options)
    : mlp_(backend, shape, config, mlp_options(std::move(options))) {}

void GatedMlp::forward(const GatedMlpForward& tensors, Stream& stream) { mlp_.forward(renamed(tensors), stream); }

void GatedMlp::recompute(const GatedMlpForward& tensors, Stream& stream) { mlp_.recompute(renamed(tensors), stream); }

void GatedMlp::backward(const GatedMlpBackward& tensors, Stream& stream) {
  mlp_.backward({.grad_output = tensors.grad_output,
                 .grad_input = tensors.grad_input,
                 .grad_gamma = tensors.grad_gamma,
                 .grad_beta = tensors.grad_beta,
                 .grad_up_weight = tensors.grad_gate_up_weight,
                 .grad_up_bias = tensors.grad_gate_up_bias,
                 .grad_down_weight = tensors.grad_down_weight,
                 .grad_down_bias = tensors.grad_down_bias,
                 .accumulate = tensors.accumulate},
                stream);
}

}  // namespace ingot
