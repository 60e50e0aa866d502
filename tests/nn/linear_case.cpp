#include "nn/linear_case.h"

namespace ingot::test {

std::string print(const CaseShape& shape) {
  return "M=" + std::to_string(shape.tokens) + " K=" + std::to_string(shape.in_features) +
         " N=" + std::to_string(shape.out_features);
}

std::vector<LinearConfig> every_config() {
  std::vector<LinearConfig> all;
  for (int high = 0; high < 8; ++high) {
    LinearConfig config = tensorwise();
    if ((high & 1) != 0) config.output = {};
    if ((high & 2) != 0) config.grad_input = {};
    if ((high & 4) != 0) config.grad_weight = {};
    all.push_back(config);
  }
  LinearConfig pow2 = tensorwise();
  for (GemmConfig* gemm : {&pow2.output, &pow2.grad_input, &pow2.grad_weight}) gemm->a->pow2 = gemm->b->pow2 = true;
  all.push_back(pow2);
  for (const Recipe& known : recipes()) all.push_back(known.config);
  // Casts again in backward, and folds only the input's or only the weight's scale_inv.
  for (LinearConfig config : {tensorwise(), rowwise(), blockwise(), delayed()}) {
    config.input = config.weight = OtherCodes::again;
    all.push_back(config);
  }
  for (const auto& [input, weight] : {std::pair{OtherCodes::folded, OtherCodes::again},
                                      {OtherCodes::again, OtherCodes::folded},
                                      {OtherCodes::folded, OtherCodes::together},
                                      {OtherCodes::together, OtherCodes::folded}}) {
    LinearConfig config = rowwise();
    config.input = input;
    config.weight = weight;
    all.push_back(config);
  }
  LinearConfig unrounded = rowwise_folded();
  for (GemmConfig* gemm : {&unrounded.output, &unrounded.grad_input, &unrounded.grad_weight}) {
    gemm->a->pow2 = gemm->b->pow2 = false;
  }
  all.push_back(unrounded);
  // Combines delayed, fixed and dynamic scales.
  for (int kinds = 1; kinds < 27; kinds += 4) {
    LinearConfig config = tensorwise();
    const auto set = [&](int kind, Cast& first, Cast& second, float scale) {
      for (Cast* cast : {&first, &second}) {
        cast->scaling = static_cast<Scaling>(kind % 3);
        if (cast->scaling == Scaling::fixed) cast->scale = scale;
      }
    };
    set(kinds, *config.output.a, *config.grad_weight.b, 96);
    set(kinds / 3, *config.output.b, *config.grad_input.b, 1000);
    set(kinds / 9, *config.grad_input.a, *config.grad_weight.a, 4096);
    all.push_back(config);
  }
  // Combines rowwise and tensorwise scales of the operands in every way.
  for (int rows = 1; rows < 63; rows += 4) {
    LinearConfig config = tensorwise();
    int operand = 0;
    for (GemmConfig* gemm : {&config.output, &config.grad_input, &config.grad_weight}) {
      for (std::optional<Cast>* cast : {&gemm->a, &gemm->b}) {
        if ((rows >> operand++ & 1) != 0) (*cast)->granularity = kRowwise;
      }
    }
    if (rows % 3 == 0) config.output = {};
    if (rows % 5 == 0) config.grad_weight = {};
    all.push_back(config);
  }
  for (const Dtype forward : kFp8Dtypes) {
    for (const Dtype gradient : {forward, Dtype::e5m2}) {
      LinearConfig config = tensorwise();
      config.output.a->dtype = config.grad_weight.b->dtype = forward;
      config.output.b->dtype = config.grad_input.b->dtype = forward;
      config.grad_input.a->dtype = config.grad_weight.a->dtype = gradient;
      config.grad_weight.fast_accumulation = true;
      all.push_back(config);
    }
  }
  return all;
}

HostInputs make_inputs(const CaseShape& shape, Dtype dtype, Dtype bias_dtype, unsigned seed, Gradient gradient) {
  Random random(seed);
  HostInputs inputs{.input = random.normal(shape.tokens, shape.in_features, dtype),
                    .weight = random.weight(shape.out_features, shape.in_features, dtype),
                    .bias = random.normal(1, shape.out_features, bias_dtype, 0.1),
                    .grad_output = random.normal(shape.tokens, shape.out_features, dtype)};
  if (gradient == Gradient::ones) {
    for (double& value : inputs.grad_output.values) value = 1;
  }
  return inputs;
}

Dtype bias_dtype_of(const LinearConfig& config, Dtype dtype) {
  return dtype == Dtype::f32 && config.output.a ? Dtype::bf16 : dtype;
}

LinearCase::LinearCase(const HostInputs& host, Dtype dtype, Dtype bias_dtype, Backend& backend, Stream& stream,
                       std::int64_t padding)
    : input(host.input, dtype, backend, stream, host.input.cols + padding),
      weight(host.weight, dtype, backend, stream, host.weight.cols + padding),
      bias(host.bias, bias_dtype, backend, stream),
      grad_output(host.grad_output, dtype, backend, stream, host.grad_output.cols + padding),
      output(DeviceMatrix::poisoned(host.input.rows, host.weight.rows, dtype, backend, stream)),
      grad_input(DeviceMatrix::poisoned(host.input.rows, host.input.cols, dtype, backend, stream)),
      grad_weight(DeviceMatrix::poisoned(host.weight.rows, host.weight.cols, dtype, backend, stream)),
      grad_bias(DeviceMatrix::poisoned(1, host.weight.rows, dtype, backend, stream)) {}

LinearForward LinearCase::forward(bool with_bias) const {
  LinearForward tensors{.input = input, .weight = weight, .output = output};
  if (with_bias) tensors.bias = bias;
  return tensors;
}

LinearBackward LinearCase::backward(bool with_bias) const {
  LinearBackward tensors{.grad_output = grad_output, .grad_input = grad_input, .grad_weight = grad_weight};
  if (with_bias) tensors.grad_bias = grad_bias;
  return tensors;
}

void LinearCase::poison_results(Stream& stream) {
  for (DeviceMatrix* result : {&output, &grad_input, &grad_weight, &grad_bias}) result->poison(stream);
}

std::vector<std::uint8_t> LinearCase::result_bytes(Stream& stream) const {
  std::vector<std::uint8_t> all;
  for (const DeviceMatrix* result : {&output, &grad_input, &grad_weight, &grad_bias}) {
    const std::vector<std::uint8_t> bytes = result->bytes(stream);
    all.insert(all.end(), bytes.begin(), bytes.end());
  }
  return all;
}

Sqnr measure_sqnr(const CaseShape& shape, const LinearConfig& config, Dtype dtype, unsigned seed, Gradient gradient,
                  Backend& backend, Stream& stream) {
  const Dtype bias_dtype = bias_dtype_of(config, dtype);
  const HostInputs host = make_inputs(shape, dtype, bias_dtype, seed, gradient);
  const LinearCase device(host, dtype, bias_dtype, backend, stream);
  DelayedScaling scales(backend);
  Float8Linear linear(backend, {shape.in_features, shape.out_features, true}, config, {.delayed = &scales});
  linear.forward(device.forward(true), stream);
  linear.backward(device.backward(true), stream);
  const LinearConfig plain = high_precision();
  return {
      .output =
          sqnr(expected_output(plain, host.input, host.weight, &host.bias, dtype).value, device.output.read(stream)),
      .grad_input =
          sqnr(expected_grad_input(plain, host.grad_output, host.weight, dtype).value, device.grad_input.read(stream)),
      .grad_weight =
          sqnr(expected_grad_weight(plain, host.grad_output, host.input, dtype).value, device.grad_weight.read(stream)),
      .grad_bias = sqnr(expected_grad_bias(host.grad_output, dtype).value, device.grad_bias.read(stream))};
}

void check_torchao_bars(const Recipe& recipe, Dtype dtype, Backend& backend, Stream& stream) {
  for (const std::int64_t tokens : {16, 2 * 16, 3 * 2 * 16, 13}) {
    for (const Gradient gradient : {Gradient::ones, Gradient::normal}) {
      const Sqnr found = measure_sqnr({tokens, 16, 32}, recipe.config, dtype, 7, gradient, backend, stream);
      const std::string what = std::string(recipe.name) + " " + std::string(name(dtype)) +
                               " M=" + std::to_string(tokens) + (gradient == Gradient::ones ? " ones" : " normal");
      BOOST_TEST_MESSAGE(what << ": output " << found.output << " dB, grad_input " << found.grad_input
                              << " dB, grad_weight " << found.grad_weight << " dB, grad_bias " << found.grad_bias
                              << " dB");
      BOOST_TEST(found.output >= 18.0, what << ": output has " << found.output << " dB");
      BOOST_TEST(found.grad_weight >= 17.0, what << ": grad_weight has " << found.grad_weight << " dB");
      BOOST_TEST(found.grad_input >= 17.0, what << ": grad_input has " << found.grad_input << " dB");
      BOOST_TEST(found.grad_bias >= 45.0, what << ": grad_bias has " << found.grad_bias << " dB");
    }
  }
}

}  // namespace ingot::test
