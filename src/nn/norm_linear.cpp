#include "ingot/nn/norm_linear.h"

#include <utility>

#include "ingot/nn/tensor_checks.h"
#include "ingot/runtime/norm/check_norm.h"

namespace ingot {
namespace {

// In the same order of operations as the norm kernels (norm_spec.h), so that the values have the same bits.
Pointwise norm_expression(NormKind kind, bool affine) {
  if (kind == NormKind::rms) return parse_pointwise(affine ? "x * rstd[row] * gamma[col]" : "x * rstd[row]");
  return parse_pointwise(affine ? "(x - mean[row]) * rstd[row] * gamma[col] + beta[col]"
                                : "(x - mean[row]) * rstd[row]");
}

bool casts_input(const LinearConfig& config) { return config.output.a || config.grad_weight.b; }

LinearOptions with_norm(LinearOptions options, NormKind kind, bool affine, const LinearConfig& config) {
  if (options.fusion.prologue) {
    refuse_argument("NormLinear fusion", "has a prologue, but the norm is the prologue of this layer: leave it empty");
  }
  if (casts_input(config)) options.fusion.prologue = norm_expression(kind, affine);
  return options;
}

}  // namespace

NormLinear::NormLinear(NormKind kind, Backend& backend, NormLinearShape shape, LinearConfig config,
                       LinearOptions options, NormWorkspace* workspace)
    : backend_(&backend),
      kind_(kind),
      shape_(shape),
      linear_(backend, shape.linear, config, with_norm(std::move(options), kind, shape.affine, config)),
      casts_input_(casts_input(config)),
      shared_workspace_(workspace) {}

void NormLinear::check_forward(const NormLinearForward& tensors) const {
  if (!shape_.affine && (is_given(tensors.gamma) || is_given(tensors.beta))) {
    refuse_argument("NormLinear gamma",
                    "or beta is given, but the layer was made without them: set affine in its shape");
  }
  if (kind_ == NormKind::rms && is_given(tensors.beta)) {
    refuse_argument("NormLinear beta", "is given, but an RMSNorm has none");
  }
  check_disjoint({"NormLinear output", &tensors.output},
                 {{"input", &tensors.input}, {"gamma", &tensors.gamma}, {"beta", &tensors.beta}});
}

LinearForward NormLinear::linear_forward(const NormLinearForward& tensors) const {
  LinearForward linear{.input = casts_input_ ? tensors.input : values_.view(),
                       .weight = tensors.weight,
                       .bias = tensors.bias,
                       .output = tensors.output,
                       .epilogue_inputs = tensors.epilogue_inputs};
  if (casts_input_) linear.prologue_inputs = prologue_inputs(tensors);
  return linear;
}

PointwiseTensors NormLinear::prologue_inputs(const NormLinearForward& tensors) const {
  if (kind_ == NormKind::rms) return {rstd_.view(), tensors.gamma};
  return {mean_.view(), rstd_.view(), tensors.gamma, tensors.beta};
}

void NormLinear::forward(const NormLinearForward& tensors, Stream& stream) {
  check_forward(tensors);
  has_forward_ = false;
  const Tensor& input = tensors.input;
  const bool layer = kind_ == NormKind::layer;
  if (layer) mean_.resize(*backend_, Dtype::f32, 1, input.rows, stream);
  rstd_.resize(*backend_, Dtype::f32, 1, input.rows, stream);
  if (!casts_input_) values_.resize(*backend_, input.dtype, input.rows, input.cols, stream);

  const LinearForward linear = linear_forward(tensors);
  linear_.check_forward(linear, stream);
  const Float8Linear::Call call(linear_, stream);
  linear_.start_forward(linear, stream);

  // If the layer casts the input, the norm computes only its statistics; otherwise it writes the values too.
  const bool writes = !casts_input_;
  NormTensors norm{.input = input, .rstd = rstd_, .eps = shape_.eps};
  if (layer) norm.mean = mean_;
  if (writes) {
    norm.result = values_;
    norm.gamma = tensors.gamma;
    norm.beta = tensors.beta;
  }
  backend_->norm({.kind = kind_, .in = input.dtype, .affine = writes && shape_.affine, .result = writes, .stats = true},
                 norm, stream);

  linear_.run_forward(linear, stream);
  saved_input_ = input;
  saved_gamma_ = tensors.gamma;
  has_forward_ = true;
}

void NormLinear::check_backward(const NormLinearBackward& tensors) const {
  if (!has_forward_) refuse_argument("NormLinear backward", "has no forward() before it: run forward() first");
  const bool parameters = is_given(tensors.grad_gamma) || is_given(tensors.grad_beta);
  if (parameters && !shape_.affine) {
    refuse_argument("NormLinear grad_gamma", "or grad_beta is given, but the layer was made without gamma and beta");
  }
  if (parameters && !is_given(tensors.grad_input)) {
    refuse_argument("NormLinear grad_input", "is missing, but grad_gamma is computed beside it: give it memory");
  }
  if (is_given(tensors.grad_input) && shape_.affine && !is_given(tensors.grad_gamma)) {
    refuse_argument("NormLinear grad_gamma", "is missing, but is computed beside grad_input: give it memory");
  }
  const NamedTensor norms[] = {{"NormLinear grad_input", &tensors.grad_input},
                               {"NormLinear grad_gamma", &tensors.grad_gamma},
                               {"NormLinear grad_beta", &tensors.grad_beta}};
  for (const NamedTensor& result : norms) {
    check_disjoint(result, {{"grad_output", &tensors.grad_output},
                            {"grad_weight", &tensors.grad_weight},
                            {"grad_bias", &tensors.grad_bias},
                            {"the input", &saved_input_}});
  }
  for (const NamedTensor& result :
       {NamedTensor{"NormLinear grad_weight", &tensors.grad_weight}, {"NormLinear grad_bias", &tensors.grad_bias}}) {
    check_disjoint(result, {{"the input", &saved_input_}});
  }
}

void NormLinear::backward(const NormLinearBackward& tensors, Stream& stream) {
  check_backward(tensors);
  const bool wants_input = is_given(tensors.grad_input);
  NormWorkspace& workspace = shared_workspace_ != nullptr ? *shared_workspace_ : own_workspace_;
  if (wants_input) {
    workspace.grad_values.resize(*backend_, saved_input_.dtype, saved_input_.rows, saved_input_.cols, stream);
  }
  const LinearBackward linear{.grad_output = tensors.grad_output,
                              .grad_input = wants_input ? workspace.grad_values.view() : Tensor{},
                              .grad_weight = tensors.grad_weight,
                              .grad_bias = tensors.grad_bias,
                              .accumulate = tensors.accumulate};
  if (!wants_input) return linear_.backward(linear, stream);
  NormBackwardTensors norm{.grad_output = workspace.grad_values,
                           .input = saved_input_,
                           .rstd = rstd_,
                           .grad_input = tensors.grad_input,
                           .grad_gamma = tensors.grad_gamma,
                           .grad_beta = tensors.grad_beta};
  if (kind_ == NormKind::layer) norm.mean = mean_;
  if (shape_.affine) norm.gamma = saved_gamma_;
  const NormBackwardSpec spec{.kind = kind_,
                              .in = saved_input_.dtype,
                              .affine = shape_.affine,
                              .sums = shape_.affine ? tensors.grad_gamma.dtype : Dtype::f32};
  // Check before anything is added to a main gradient, which cannot be undone.
  linear_.check_backward(linear, stream);
  validate(spec);
  check(spec, norm, backend_->device());
  const Float8Linear::Call call(linear_, stream);
  linear_.run_backward(linear, stream);
  backend_->norm_backward(spec, norm, stream);
  linear_.finish_backward(stream);
}

std::size_t NormLinear::saved_bytes() const {
  if (!has_forward_) return 0;
  std::size_t sum = linear_.saved_bytes();
  for (const OwnedTensor* tensor : {&mean_, &rstd_}) sum += byte_span(*tensor, "NormLinear saved tensor");
  if (!casts_input_) sum += byte_span(values_, "NormLinear saved tensor");
  return sum;
}

}  // namespace ingot
