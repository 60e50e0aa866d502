#include "ingot/nn/gated_mlp.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "ingot/nn/tensor_checks.h"

namespace ingot {
namespace {

Pointwise parse_activation(const std::string& text) {
  Pointwise expression = parse_pointwise(text);
  const auto inputs = expression.inputs();
  const bool fits = expression.uses_x() && inputs.size() == 1 &&
                    inputs[0] == PointwiseInput{.name = "up", .kind = PointwiseInput::Kind::matrix};
  if (!fits) {
    throw Error(
        ErrorCode::invalid_spec, "GatedMlp activation",
        fmt::format("\"{}\" must be an expression of x, the gate, and of the matrix up, such as silu(x) * up", text));
  }
  return expression;
}

LinearOptions layer_options(const GatedMlpOptions& options, const char* layer) {
  return {.name = fmt::format("{}.{}", options.name, layer),
          .fusion = {.fast_math = options.fast_math},
          .delayed = options.delayed,
          .workspace = options.workspace,
          .observer = options.observer,
          .side = options.side};
}

LinearOptions down_options(const GatedMlpOptions& options, const Pointwise& activation) {
  LinearOptions linear = layer_options(options, "down");
  linear.fusion.prologue = activation;
  return linear;
}

}  // namespace

GatedMlp::GatedMlp(Backend& backend, GatedMlpShape shape, LinearConfig config, GatedMlpOptions options)
    : GatedMlp(backend, shape, config, options, parse_activation(options.activation)) {}

GatedMlp::GatedMlp(Backend& backend, GatedMlpShape shape, const LinearConfig& config, const GatedMlpOptions& options,
                   const Pointwise& activation)
    : backend_(&backend),
      shape_(shape),
      fast_math_(options.fast_math),
      by_gate_(ingot::backward(activation, "x")),
      by_up_(ingot::backward(activation, "up")),
      gate_up_(backend, {.in_features = shape.features, .out_features = 2 * shape.hidden}, config,
               layer_options(options, "gate_up")),
      down_(backend, {.in_features = shape.hidden, .out_features = shape.features}, config,
            down_options(options, activation)) {}

Tensor GatedMlp::half(const OwnedTensor& both, bool second) const {
  Tensor view = both.view();
  view.cols = shape_.hidden;
  if (second && view.data != nullptr) {
    view.data = static_cast<std::byte*>(view.data) + shape_.hidden * size_of(view.dtype);
  }
  return view;
}

void GatedMlp::forward(const GatedMlpForward& tensors, Stream& stream) {
  const Tensor& input = tensors.input;
  gate_up_values_.resize(*backend_, input.dtype, input.rows, 2 * shape_.hidden, stream);
  const LinearForward gate_up{.input = input, .weight = tensors.gate_up_weight, .output = gate_up_values_};
  const LinearForward down{.input = half(gate_up_values_, false),
                           .weight = tensors.down_weight,
                           .output = tensors.output,
                           .prologue_inputs = {half(gate_up_values_, true)}};
  has_forward_ = false;
  gate_up_.check_forward(gate_up, stream);
  down_.check_forward(down, stream);
  check_disjoint({"GatedMlp output", &tensors.output},
                 {{"input", &input}, {"gate_up_weight", &tensors.gate_up_weight}});
  const Float8Linear::Call first(gate_up_, stream);
  const Float8Linear::Call second(down_, stream);
  gate_up_.start_forward(gate_up, stream);
  down_.start_forward(down, stream);
  gate_up_.run_forward(gate_up, stream);
  down_.run_forward(down, stream);
  has_forward_ = true;
}

void GatedMlp::backward(const GatedMlpBackward& tensors, Stream& stream) {
  if (!has_forward_) {
    refuse_argument("GatedMlp backward", "has no forward() before it: run forward() first");
  }
  const Tensor gate = half(gate_up_values_, false);
  const Tensor up = half(gate_up_values_, true);
  grad_hidden_.resize(*backend_, gate.dtype, gate.rows, shape_.hidden, stream);
  grad_gate_up_.resize(*backend_, gate.dtype, gate.rows, 2 * shape_.hidden, stream);
  const LinearBackward to_down{.grad_output = tensors.grad_output,
                               .grad_input = grad_hidden_,
                               .grad_weight = tensors.grad_down_weight,
                               .accumulate = tensors.accumulate && tensors.grad_down_weight.data != nullptr};
  const LinearBackward to_gate_up{.grad_output = grad_gate_up_,
                                  .grad_input = tensors.grad_input,
                                  .grad_weight = tensors.grad_gate_up_weight,
                                  .accumulate = tensors.accumulate && tensors.grad_gate_up_weight.data != nullptr};
  // Check both layers before anything is added to a main gradient, which cannot be undone.
  down_.check_backward(to_down, stream);
  gate_up_.check_backward(to_gate_up, stream);
  check_disjoint({"GatedMlp grad_down_weight", &tensors.grad_down_weight},
                 {{"grad_gate_up_weight", &tensors.grad_gate_up_weight}, {"grad_input", &tensors.grad_input}});
  const Float8Linear::Call second(down_, stream);
  const Float8Linear::Call first(gate_up_, stream);
  down_.run_backward(to_down, stream);

  const auto flow_back = [&](const Pointwise& expression, const Tensor& output) {
    PointwiseTensors inputs{};
    std::ranges::transform(expression.inputs(), inputs.begin(),
                           [&](const PointwiseInput& input) { return input.name == "up" ? up : grad_hidden_.view(); });
    backend_->elementwise({.in = gate.dtype, .pointwise = expression, .fast_math = fast_math_},
                          {.input = gate, .inputs = inputs, .output = output}, stream);
  };
  flow_back(by_gate_, half(grad_gate_up_, false));
  flow_back(by_up_, half(grad_gate_up_, true));
  down_.finish_backward(stream);
  gate_up_.run_backward(to_gate_up, stream);
  gate_up_.finish_backward(stream);
}

void GatedMlp::weights_changed() {
  gate_up_.weight_changed();
  down_.weight_changed();
}

std::size_t GatedMlp::saved_bytes() const {
  return gate_up_.saved_bytes() + down_.saved_bytes() + byte_span(gate_up_values_, "GatedMlp saved tensor");
}

}  // namespace ingot
