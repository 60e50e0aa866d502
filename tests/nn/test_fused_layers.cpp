// Layers with a fused prologue, epilogue, norm or gated activation give the same bits as the separate operations in
// sequence.
#include <boost/test/unit_test.hpp>

#include <cmath>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ingot/nn/modules/delayed_scaling.h"
#include "ingot/nn/modules/gated_mlp.h"
#include "ingot/nn/modules/norm_linear.h"
#include "ingot/runtime/context/cpu_backend.h"
#include "ingot/runtime/util/error.h"
#include "nn/linear_case.h"
#include "support/function_ref.h"

BOOST_AUTO_TEST_SUITE(test_fused_layers)

using namespace ingot;
using namespace ingot::test;

namespace {

constexpr CaseShape kShape{33, 48, 40};

struct Fixture {
  std::unique_ptr<Backend> backend = make_cpu_backend(2);
  Stream stream{*backend};

  DeviceMatrix make(const Matrix& m, Dtype dtype) { return {m, dtype, *backend, stream}; }
  DeviceMatrix empty(std::int64_t rows, std::int64_t cols, Dtype dtype) {
    return DeviceMatrix::poisoned(rows, cols, dtype, *backend, stream);
  }
  DeviceMatrix elementwise(const Pointwise& expression, const Tensor& x, const PointwiseTensors& inputs) {
    DeviceMatrix out = empty(x.rows, x.cols, x.dtype);
    backend->elementwise({.in = x.dtype, .pointwise = expression}, {.input = x, .inputs = inputs, .output = out},
                         stream);
    return out;
  }
  void check_same(const DeviceMatrix& actual, const DeviceMatrix& expected, const std::string& what) {
    for (const double value : expected.read(stream).values) BOOST_REQUIRE_MESSAGE(!std::isnan(value), what);
    BOOST_TEST((actual.bytes(stream) == expected.bytes(stream)), what);
  }
};

std::string refusal(test::FunctionRef<void()> act) {
  try {
    act();
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

struct Epilogue {
  const char* text;
  const char* gradient;  // in terms of the output; empty: the derivative of the text, at sum + bias
  bool of_output;        // x is the output
  bool gated;            // does it read the input "gate"?
};
constexpr Epilogue kEpilogues[] = {
    {"silu(x)", "", false, false},
    {"sigmoid(x)", "grad * (x * (1 - x))", true, false},
    {"relu(x)", "grad * step(x)", true, false},
    {"tanh(x)", "grad * (1 - x^2)", true, false},
    {"x + gate", "", false, true},
    {"x * gate", "", false, true},
};

}  // namespace

BOOST_FIXTURE_TEST_SUITE(fused_layers, Fixture)

BOOST_AUTO_TEST_CASE(an_epilogue_is_the_expression_behind_the_layer) {
  for (const Recipe& recipe : recipes()) {
    for (const Dtype dtype : {Dtype::bf16, Dtype::f32}) {
      for (const Epilogue& epilogue : kEpilogues) {
        BOOST_TEST_CONTEXT(recipe.name << " " << name(dtype) << " " << epilogue.text) {
          const Dtype bias_dtype = bias_dtype_of(recipe.config, dtype);
          const HostInputs host = make_inputs(kShape, dtype, bias_dtype, 3);
          LinearCase plain(host, dtype, bias_dtype, *backend, stream);
          LinearCase fused(host, dtype, bias_dtype, *backend, stream);
          const DeviceMatrix gate = make(Random(9).normal(kShape.tokens, kShape.out_features, dtype), dtype);
          DelayedScaling scales(*backend);
          DelayedScaling other_scales(*backend);
          Float8Linear layer(*backend, {kShape.in_features, kShape.out_features, true}, recipe.config,
                             {.fusion = {.epilogue = parse_pointwise(epilogue.text)}, .delayed = &scales});
          Float8Linear bare(*backend, {kShape.in_features, kShape.out_features, true}, recipe.config,
                            {.delayed = &other_scales});

          LinearForward forward = fused.forward(true);
          if (epilogue.gated) forward.epilogue_inputs[0] = gate;
          layer.forward(forward, stream);
          layer.backward(fused.backward(true), stream);

          bare.forward(plain.forward(true), stream);
          // The expression is applied to the f32 sum and rounded once, so it differs by a rounding from applying it to
          // the rounded sum.
          const Matrix z = plain.output.read(stream);
          const Matrix y = fused.output.read(stream);
          const Matrix g = gate.read(stream);
          const Pointwise f = parse_pointwise(epilogue.text);
          for (std::size_t i = 0; i < z.values.size(); ++i) {
            const std::array<double, 1> input{g.values[i]};
            const double expected = evaluate(f, z.values[i], std::span(input).first(epilogue.gated ? 1 : 0));
            const double slope = epilogue.gated ? std::abs(g.values[i]) + 1 : 1.2;
            BOOST_REQUIRE(std::abs(y.values[i] - expected) <=
                          2 * unit_roundoff(dtype) * (std::abs(expected) + slope * std::abs(z.values[i])) + 1e-6);
          }

          PointwiseTensors inputs{plain.grad_output};
          const Pointwise gradient = epilogue.of_output ? parse_pointwise(epilogue.gradient) : ingot::backward(f, "x");
          for (std::size_t i = 0; i < gradient.inputs().size(); ++i) {
            inputs[i] = gradient.inputs()[i].name == "gate" ? gate.view() : plain.grad_output.view();
          }
          const DeviceMatrix grad_z = elementwise(gradient, epilogue.of_output ? fused.output : plain.output, inputs);
          LinearBackward backward = plain.backward(true);
          backward.grad_output = grad_z;
          bare.backward(backward, stream);
          // Only silu's derivative needs the preactivation.
          const std::size_t preactivation =
              std::string_view(epilogue.text) == "silu(x)"
                  ? static_cast<std::size_t>(kShape.tokens * kShape.out_features * size_of(dtype))
                  : 0;
          BOOST_TEST(layer.saved_bytes() == bare.saved_bytes() + preactivation);
          check_same(fused.grad_input, plain.grad_input, "grad_input");
          check_same(fused.grad_weight, plain.grad_weight, "grad_weight");
          check_within(fused.grad_bias.read(stream), expected_grad_bias(grad_z.read(stream), dtype), "grad_bias");
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(a_prologue_is_the_expression_ahead_of_the_layer) {
  for (const LinearConfig& config : every_config()) {
    BOOST_TEST_CONTEXT(print(config)) {
      const Dtype dtype = Dtype::bf16;
      const HostInputs host = make_inputs(kShape, dtype, dtype, 4);
      const LinearCase plain(host, dtype, dtype, *backend, stream);
      const LinearCase fused(host, dtype, dtype, *backend, stream);
      const DeviceMatrix up = make(Random(8).normal(kShape.tokens, kShape.in_features, dtype), dtype);
      DelayedScaling scales(*backend);
      DelayedScaling other_scales(*backend);
      Float8Linear layer(*backend, {kShape.in_features, kShape.out_features, true}, config,
                         {.fusion = {.prologue = parse_pointwise("silu(x) * up")}, .delayed = &scales});
      Float8Linear bare(*backend, {kShape.in_features, kShape.out_features, true}, config, {.delayed = &other_scales});

      LinearForward forward = fused.forward(true);
      forward.prologue_inputs[0] = up;
      layer.forward(forward, stream);
      layer.backward(fused.backward(true), stream);

      const DeviceMatrix values = elementwise(parse_pointwise("silu(x) * up"), plain.input, {up.view()});
      LinearForward apart = plain.forward(true);
      apart.input = values;
      bare.forward(apart, stream);
      bare.backward(plain.backward(true), stream);
      check_same(fused.output, plain.output, "output");
      check_same(fused.grad_input, plain.grad_input, "grad_input");
      check_same(fused.grad_weight, plain.grad_weight, "grad_weight");
      check_same(fused.grad_bias, plain.grad_bias, "grad_bias");
    }
  }
}

BOOST_AUTO_TEST_CASE(a_norm_is_the_norm_ahead_of_the_layer) {
  for (const Recipe& recipe : recipes()) {
    for (const NormKind kind : {NormKind::layer, NormKind::rms}) {
      for (const bool affine : {true, false}) {
        BOOST_TEST_CONTEXT(recipe.name << (kind == NormKind::layer ? " layer" : " rms") << (affine ? " affine" : "")) {
          const Dtype dtype = Dtype::bf16;
          const bool layer = kind == NormKind::layer;
          const HostInputs host = make_inputs(kShape, dtype, dtype, 5);
          const LinearCase plain(host, dtype, dtype, *backend, stream);
          const LinearCase fused(host, dtype, dtype, *backend, stream);
          Random random(6);
          const DeviceMatrix gamma = make(random.normal(1, kShape.in_features, dtype), dtype);
          const DeviceMatrix beta = make(random.normal(1, kShape.in_features, dtype), dtype);
          const auto vector_of = [&] { return empty(1, kShape.in_features, Dtype::f32); };
          const DeviceMatrix grad_gamma = vector_of();
          const DeviceMatrix grad_beta = vector_of();
          const DeviceMatrix expected_gamma = vector_of();
          const DeviceMatrix expected_beta = vector_of();
          DelayedScaling scales(*backend);
          DelayedScaling other_scales(*backend);

          NormLinear norm_linear(
              kind, *backend,
              {.linear = {kShape.in_features, kShape.out_features, true}, .affine = affine, .eps = 1e-4F},
              recipe.config, {.delayed = &scales});
          NormLinearForward forward{
              .input = fused.input, .weight = fused.weight, .bias = fused.bias, .output = fused.output};
          NormLinearBackward backward{.grad_output = fused.grad_output,
                                      .grad_input = fused.grad_input,
                                      .grad_weight = fused.grad_weight,
                                      .grad_bias = fused.grad_bias};
          if (affine) {
            forward.gamma = gamma;
            backward.grad_gamma = grad_gamma;
            if (layer) forward.beta = beta;
            if (layer) backward.grad_beta = grad_beta;
          }
          norm_linear.forward(forward, stream);
          norm_linear.backward(backward, stream);

          const DeviceMatrix values = empty(kShape.tokens, kShape.in_features, dtype);
          const DeviceMatrix mean = empty(1, kShape.tokens, Dtype::f32);
          const DeviceMatrix rstd = empty(1, kShape.tokens, Dtype::f32);
          const DeviceMatrix grad_values = empty(kShape.tokens, kShape.in_features, dtype);
          NormTensors norm{.input = plain.input, .result = values, .rstd = rstd, .eps = 1e-4F};
          NormBackwardTensors flow{
              .grad_output = grad_values, .input = plain.input, .rstd = rstd, .grad_input = plain.grad_input};
          if (layer) norm.mean = flow.mean = mean;
          if (affine) {
            norm.gamma = flow.gamma = gamma;
            flow.grad_gamma = expected_gamma;
            if (layer) norm.beta = beta;
            if (layer) flow.grad_beta = expected_beta;
          }
          backend->norm({.kind = kind, .in = dtype, .affine = affine, .result = true, .stats = true}, norm, stream);
          Float8Linear bare(*backend, {kShape.in_features, kShape.out_features, true}, recipe.config,
                            {.delayed = &other_scales});
          LinearForward apart = plain.forward(true);
          apart.input = values;
          bare.forward(apart, stream);
          LinearBackward apart_backward = plain.backward(true);
          apart_backward.grad_input = grad_values;
          bare.backward(apart_backward, stream);
          backend->norm_backward({.kind = kind, .in = dtype, .affine = affine}, flow, stream);

          check_same(fused.output, plain.output, "output");
          check_same(fused.grad_input, plain.grad_input, "grad_input");
          check_same(fused.grad_weight, plain.grad_weight, "grad_weight");
          check_same(fused.grad_bias, plain.grad_bias, "grad_bias");
          if (affine) check_same(grad_gamma, expected_gamma, "grad_gamma");
          if (affine && layer) check_same(grad_beta, expected_beta, "grad_beta");
          BOOST_TEST(norm_linear.saved_bytes() >= static_cast<std::size_t>(kShape.tokens) * (layer ? 8 : 4));
        }
      }
    }
  }
}

// Compares with the formula in float64, without any FP8.
BOOST_AUTO_TEST_CASE(a_gated_mlp_is_near_its_formula) {
  constexpr std::int64_t kTokens = 40, kFeatures = 64, kHidden = 96;
  for (const Recipe& recipe : recipes()) {
    BOOST_TEST_CONTEXT(recipe.name) {
      const Dtype dtype = Dtype::bf16;
      Random random(2);
      const Matrix x = random.normal(kTokens, kFeatures, dtype);
      const Matrix w13 = random.weight(2 * kHidden, kFeatures, dtype);
      const Matrix w2 = random.weight(kFeatures, kHidden, dtype);
      const Matrix gy = random.normal(kTokens, kFeatures, dtype);
      const auto product = [](const Matrix& a, const Matrix& b) {
        return expected_gemm(a, b, nullptr, Dtype::f32).value;
      };
      const Matrix both = product(x, w13);
      Matrix hidden = zeros(kTokens, kHidden);
      Matrix grad_both = zeros(kTokens, 2 * kHidden);
      const Matrix grad_hidden = product(gy, transpose(w2));
      for (std::int64_t t = 0; t < kTokens; ++t) {
        for (std::int64_t h = 0; h < kHidden; ++h) {
          const double gate = both.at(t, h);
          const double up = both.at(t, h + kHidden);
          const double s = 1 / (1 + std::exp(-gate));
          hidden.at(t, h) = gate * s * up;
          grad_both.at(t, h) = grad_hidden.at(t, h) * up * (s + gate * s * (1 - s));
          grad_both.at(t, h + kHidden) = grad_hidden.at(t, h) * gate * s;
        }
      }

      DelayedScaling scales(*backend);
      GatedMlp mlp(*backend, {.features = kFeatures, .hidden = kHidden}, recipe.config, {.delayed = &scales});
      const DeviceMatrix input = make(x, dtype), gate_up = make(w13, dtype), down = make(w2, dtype),
                         grad = make(gy, dtype);
      const DeviceMatrix output = empty(kTokens, kFeatures, dtype), grad_input = empty(kTokens, kFeatures, dtype);
      const DeviceMatrix grad_w13 = empty(2 * kHidden, kFeatures, Dtype::f32),
                         grad_w2 = empty(kFeatures, kHidden, Dtype::f32);
      mlp.forward({.input = input, .gate_up_weight = gate_up, .down_weight = down, .output = output}, stream);
      mlp.backward(
          {.grad_output = grad, .grad_input = grad_input, .grad_gate_up_weight = grad_w13, .grad_down_weight = grad_w2},
          stream);
      const auto check = [&](const char* what, const Matrix& expected, const DeviceMatrix& actual) {
        const double found = sqnr(expected, actual.read(stream));
        BOOST_TEST(found >= 18, what << " has " << found << " dB");
      };
      check("output", product(hidden, w2), output);
      check("grad_input", product(grad_both, transpose(w13)), grad_input);
      check("grad of gate_up", product(transpose(grad_both), transpose(x)), grad_w13);
      check("grad of down", product(transpose(gy), transpose(hidden)), grad_w2);
    }
  }
}

// A dtype that the plan refuses leaves the MLP as it was: it refuses it again, and goes back to what it kept.
BOOST_AUTO_TEST_CASE(a_refused_dtype_changes_no_mlp) {
  Mlp mlp(*backend, {16, 32}, high_precision(), {.weight_dtype = Dtype::bf16});
  Random random(4);
  const DeviceMatrix x = make(random.normal(4, 16, Dtype::bf16), Dtype::bf16), f32 = make(zeros(4, 16), Dtype::f32),
                     up = make(random.normal(32, 16, Dtype::bf16), Dtype::bf16),
                     down = make(random.normal(16, 32, Dtype::bf16), Dtype::bf16);
  const DeviceMatrix y = empty(4, 16, Dtype::bf16), first = empty(4, 16, Dtype::bf16),
                     again = empty(4, 16, Dtype::bf16);
  BOOST_TEST(refusal([&] { mlp.backward({.grad_output = x, .grad_input = first}, stream); }) ==
             "Mlp backward: has no forward() before it: run forward() first");
  mlp.forward({.input = x, .up_weight = up, .down_weight = down, .output = y}, stream);
  mlp.backward({.grad_output = x, .grad_input = first}, stream);
  const auto wrong = [&] {
    return refusal([&] { mlp.forward({.input = f32, .up_weight = up, .down_weight = down, .output = y}, stream); });
  };
  const std::string message = wrong();
  BOOST_TEST(message.find("has f32 for the input and bf16 for the weight") != std::string::npos, message);
  BOOST_TEST(wrong() == message);
  mlp.backward({.grad_output = x, .grad_input = again}, stream);
  check_same(again, first, "backward");
}

BOOST_AUTO_TEST_CASE(what_cannot_be_fused_is_refused) {
  BOOST_TEST(
      refusal([&] {
        Float8Linear(*backend, {16, 8}, tensorwise(), {.fusion = {.epilogue = parse_pointwise("x * grad_output")}});
      }) ==
      "linear fusion: the epilogue x * grad_output has an input named grad_output, a name that backward uses: "
      "choose another");
  BOOST_TEST(refusal([&] {
               LayerNormLinear(*backend, {.linear = {16, 8}}, tensorwise(),
                               {.fusion = {.prologue = parse_pointwise("x * 2")}});
             }) == "NormLinear fusion: has a prologue, but the norm is the prologue of this layer: leave it empty");
  BOOST_TEST(refusal([&] {
               GatedMlp(*backend, {16, 8}, tensorwise(), {.activation = "silu(x)"});
             }) ==
             "GatedMlp activation: \"silu(x)\" must be an expression of x, the gate, and of the matrix up, such as "
             "silu(x) * up");
  const DeviceMatrix x = make(zeros(4, 16), Dtype::bf16), w = make(zeros(8, 16), Dtype::bf16),
                     v = make(zeros(1, 16), Dtype::bf16);
  const DeviceMatrix y = empty(4, 8, Dtype::bf16);
  RMSNormLinear rms(*backend, {.linear = {16, 8}}, tensorwise());
  BOOST_TEST(refusal([&] { rms.forward({.input = x, .gamma = v, .beta = v, .weight = w, .output = y}, stream); }) ==
             "NormLinear beta: is given, but an RMSNorm has none");
  BOOST_TEST(refusal([&] { rms.backward({.grad_output = y}, stream); }) ==
             "NormLinear backward: has no forward() before it: run forward() first");
  rms.forward({.input = x, .gamma = v, .weight = w, .output = y}, stream);
  BOOST_TEST(refusal([&] { rms.backward({.grad_output = y, .grad_gamma = v}, stream); }) ==
             "NormLinear grad_input: is missing, but grad_gamma is computed together with it: give it memory");
  BOOST_TEST(refusal([&] { rms.backward({.grad_output = y, .grad_input = x}, stream); }) ==
             "NormLinear grad_gamma: is missing, but is computed together with grad_input: give it memory");
  BOOST_TEST(refusal([&] { rms.backward({.grad_output = y, .grad_input = x, .grad_gamma = v}, stream); }) ==
             "NormLinear grad_input: overlaps the input: give it separate memory");
  const DeviceMatrix gx = empty(4, 16, Dtype::bf16), square = make(zeros(16, 16), Dtype::bf16);
  BOOST_TEST(refusal([&] {
               rms.backward({.grad_output = y, .grad_input = gx, .grad_gamma = v, .grad_weight = gx}, stream);
             }) == "NormLinear grad_input: overlaps grad_weight: give it separate memory");
  RMSNormLinear in_place(*backend, {.linear = {16, 16}, .affine = false}, high_precision());
  BOOST_TEST(refusal([&] { in_place.forward({.input = x, .weight = square, .output = x}, stream); }) ==
             "NormLinear output: overlaps input: give it separate memory");

  GatedMlp mlp(*backend, {16, 8}, high_precision());
  const DeviceMatrix w13 = make(zeros(16, 16), Dtype::bf16), w2 = make(zeros(16, 8), Dtype::bf16);
  BOOST_TEST(refusal([&] { mlp.backward({.grad_output = x}, stream); }) ==
             "GatedMlp backward: has no forward() before it: run forward() first");
  BOOST_TEST(refusal([&] {
               mlp.forward({.input = x, .gate_up_weight = w13, .down_weight = w2, .output = x}, stream);
             }) == "GatedMlp output: overlaps input: give it separate memory");
  mlp.forward({.input = x, .gate_up_weight = w13, .down_weight = w2, .output = gx}, stream);
  BOOST_TEST(
      refusal([&] { mlp.backward({.grad_output = x, .grad_gate_up_weight = w13, .grad_down_weight = w13}, stream); }) ==
      "Float8Linear grad_weight: is bf16[16, 16] on cpu, but must be [16, 8] = [out_features, in_features]");

  Float8Linear gated(*backend, {16, 8}, high_precision(), {.fusion = {.epilogue = parse_pointwise("x + residual")}});
  const auto with = [&](const Tensor& residual, const Tensor& stray) {
    return refusal([&] {
      gated.forward({.input = x, .weight = w, .output = y, .prologue_inputs = {stray}, .epilogue_inputs = {residual}},
                    stream);
    });
  };
  BOOST_TEST(with({}, {}) == "Float8Linear epilogue_inputs[0]: is missing; it must be bf16");
  BOOST_TEST(with(x, {}) ==
             "Float8Linear epilogue_inputs[0]: is bf16[4, 16] on cpu, but must be [4, 8] = a matrix of x's shape");
  BOOST_TEST(with(y, {}) == "Float8Linear output: overlaps an input of the epilogue: give it separate memory");
  const DeviceMatrix residual = empty(4, 8, Dtype::bf16);
  BOOST_TEST(with(residual, x) ==
             "Float8Linear prologue_inputs[0]: is given, but the layer's expression there has 0 inputs");

  RMSNormLinear bare(*backend, {.linear = {16, 8}, .affine = false}, tensorwise());
  BOOST_TEST(refusal([&] { bare.forward({.input = x, .gamma = v, .weight = w, .output = y}, stream); }) ==
             "NormLinear gamma: or beta is given, but the layer was made without them: set affine in its shape");
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE_END()
