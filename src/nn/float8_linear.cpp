#include "ingot/nn/float8_linear.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "ingot/runtime/check.h"
#include "ingot/runtime/error.h"

namespace ingot {
namespace {

bool is_float8(const GemmConfig& gemm) { return gemm.a.has_value(); }

// ---- the GEMM ----------------------------------------------------------------------------------------------------

struct Operand {
  Tensor tensor;
  Tensor factors{};
  ScaleGranularity scale = kTensorwise;
  Layout layout = Layout::k_major;
};

struct Gemm {
  Operand a;
  Operand b;
  Tensor bias{};
  bool has_bias = false;
  Tensor out;
  bool fast_accumulation = false;
  bool accumulate = false;  // out += the product
};

void run(const Gemm& gemm, Backend& backend, Stream& stream) {
  GemmSpec spec{.a = gemm.a.tensor.dtype,
                .b = gemm.b.tensor.dtype,
                .out = gemm.out.dtype,
                .layout_a = gemm.a.layout,
                .layout_b = gemm.b.layout,
                .scale_a = gemm.a.scale,
                .scale_b = gemm.b.scale,
                .bias = gemm.has_bias,
                .fast_accumulation = gemm.fast_accumulation};
  if (gemm.accumulate) spec.epilogue.c = gemm.out.dtype;
  backend.gemm(spec,
               {.a = gemm.a.tensor,
                .b = gemm.b.tensor,
                .factor_a = gemm.a.factors,
                .factor_b = gemm.b.factors,
                .bias = gemm.bias,
                .out = gemm.out,
                .c = gemm.accumulate ? gemm.out : Tensor{}},
               stream);
}

Dtype layer_bias_dtype(const LinearConfig& config, Dtype dtype) {
  const bool float8 = is_float8(config.output);
  return bias_dtype({.a = float8 ? config.output.a->dtype : dtype,
                     .b = float8 ? config.output.b->dtype : dtype,
                     .out = dtype,
                     .bias = true});
}

// ---- checks ------------------------------------------------------------------------------------------------------

struct Named {
  const char* name;
  const Tensor* tensor;
};

[[noreturn]] void refuse(const char* subject, const std::string& message) {
  throw Error(ErrorCode::invalid_argument, subject, message);
}

bool is_given(const Tensor& tensor) { return tensor.data != nullptr || tensor.rows != 0 || tensor.cols != 0; }

void check_dtype(const Named& named, std::initializer_list<Dtype> allowed, const char* why) {
  if (std::ranges::find(allowed, named.tensor->dtype) != allowed.end()) return;
  std::string names;
  for (const Dtype dtype : allowed) names += fmt::format("{}{}", names.empty() ? "" : " or ", name(dtype));
  if (!is_given(*named.tensor)) refuse(named.name, fmt::format("is missing; it must be {}{}", names, why));
  refuse(named.name, fmt::format("is {}, but must be {}{}", name(named.tensor->dtype), names, why));
}

void check_shape(const Named& named, std::int64_t rows, std::int64_t cols, const char* meaning) {
  const Tensor& tensor = *named.tensor;
  if (tensor.rows == rows && tensor.cols == cols) return;
  if (!is_given(tensor)) refuse(named.name, fmt::format("is missing; it must be [{}, {}] = {}", rows, cols, meaning));
  refuse(named.name, fmt::format("is {}, but must be [{}, {}] = {}", describe(tensor), rows, cols, meaning));
}

void check_memory(const Named& named, Device device) { check_memory(named.name, *named.tensor, device); }

void check_disjoint(const Named& output, std::initializer_list<Named> others) {
  for (const Named& other : others) {
    if (overlap(*output.tensor, *other.tensor)) {
      refuse(output.name, fmt::format("overlaps {}: give it memory of its own", other.name));
    }
  }
}

void check_size(const char* subject, std::int64_t size) {
  if (size < 0) refuse(subject, fmt::format("is {}, but must be 0 or more", size));
}

void check_own_stream(const Backend& backend, const Stream& stream) {
  if (&stream.backend() != &backend) {
    refuse("Float8Linear stream", "belongs to another backend than the layer: make it from the layer's backend");
  }
}

}  // namespace

Float8Linear::Float8Linear(Backend& backend, LinearShape shape, LinearConfig config, Float8Workspace* workspace)
    : backend_(&backend), shape_(shape), config_(config), shared_workspace_(workspace) {
  validate(config_);
  check_size("Float8Linear in_features", shape_.in_features);
  check_size("Float8Linear out_features", shape_.out_features);
}

void Float8Linear::check_forward(const LinearForward& tensors, const Stream& stream) const {
  check_own_stream(*backend_, stream);
  const Named input{"Float8Linear input", &tensors.input};
  const Named weight{"Float8Linear weight", &tensors.weight};
  const Named bias{"Float8Linear bias", &tensors.bias};
  const Named output{"Float8Linear output", &tensors.output};
  const Dtype dtype = tensors.input.dtype;
  if (!is_given(tensors.input) && shape_.in_features != 0) {
    refuse(input.name, fmt::format("is missing; it must have {} columns = in_features", shape_.in_features));
  }
  check_dtype(input, {Dtype::f32, Dtype::bf16, Dtype::f16}, "");
  check_dtype(weight, {dtype}, ", as input is");
  check_dtype(output, {dtype}, ", as input is");
  if (tensors.input.cols != shape_.in_features) {
    refuse("Float8Linear input",
           fmt::format("is {}, but must have {} columns = in_features", describe(tensors.input), shape_.in_features));
  }
  check_shape(weight, shape_.out_features, shape_.in_features, "[out_features, in_features]");
  check_shape(output, tensors.input.rows, shape_.out_features, "[rows of input, out_features]");
  for (const Named& named : {input, weight, output}) check_memory(named, backend_->device());
  if (shape_.bias) {
    check_shape(bias, 1, shape_.out_features, "a vector of out_features");
    check_dtype(bias, {layer_bias_dtype(config_, dtype)},
                dtype == Dtype::f32 && is_float8(config_.output) ? ": an FP8 GEMM with f32 output takes a bf16 bias"
                                                                 : ", as input is");
    check_memory(bias, backend_->device());
  } else if (is_given(tensors.bias)) {
    refuse("Float8Linear bias", "is given, but the layer was made without one: set bias in its LinearShape");
  }
  check_disjoint(output, {input, weight, bias});
}

void Float8Linear::check_backward(const LinearBackward& tensors, const Stream& stream) const {
  check_own_stream(*backend_, stream);
  if (!has_forward_) refuse("Float8Linear backward", "has no forward() before it: run forward() first");
  const Named grad_output{"Float8Linear grad_output", &tensors.grad_output};
  const Named grad_input{"Float8Linear grad_input", &tensors.grad_input};
  const Named grad_weight{"Float8Linear grad_weight", &tensors.grad_weight};
  const Named grad_bias{"Float8Linear grad_bias", &tensors.grad_bias};
  const Dtype dtype = saved_input_.dtype;
  const std::int64_t tokens = saved_input_.rows;
  check_dtype(grad_output, {dtype}, ", as input is");
  check_shape(grad_output, tokens, shape_.out_features, "[rows of the last forward's input, out_features]");
  check_memory(grad_output, backend_->device());
  if (is_given(tensors.grad_input)) {
    check_dtype(grad_input, {dtype}, ", as input is");
    check_shape(grad_input, tokens, shape_.in_features, "[rows of the last forward's input, in_features]");
    check_memory(grad_input, backend_->device());
  }
  if (tensors.accumulate && !is_given(tensors.grad_weight)) {
    refuse(grad_weight.name, "is missing, but accumulate asks for it to be added to");
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
    if (!shape_.bias) refuse("Float8Linear grad_bias", "is given, but the layer was made without a bias");
    check_dtype(grad_bias, {Dtype::f32, Dtype::bf16, Dtype::f16}, "");
    check_shape(grad_bias, 1, shape_.out_features, "a vector of out_features");
    check_memory(grad_bias, backend_->device());
  }
  // Three results from one grad_output: one that is written over it, or over another result, would spoil the next. The
  // saved views count only where this config reads them again.
  check_disjoint(grad_input, {grad_output, grad_weight, grad_bias});
  check_disjoint(grad_weight, {grad_output, grad_bias});
  check_disjoint(grad_bias, {grad_output});
  for (const Named& result : {grad_input, grad_weight, grad_bias}) {
    if (!is_float8(config_.grad_weight)) check_disjoint(result, {{"Float8Linear input", &saved_input_}});
    if (!is_float8(config_.grad_input)) check_disjoint(result, {{"Float8Linear weight", &saved_weight_}});
  }
}

// Factors that both of the input's casts share live as long as what is saved.
bool Float8Linear::input_has_own_factors() const {
  const TensorCasts casts = input_casts(config_);
  return casts.codes && !share_scales(casts);
}

void Float8Linear::cast_input(const Tensor& input, Stream& stream) {
  const TensorCasts casts = input_casts(config_);
  if (!casts.codes && !casts.transposed) return;
  const CastSpec spec = cast_spec(casts, input.dtype);
  cast_to({.codes = &workspace().input_codes,
           .transposed = &input_transposed_,
           .factors = input_has_own_factors() ? &workspace().input_factors : &input_transposed_factors_,
           .transposed_factors = &input_transposed_factors_},
          spec, input, *backend_, stream);
}

void Float8Linear::cast_weight(const Tensor& weight, Stream& stream) {
  const TensorCasts casts = weight_casts(config_);
  if (!casts.codes && !casts.transposed) return;
  const bool same_memory = weight.data == saved_weight_.data && weight.dtype == saved_weight_.dtype &&
                           weight.row_stride == saved_weight_.row_stride;
  if (weight_is_current_ && same_memory) return;
  weight_is_current_ = false;
  cast_to(weight_, cast_spec(casts, weight.dtype), weight, *backend_, stream);
  saved_weight_ = weight;
  // A cast that was only recorded has not made the codes yet.
  weight_is_current_ = !backend_->capturing(stream);
}

// Gives the factors of the transposed codes.
Tensor Float8Linear::cast_grad_output(const LinearBackward& tensors, Stream& stream) {
  TensorCasts casts = grad_output_casts(config_);
  if (!is_given(tensors.grad_input)) casts.codes.reset();
  if (!is_given(tensors.grad_weight)) casts.transposed.reset();
  if (!casts.codes && !casts.transposed) return {};
  const CastSpec spec = cast_spec(casts, tensors.grad_output.dtype);
  cast_to(workspace().grad_output, spec, tensors.grad_output, *backend_, stream);
  return workspace().grad_output.factors_of_transposed(spec);
}

// output[M, N] = input[M, K] @ weight[N, K]^T + bias
void Float8Linear::forward(const LinearForward& tensors, Stream& stream) {
  check_forward(tensors, stream);
  has_forward_ = false;
  cast_input(tensors.input, stream);
  cast_weight(tensors.weight, stream);

  Gemm output{.a = {.tensor = tensors.input},
              .b = {.tensor = tensors.weight},
              .bias = tensors.bias,
              .has_bias = shape_.bias,
              .out = tensors.output,
              .fast_accumulation = config_.output.fast_accumulation};
  if (is_float8(config_.output)) {
    output.a = {.tensor = workspace().input_codes,
                .factors = input_has_own_factors() ? workspace().input_factors : input_transposed_factors_,
                .scale = config_.output.a->granularity};
    output.b = {.tensor = weight_.codes, .factors = weight_.factors, .scale = config_.output.b->granularity};
  }
  run(output, *backend_, stream);

  saved_input_ = tensors.input;
  saved_weight_ = tensors.weight;
  has_forward_ = true;
}

void Float8Linear::backward(const LinearBackward& tensors, Stream& stream) {
  check_backward(tensors, stream);
  const Tensor factors_of_transposed = cast_grad_output(tensors, stream);
  const Float8Tensor& grad_output = workspace().grad_output;

  // grad_input[M, K] = grad_output[M, N] @ weight[N, K]: the sum runs over the weight's rows
  if (is_given(tensors.grad_input)) {
    Gemm grad_input{.a = {.tensor = tensors.grad_output},
                    .b = {.tensor = saved_weight_, .layout = Layout::mn_major},
                    .out = tensors.grad_input,
                    .fast_accumulation = config_.grad_input.fast_accumulation};
    if (is_float8(config_.grad_input)) {
      const CastSpec of_weight = cast_spec(weight_casts(config_), saved_weight_.dtype);
      grad_input.a = {
          .tensor = grad_output.codes, .factors = grad_output.factors, .scale = config_.grad_input.a->granularity};
      grad_input.b = {.tensor = weight_.transposed,
                      .factors = weight_.factors_of_transposed(of_weight),
                      .scale = config_.grad_input.b->granularity};
    }
    run(grad_input, *backend_, stream);
  }

  // grad_weight[N, K] = grad_output[M, N]^T @ input[M, K]: the sum runs over the rows of both
  if (is_given(tensors.grad_weight)) {
    Gemm grad_weight{.a = {.tensor = tensors.grad_output, .layout = Layout::mn_major},
                     .b = {.tensor = saved_input_, .layout = Layout::mn_major},
                     .out = tensors.grad_weight,
                     .fast_accumulation = config_.grad_weight.fast_accumulation,
                     .accumulate = tensors.accumulate};
    if (is_float8(config_.grad_weight)) {
      grad_weight.a = {.tensor = grad_output.transposed,
                       .factors = factors_of_transposed,
                       .scale = config_.grad_weight.a->granularity};
      grad_weight.b = {.tensor = input_transposed_,
                       .factors = input_transposed_factors_,
                       .scale = config_.grad_weight.b->granularity};
    }
    run(grad_weight, *backend_, stream);
  }

  // grad_bias[N] = the sum of grad_output's rows
  if (is_given(tensors.grad_bias)) {
    backend_->column_sum({.in = tensors.grad_output.dtype, .out = tensors.grad_bias.dtype},
                         {.input = tensors.grad_output, .sum = tensors.grad_bias}, stream);
  }
}

std::size_t Float8Linear::saved_bytes() const {
  if (!has_forward_ || !is_float8(config_.grad_weight)) return 0;
  return byte_span(input_transposed_, "Float8Linear input") +
         byte_span(input_transposed_factors_, "Float8Linear input");
}

}  // namespace ingot
