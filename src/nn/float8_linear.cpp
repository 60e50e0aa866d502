#include "ingot/nn/float8_linear.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

#include "ingot/nn/delayed_scaling.h"
#include "ingot/nn/linear_gemms.h"
#include "ingot/nn/tensor_checks.h"
#include "ingot/runtime/error.h"

namespace ingot {
namespace {

bool any(const TensorCasts& casts) { return casts.codes || casts.transposed; }

void check_size(const char* subject, std::int64_t size) {
  if (size < 0) refuse_argument(subject, fmt::format("is {}, but must be 0 or more", size));
}

}  // namespace

// One cast of a tensor, or, if nothing is to be cast, the evaluation of its expression.
struct Float8Linear::CastOrder {
  const char* tensor = "";         // "input", "weight", "grad_output"
  const char* of_codes = "";       // the GEMM that reads the codes
  const char* of_transposed = "";  // the GEMM that reads the transposed codes
  TensorCasts casts{};
  const Pointwise* expression = nullptr;  // null or empty: casts the input itself
  bool unrounded = false;
  Tensor input;
  PointwiseTensors inputs{};
  Float8Parts parts{};
  GivenScale* scale = nullptr;
  OwnedTensor* values = nullptr;  // where to write the expression's values, or null
  Tensor sum{};                   // if given: receives the sum of each column's values
};

Float8Linear::Float8Linear(Backend& backend, LinearShape shape, LinearConfig config, LinearOptions options)
    : backend_(&backend),
      shape_(shape),
      config_(config),
      options_(std::move(options)),
      gradient_(options_.fusion.epilogue) {
  validate(config_);
  check_size("Float8Linear in_features", shape_.in_features);
  check_size("Float8Linear out_features", shape_.out_features);
  if (options_.side != nullptr && &options_.side->backend() != backend_) {
    refuse_argument("Float8Linear side", "belongs to another backend than the layer: make it from the layer's backend");
  }
  const auto add_slot = [&](const char* tensor, const TensorCasts& casts, GivenScale& scale) {
    if (!any(casts)) return;
    const Cast& cast = casts.codes ? *casts.codes : *casts.transposed;
    if (cast.scaling != Scaling::delayed) return;
    if (options_.delayed == nullptr) {
      refuse_argument(
          "Float8Linear delayed",
          fmt::format("is missing, but {} has delayed scales: give LinearOptions the model's DelayedScaling", tensor));
    }
    scale.slot = options_.delayed->add(fmt::format("{}.{}", options_.name, tensor), cast.dtype, cast.pow2);
  };
  add_slot("input", {.codes = config_.output.a, .transposed = config_.grad_weight.b}, input_scale_);
  add_slot("weight", {.codes = config_.output.b, .transposed = config_.grad_input.b}, weight_scale_);
  add_slot("grad_output", grad_output_casts(config_), grad_output_scale_);
  if (config_.weight == OtherCodes::folded) times_column_factor_ = parse_pointwise("x * factor[col:f32]");
  if (config_.input == OtherCodes::folded) times_row_factor_ = parse_pointwise("x * factor[row]");
}

// ---- casts -------------------------------------------------------------------------------------------------------

void Float8Linear::cast(const CastOrder& order, Stream& stream) {
  const bool has_expression = order.expression != nullptr && !order.expression->empty();
  const Tensor& input = order.input;
  OwnedTensor* values = has_expression ? order.values : nullptr;
  if (!any(order.casts) && values == nullptr) return;
  const LayerObserver* const observer = options_.observer;
  if (has_expression && values == nullptr && observer != nullptr && observer->wants_values()) {
    values = &workspace().observed;
  }
  if (values != nullptr) values->resize(*backend_, input.dtype, input.rows, input.cols, stream);
  if (!any(order.casts)) {
    return backend_->elementwise(
        {.in = input.dtype, .pointwise = *order.expression, .fast_math = options_.fusion.fast_math},
        {.input = input, .inputs = order.inputs, .output = *values}, stream);
  }
  CastSpec spec = cast_spec(order.casts, input.dtype);
  CastTensors tensors = outputs_of(order.parts, spec, input, *backend_, stream);
  if (has_expression) {
    spec.pointwise = *order.expression;
    spec.unrounded = order.unrounded;
    spec.fast_math = options_.fusion.fast_math;
    spec.result = values != nullptr;
    tensors.inputs = order.inputs;
    if (spec.result) tensors.result = *values;
  }
  if (is_given(order.sum)) {
    spec.sum = order.sum.dtype;
    tensors.sum = order.sum;
  }
  if (spec.source == ScaleSource::given) give_scale(tensors, order, spec, stream);
  backend_->cast(spec, tensors, stream);
  if (options_.observer != nullptr) report(order, spec, tensors, stream);
}

void Float8Linear::report(const CastOrder& order, const CastSpec& spec, const CastTensors& tensors, Stream& stream) {
  CastEvent event{.layer = options_.name,
                  .tensor = order.tensor,
                  .gemms = order.of_codes,
                  .values = spec.result              ? tensors.result
                            : spec.pointwise.empty() ? tensors.input
                                                     : Tensor{},
                  .codes = tensors.codes,
                  .factors = tensors.factors,
                  .scale = spec.scale};
  if (spec.codes) options_.observer->cast(event, stream);
  if (!spec.transposed) return;
  event.gemms = order.of_transposed;
  event.codes = tensors.transposed;
  event.transposed = true;
  if (spec.transposed_scale) {
    event.factors = tensors.transposed_factors;
    event.scale = *spec.transposed_scale;
  }
  options_.observer->cast(event, stream);
}

void Float8Linear::give_scale(CastTensors& tensors, const CastOrder& order, const CastSpec& spec, Stream& stream) {
  GivenScale& scale = *order.scale;
  if (scale.slot < 0) {
    const Cast& cast = order.casts.codes ? *order.casts.codes : *order.casts.transposed;
    if (scale.fixed.view().empty()) {
      scale.fixed.resize(*backend_, Dtype::f32, 1, 2, stream);
      const std::array<float, 2> values{cast.scale, 0.0F};
      backend_->copy_from_host(scale.fixed.view().data, values.data(), sizeof values, stream);
    }
    auto* const data = static_cast<float*>(scale.fixed.view().data);
    tensors.scales = vector(data, Dtype::f32, 1, backend_->device());
    tensors.amax = vector(data + 1, Dtype::f32, 1, backend_->device());
    return;
  }
  DelayedScaling& delayed = *options_.delayed;
  if (!delayed.has_scale(scale.slot)) {
    // The first scale comes from the first data. Only this step writes an expression's values for it.
    OwnedTensor values;
    if (spec.pointwise) {
      values.resize(*backend_, spec.in, order.input.rows, order.input.cols, stream);
      backend_->elementwise({.in = spec.in, .pointwise = spec.pointwise, .fast_math = spec.fast_math},
                            {.input = order.input, .inputs = order.inputs, .output = values}, stream);
    }
    delayed.start(scale.slot, spec.pointwise ? values.view() : order.input, stream);
  }
  tensors.scales = delayed.scale(scale.slot);
  tensors.amax = delayed.amax(scale.slot);
}

TensorCasts Float8Linear::casts_of_forward(const LinearForward& tensors) const {
  TensorCasts casts = input_casts(config_);
  if (!tensors.keep_for_backward) casts.transposed.reset();
  return casts;
}

// Must a prologue's values be kept for the grad_weight GEMM?
bool Float8Linear::keeps_values(const LinearForward& tensors) const {
  return !options_.fusion.prologue.empty() && tensors.keep_for_backward && !is_float8(config_.grad_weight);
}

void Float8Linear::cast_input(const LinearForward& tensors, TensorCasts casts, Stream& stream) {
  const bool again = config_.input == OtherCodes::again;
  const bool values = !options_.fusion.prologue.empty() && !is_float8(config_.output);
  OwnedTensor& transposed = again ? workspace().input.transposed : input_transposed_;
  OwnedTensor& transposed_factors = again ? workspace().input.transposed_factors : input_transposed_factors_;
  // Factors that both sets of codes share, or that are folded, must live as long as the codes that are kept.
  const bool own_factors = casts.codes && !share_scales(casts);
  cast({.tensor = "input",
        .of_codes = "output",
        .of_transposed = "grad_weight",
        .casts = casts,
        .expression = &options_.fusion.prologue,
        .input = tensors.input,
        .inputs = tensors.prologue_inputs,
        .parts = {.codes = &workspace().input.codes,
                  .transposed = &transposed,
                  .factors = own_factors ? &workspace().input.factors : &transposed_factors,
                  .transposed_factors = &transposed_factors},
        .scale = &input_scale_,
        .values = keeps_values(tensors) ? &input_values_
                  : values              ? &workspace().input_values
                                        : nullptr},
       stream);
}

bool Float8Linear::weight_is_cast(const Tensor& weight) const {
  return !any(weight_casts(config_)) ||
         (weight_is_current_ && weight.data == cast_weight_.data && weight.dtype == cast_weight_.dtype &&
          weight.row_stride == cast_weight_.row_stride);
}

void Float8Linear::cast_weight(const Tensor& weight, Stream& stream) {
  const TensorCasts casts = weight_casts(config_);
  if (weight_is_cast(weight)) return;
  weight_is_current_ = false;
  cast({.tensor = "weight",
        .of_codes = "output",
        .of_transposed = "grad_input",
        .casts = casts,
        .input = weight,
        .parts = parts_of(weight_),
        .scale = &weight_scale_},
       stream);
  cast_weight_ = weight;
  // During a capture the cast is only recorded, so the codes are not there yet.
  weight_is_current_ = !backend_->capturing(stream);
}

Float8Linear::GradOutput Float8Linear::cast_grad_output(const LinearBackward& tensors, Stream& stream) {
  const bool wants_input = is_given(tensors.grad_input);
  const bool wants_weight = is_given(tensors.grad_weight);
  const bool wants_bias = is_given(tensors.grad_bias);
  TensorCasts casts = grad_output_casts(config_);
  if (!wants_input) casts.codes.reset();
  if (!wants_weight) casts.transposed.reset();
  const bool folds = (casts.codes && config_.weight == OtherCodes::folded) ||
                     (casts.transposed && config_.input == OtherCodes::folded);
  const bool epilogue = !gradient_.expression().empty();
  const bool in_high_precision = (wants_input && !casts.codes) || (wants_weight && !casts.transposed);
  // A cast that transposes works in tiles and sums columns at little cost; other casts would become slower.
  const bool sums = wants_bias && !folds && (casts.transposed || (epilogue && casts.codes && !in_high_precision));
  const bool values = epilogue && (in_high_precision || folds || (wants_bias && !sums));

  Float8Tensor& codes = workspace().grad_output;
  CastOrder order{.tensor = "grad_output",
                  .of_codes = "grad_input",
                  .of_transposed = "grad_weight",
                  .casts = folds ? TensorCasts{} : casts,
                  .input = tensors.grad_output,
                  .parts = parts_of(codes),
                  .scale = &grad_output_scale_,
                  .values = values ? &workspace().grad_values : nullptr,
                  .sum = sums ? tensors.grad_bias : Tensor{}};
  if (epilogue) {
    order.expression = &gradient_.expression();
    if (gradient_.of_output()) order.input = saved_.output;
    if (needs_preactivation()) order.input = preactivation_;
    order.inputs = gradient_.inputs(tensors.grad_output, saved_.epilogue_inputs);
  }
  cast(order, stream);
  const Tensor found = values ? workspace().grad_values.view() : tensors.grad_output;
  if (folds) fold_and_cast(casts, found, stream);
  if (!any(casts)) return {.values = found};
  const bool apart = folds || (casts.codes && casts.transposed && !share_scales(casts));
  const Tensor& factors = apart ? codes.transposed_factors.view() : codes.factors.view();
  return {.values = found,
          .is_summed = sums,
          .factors = codes.factors,
          .transposed_factors =
              !casts.transposed
                  ? Tensor{}
                  : transposed_factors(factors, transposed(casts.transposed->granularity), found.rows, found.cols)};
}

void Float8Linear::fold_and_cast(const TensorCasts& casts, const Tensor& values, Stream& stream) {
  Float8Tensor& codes = workspace().grad_output;
  if (casts.codes) {
    const bool folded = config_.weight == OtherCodes::folded;
    cast({.tensor = "grad_output",
          .of_codes = "grad_input",
          .casts = {.codes = casts.codes},
          .expression = folded ? &times_column_factor_ : nullptr,
          .unrounded = true,
          .input = values,
          .inputs = {folded ? weight_.factors.view() : Tensor{}},
          .parts =
              {.codes = &codes.codes, .transposed = nullptr, .factors = &codes.factors, .transposed_factors = nullptr}},
         stream);
  }
  if (casts.transposed) {
    const bool folded = config_.input == OtherCodes::folded;
    cast({.tensor = "grad_output",
          .of_transposed = "grad_weight",
          .casts = {.transposed = casts.transposed},
          .expression = folded ? &times_row_factor_ : nullptr,
          .unrounded = true,
          .input = values,
          .inputs = {folded ? input_transposed_factors_.view() : Tensor{}},
          .parts = {.codes = nullptr,
                    .transposed = &codes.transposed,
                    .factors = &codes.transposed_factors,
                    .transposed_factors = nullptr}},
         stream);
  }
}

const Tensor& Float8Linear::factor_of_one(Stream& stream) {
  if (one_.view().empty()) {
    one_.resize(*backend_, Dtype::f32, 1, 1, stream);
    const float one = 1;
    backend_->copy_from_host(one_.view().data, &one, sizeof one, stream);
  }
  return one_.view();
}

void Float8Linear::multiply(const char* role, const GemmSpec& spec, const GemmTensors& tensors, Stream& stream) {
  backend_->gemm(spec, tensors, stream);
  report(role, spec, tensors, stream);
}

void Float8Linear::report(const char* role, const GemmSpec& spec, const GemmTensors& tensors, Stream& stream) {
  if (options_.observer == nullptr) return;
  options_.observer->gemm({.layer = options_.name, .role = role, .spec = spec, .tensors = tensors}, stream);
}

// ---- the three GEMMs ---------------------------------------------------------------------------------------------

// output[M, N] = epilogue(input[M, K] @ weight[N, K]^T + bias)
void Float8Linear::multiply_output(const LinearForward& tensors, Stream& stream) {
  const ObservedRange range(options_.observer, options_.name, "output");
  const Pointwise& epilogue = options_.fusion.epilogue;
  const bool preactivation = tensors.keep_for_backward && needs_preactivation();
  if (preactivation) {
    preactivation_.resize(*backend_, tensors.output.dtype, tensors.output.rows, tensors.output.cols, stream);
  }
  GemmSpec spec = output_gemm(config_, tensors.output.dtype);
  spec.bias = shape_.bias;
  if (!is_float8(config_.output)) {
    const bool prologue = !options_.fusion.prologue.empty();
    const OwnedTensor& values = keeps_values(tensors) ? input_values_ : workspace().input_values;
    // In high precision, cuBLASLt without an epilogue and a pass for the epilogue are faster than a GEMM with both.
    const Tensor sum = preactivation ? preactivation_.view() : tensors.output;
    GemmTensors gemm{
        .a = prologue ? values.view() : tensors.input, .b = tensors.weight, .bias = tensors.bias, .out = sum};
    if (!epilogue) return multiply("output", spec, gemm, stream);
    backend_->gemm(spec, gemm, stream);
    backend_->elementwise({.in = sum.dtype, .pointwise = epilogue, .fast_math = options_.fusion.fast_math},
                          {.input = sum, .inputs = tensors.epilogue_inputs, .output = tensors.output}, stream);
    gemm.out = tensors.output;
    return report("output", spec, gemm, stream);
  }
  spec.epilogue.pointwise = epilogue;
  spec.epilogue.preactivation = preactivation;
  const bool shared = share_scales(casts_of_forward(tensors));
  GemmTensors gemm{.a = workspace().input.codes,
                   .b = weight_.codes,
                   .factor_a = shared ? input_transposed_factors_ : workspace().input.factors,
                   .factor_b = weight_.factors,
                   .bias = tensors.bias,
                   .out = tensors.output};
  if (epilogue) gemm.inputs = tensors.epilogue_inputs;
  if (preactivation) gemm.preactivation = preactivation_;
  multiply("output", spec, gemm, stream);
}

// grad_input[M, K] = grad_output[M, N] @ weight[N, K]: the sum runs over the weight's rows
void Float8Linear::multiply_grad_input(const LinearBackward& tensors, const GradOutput& grad_output, Stream& stream) {
  const ObservedRange range(options_.observer, options_.name, "grad_input");
  const GemmSpec spec = grad_input_gemm(config_, tensors.grad_input.dtype);
  if (!is_float8(config_.grad_input)) {
    return multiply("grad_input", spec, {.a = grad_output.values, .b = saved_.weight, .out = tensors.grad_input},
                    stream);
  }
  Float8Tensor* weight = &weight_;
  TensorCasts casts = weight_casts(config_);
  if (config_.weight == OtherCodes::again) {
    weight = &workspace().weight;
    casts = weight_casts_again(config_);
    cast({.tensor = "weight",
          .of_transposed = "grad_input",
          .casts = casts,
          .input = saved_.weight,
          .parts = parts_of(*weight),
          .scale = &weight_scale_},
         stream);
  }
  const bool folded = config_.weight == OtherCodes::folded;
  const Tensor& found = weight->factors_of_transposed(cast_spec(casts, saved_.weight.dtype));
  const Tensor factors =
      transposed_factors(found, transposed(casts.transposed->granularity), saved_.weight.rows, saved_.weight.cols);
  multiply("grad_input", spec,
           {.a = workspace().grad_output.codes,
            .b = weight->transposed,
            .factor_a = grad_output.factors,
            .factor_b = folded ? factor_of_one(stream) : factors,
            .out = tensors.grad_input},
           stream);
}

// grad_weight[N, K] = grad_output[M, N]^T @ input[M, K]: the sum runs over the rows of both
void Float8Linear::multiply_grad_weight(const LinearBackward& tensors, const GradOutput& grad_output, Stream& stream) {
  const ObservedRange range(options_.observer, options_.name, "grad_weight");
  const Dtype dtype = saved_.input.dtype;
  GemmSpec spec = grad_weight_gemm(config_, dtype);
  spec.out = tensors.grad_weight.dtype;
  if (tensors.accumulate) spec.epilogue.c = spec.out;
  GemmTensors gemm{
      .a = {}, .b = {}, .out = tensors.grad_weight, .c = tensors.accumulate ? tensors.grad_weight : Tensor{}};
  if (!is_float8(config_.grad_weight)) {
    gemm.a = grad_output.values;
    gemm.b = options_.fusion.prologue ? input_values_.view() : saved_.input;
    return multiply("grad_weight", spec, gemm, stream);
  }
  if (config_.input == OtherCodes::again) cast_input(saved_, input_casts_again(config_), stream);
  const bool again = config_.input == OtherCodes::again;
  const Float8Workspace& shared = workspace();
  const Tensor& factors = again ? shared.input.transposed_factors : input_transposed_factors_;
  gemm.a = shared.grad_output.transposed;
  gemm.b = again ? shared.input.transposed : input_transposed_;
  gemm.factor_a = grad_output.transposed_factors;
  gemm.factor_b = config_.input == OtherCodes::folded
                      ? factor_of_one(stream)
                      : transposed_factors(factors, transposed(config_.grad_weight.b->granularity), saved_.input.rows,
                                           saved_.input.cols);
  multiply("grad_weight", spec, gemm, stream);
}

// ---- steps -------------------------------------------------------------------------------------------------------

void Float8Linear::forward(const LinearForward& tensors, Stream& stream) {
  check_forward(tensors, stream);
  const Call call(*this, stream);
  start_forward(tensors, stream);
  run_forward(tensors, stream);
}

Stream& Float8Linear::beside(std::int64_t tokens, Stream& stream) {
  const double multiplications =
      static_cast<double>(tokens) * static_cast<double>(shape_.in_features) * static_cast<double>(shape_.out_features);
  const bool is_small = multiplications <= LinearOptions::kLargestBeside;
  if (options_.side == nullptr || !is_small || options_.observer != nullptr) return stream;
  if (tokens > side_tokens_ && backend_->capturing(stream)) return stream;
  side_tokens_ = std::max(side_tokens_, tokens);
  options_.side->wait_for(stream);
  is_beside_ = true;
  return *options_.side;
}

void Float8Linear::join(Stream& stream) {
  if (!is_beside_) return;
  stream.wait_for(*options_.side);
  is_beside_ = false;
}

Float8Linear::Call::~Call() {
  try {
    layer_->join(*stream_);
  } catch (const Error&) {  // the context is broken; the next call reports it
    layer_->is_beside_ = false;
  }
}

void Float8Linear::start_forward(const LinearForward& tensors, Stream& stream) {
  if (weight_is_cast(tensors.weight)) return;
  // The first delayed scale is computed in the order of the layer's own stream.
  const bool has_scale = weight_scale_.slot < 0 || options_.delayed->has_scale(weight_scale_.slot);
  if (!has_scale) return;
  Stream& other = beside(tensors.input.rows, stream);
  if (is_beside_) cast_weight(tensors.weight, other);
}

void Float8Linear::run_forward(const LinearForward& tensors, Stream& stream) {
  const ObservedRange range(options_.observer, options_.name, "forward");
  has_forward_ = false;
  cast_input(tensors, casts_of_forward(tensors), stream);
  if (!is_beside_) cast_weight(tensors.weight, stream);
  join(stream);
  multiply_output(tensors, stream);
  if (tensors.keep_for_backward) keep(tensors);
}

void Float8Linear::recompute(const LinearForward& tensors, Stream& stream) {
  LinearForward again = tensors;
  again.keep_for_backward = true;
  if (needs_preactivation()) return forward(again, stream);
  check_forward(again, stream);
  const ObservedRange range(options_.observer, options_.name, "recompute");
  has_forward_ = false;
  TensorCasts casts = casts_of_forward(again);
  casts.codes.reset();
  cast_input(again, casts, stream);
  cast_weight(again.weight, stream);
  keep(again);
}

void Float8Linear::backward(const LinearBackward& tensors, Stream& stream) {
  check_backward(tensors, stream);
  const Call call(*this, stream);
  run_backward(tensors, stream);
  finish_backward(stream);
}

void Float8Linear::run_backward(const LinearBackward& tensors, Stream& stream) {
  const ObservedRange range(options_.observer, options_.name, "backward");
  const GradOutput grad_output = cast_grad_output(tensors, stream);
  Stream& weight_stream =
      is_given(tensors.grad_input) && is_given(tensors.grad_weight) ? beside(saved_.input.rows, stream) : stream;
  if (is_given(tensors.grad_input)) multiply_grad_input(tensors, grad_output, stream);
  if (is_given(tensors.grad_weight)) multiply_grad_weight(tensors, grad_output, weight_stream);
  // grad_bias[N] = the sum over grad_output's rows
  if (is_given(tensors.grad_bias) && !grad_output.is_summed) {
    backend_->column_sum({.in = grad_output.values.dtype, .out = tensors.grad_bias.dtype},
                         {.input = grad_output.values, .sum = tensors.grad_bias}, stream);
  }
}

void Float8Linear::keep(const LinearForward& tensors) {
  saved_ = tensors;
  has_forward_ = true;
}

void Float8Linear::release() {
  has_forward_ = false;
  weight_is_current_ = false;
  input_transposed_ = {};
  input_transposed_factors_ = {};
  input_values_ = {};
  preactivation_ = {};
  weight_ = {};
}

std::size_t Float8Linear::saved_bytes() const {
  if (!has_forward_) return 0;
  const auto bytes = [](const OwnedTensor& tensor) { return byte_span(tensor, "Float8Linear saved tensor"); };
  std::size_t sum = needs_preactivation() ? bytes(preactivation_) : 0;
  if (is_float8(config_.grad_weight)) {
    if (config_.input != OtherCodes::again) sum += bytes(input_transposed_) + bytes(input_transposed_factors_);
  } else if (options_.fusion.prologue) {
    sum += bytes(input_values_);
  }
  return sum;
}

}  // namespace ingot
