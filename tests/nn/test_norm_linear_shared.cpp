// q, k and v after one norm: q computes it, k and v take its codes. Outputs and gradients of weights are those of
// three layers with a norm each, to the bit; those of the input and of gamma are their sums.
#include <boost/test/unit_test.hpp>

#include <array>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "ingot/nn/modules/norm_linear.h"
#include "ingot/runtime/context/cpu_backend.h"
#include "nn/function_case.h"
#include "support/expect_error.h"
#include "support/function_ref.h"

BOOST_AUTO_TEST_SUITE(test_norm_linear_shared)

using namespace ingot;
using namespace ingot::test;

namespace {

constexpr std::int64_t kTokens = 9, kIn = 33, kOut = 24;

struct Fixture {
  std::unique_ptr<Backend> backend = make_cpu_backend(1);
  Stream stream{*backend};
  Random random{7};
  DeviceMatrix x = normal(kTokens, kIn), gamma = normal(1, kIn), beta = normal(1, kIn);

  DeviceMatrix normal(std::int64_t rows, std::int64_t cols) {
    return {random.normal(rows, cols, Dtype::bf16), Dtype::bf16, *backend, stream};
  }
  DeviceMatrix empty(std::int64_t rows, std::int64_t cols, Dtype dtype = Dtype::bf16) {
    return DeviceMatrix::poisoned(rows, cols, dtype, *backend, stream);
  }
  std::string refusal(test::FunctionRef<void()> act) { return error_of(act, ErrorCode::invalid_argument); }
};

struct Layer {
  Layer(Fixture& at, unsigned seed)
      : weight(Random(seed).normal(kOut, kIn, Dtype::bf16), Dtype::bf16, *at.backend, at.stream),
        grad_output(Random(seed + 9).normal(kTokens, kOut, Dtype::bf16), Dtype::bf16, *at.backend, at.stream),
        output(at.empty(kTokens, kOut)),
        grad_weight(at.empty(kOut, kIn)),
        grad_input(at.empty(kTokens, kIn)),
        grad_gamma(at.empty(1, kIn, Dtype::f32)),
        grad_beta(at.empty(1, kIn, Dtype::f32)) {}

  DeviceMatrix weight, grad_output, output, grad_weight, grad_input, grad_gamma, grad_beta;
};

struct Norm {
  NormKind kind;
  bool affine;
  bool zero_centred;
};
constexpr Norm kNorms[] = {{NormKind::rms, false, false}, {NormKind::layer, true, false}, {NormKind::rms, true, true}};

// |a - b| / |b|
double distance(const Matrix& a, const std::vector<Matrix>& parts) {
  double error = 0;
  double size = 0;
  for (std::size_t i = 0; i < a.values.size(); ++i) {
    double sum = 0;
    for (const Matrix& part : parts) sum += part.values[i];
    error += (a.values[i] - sum) * (a.values[i] - sum);
    size += sum * sum;
  }
  return std::sqrt(error / size);
}

// The three layers by functions.
class Shared {
 public:
  Shared(Fixture& at, const LinearConfig& config, const Norm& norm)
      : at_(&at),
        q_(norm_linear_plan(
            {.linear = {.name = "q", .config = config, .shape = {kIn, kOut}},
             .norm = NormOptions{.kind = norm.kind, .affine = norm.affine, .zero_centred = norm.zero_centred}})),
        k_(linear_plan({.name = "k", .config = config, .shape = {kIn, kOut}, .given_input = true})),
        q_saved_(q_.saved_memory(kTokens).bytes, *at.backend, at.stream),
        q_scratch_(q_.forward_scratch(kTokens).bytes, *at.backend, at.stream),
        backward_scratch_(q_.backward_scratch(kTokens).bytes, *at.backend, at.stream),
        constants_memory_(kLinearConstantBytes, *at.backend, at.stream),
        constants_(linear_constants(k_, *at.backend, constants_memory_, at.stream)) {
    for (std::size_t i = 0; i < 3; ++i) {
      weights_.push_back(std::make_unique<PoisonedRegion>(k_.weight_memory().bytes, *at.backend, at.stream));
      others_.push_back(std::make_unique<FunctionSaved>(k_, kTokens, *at.backend, at.stream));
      scratch_.push_back(std::make_unique<PoisonedRegion>(
          k_.memory(kTokens).backward.bytes + k_.memory(kTokens).forward.bytes, *at.backend, at.stream));
    }
    saved_.memory = q_saved_;
  }

  void forward(const std::array<Layer*, 3>& layers) {
    const LinearRun run{at_->stream};
    for (std::size_t i = 0; i < 3; ++i) {
      codes_[i] = cast_weight(k_, *at_->backend, {.weight = layers[i]->weight, .into = *weights_[i]}, run);
    }
    norm_linear_forward(q_, *at_->backend,
                        {.input = at_->x,
                         .gamma = gamma(),
                         .beta = beta(),
                         .weight = layers[0]->weight,
                         .output = layers[0]->output,
                         .codes = codes_[0],
                         .saved = &saved_,
                         .scratch = q_scratch_},
                        run);
    const Device device = at_->backend->device();
    input_ = norm_linear_input_codes(q_, kTokens, q_saved_, q_scratch_, device);
    values_ = norm_linear_input_values(q_, kTokens, q_saved_, q_scratch_, device);
    if (values_.data == nullptr) values_ = at_->x;  // its shape
    for (std::size_t i = 1; i < 3; ++i) {
      linear_forward(k_, *at_->backend,
                     {.input = values_,
                      .weight = layers[i]->weight,
                      .output = layers[i]->output,
                      .codes = codes_[i],
                      .saved = &others_[i]->saved,
                      .scratch = *scratch_[i],
                      .given_input = k_.given_input.any ? input_ : Float8View{}},
                     run);
    }
  }

  void backward(const std::array<Layer*, 3>& layers) {
    for (std::size_t i = 1; i < 3; ++i) {
      linear_backward(k_, *at_->backend,
                      {.saved = &others_[i]->saved,
                       .grad_output = layers[i]->grad_output,
                       .grad_input = layers[1]->grad_input,
                       .grad_input_of_others = i == 2 ? layers[1]->grad_input.view() : Tensor{},
                       .grad_weight = layers[i]->grad_weight,
                       .input = values_,
                       .weight = layers[i]->weight,
                       .codes = codes_[i],
                       .scales = constants_,
                       .scratch = *scratch_[i],
                       .given_input = k_.given_input.any ? input_ : Float8View{}},
                      {at_->stream});
    }
    norm_linear_backward(q_, *at_->backend, of_q(layers), {at_->stream});
  }

  NormLinearBackwardTensors of_q(const std::array<Layer*, 3>& layers) {
    NormLinearBackwardTensors tensors{.saved = &saved_,
                                      .grad_output = layers[0]->grad_output,
                                      .grad_input = layers[0]->grad_input,
                                      .grad_weight = layers[0]->grad_weight,
                                      .input = at_->x,
                                      .gamma = gamma(),
                                      .weight = layers[0]->weight,
                                      .codes = codes_[0],
                                      .scales = constants_,
                                      .scratch = backward_scratch_,
                                      .grad_values = layers[1]->grad_input};
    if (q_.has_gamma()) tensors.grad_gamma = layers[0]->grad_gamma;
    if (q_.has_beta()) tensors.grad_beta = layers[0]->grad_beta;
    return tensors;
  }

  const NormLinearPlan& plan() const { return q_; }

 private:
  Tensor gamma() const { return q_.has_gamma() ? at_->gamma.view() : Tensor{}; }
  Tensor beta() const { return q_.has_beta() ? at_->beta.view() : Tensor{}; }

  Fixture* at_;
  NormLinearPlan q_;
  LinearPlan k_;
  PoisonedRegion q_saved_, q_scratch_, backward_scratch_, constants_memory_;
  LinearScales constants_;
  LinearSaved saved_;
  std::vector<std::unique_ptr<PoisonedRegion>> weights_, scratch_;
  std::vector<std::unique_ptr<FunctionSaved>> others_;
  std::array<Float8View, 3> codes_;
  Float8View input_;
  Tensor values_;
};

}  // namespace

BOOST_FIXTURE_TEST_SUITE(norm_linear_shared, Fixture)

BOOST_AUTO_TEST_CASE(three_layers_behind_one_norm) {
  for (const Recipe& recipe : recipes()) {
    if (recipe.name == std::string_view("delayed")) continue;  // its scales are the caller's, the rest as tensorwise
    for (const Norm& norm : kNorms) {
      BOOST_TEST_CONTEXT(recipe.name << (norm.kind == NormKind::rms ? ", rms" : ", layer")
                                     << (norm.zero_centred ? ", zero-centred" : "")) {
        Layer q(*this, 1), k(*this, 2), v(*this, 3);
        Layer q2(*this, 1), k2(*this, 2), v2(*this, 3);
        Shared shared(*this, recipe.config, norm);
        shared.forward({&q, &k, &v});
        shared.backward({&q, &k, &v});
        std::vector<Matrix> grads, gammas, betas;
        for (Layer* layer : {&q2, &k2, &v2}) {
          NormLinear alone(norm.kind, *backend,
                           {.linear = {kIn, kOut}, .affine = norm.affine, .zero_centred = norm.zero_centred},
                           recipe.config);
          const Tensor g = norm.affine ? gamma.view() : Tensor{};
          const Tensor b = norm.affine && norm.kind == NormKind::layer ? beta.view() : Tensor{};
          alone.forward({.input = x, .gamma = g, .beta = b, .weight = layer->weight, .output = layer->output}, stream);
          NormLinearBackward back{
              .grad_output = layer->grad_output, .grad_input = layer->grad_input, .grad_weight = layer->grad_weight};
          if (g.data != nullptr) back.grad_gamma = layer->grad_gamma;
          if (b.data != nullptr) back.grad_beta = layer->grad_beta;
          alone.backward(back, stream);
          grads.push_back(layer->grad_input.read(stream));
          gammas.push_back(layer->grad_gamma.read(stream));
          betas.push_back(layer->grad_beta.read(stream));
        }
        for (const auto& [one, other] : {std::pair{&q, &q2}, {&k, &k2}, {&v, &v2}}) {
          BOOST_TEST((one->output.bytes(stream) == other->output.bytes(stream)));
          BOOST_TEST((one->grad_weight.bytes(stream) == other->grad_weight.bytes(stream)));
        }
        // Of three gradients the sums are rounded to bf16 three times.
        BOOST_TEST(distance(q.grad_input.read(stream), grads) < 0.01);
        if (norm.affine) BOOST_TEST(distance(q.grad_gamma.read(stream), gammas) < 0.01);
        if (norm.affine && norm.kind == NormKind::layer) BOOST_TEST(distance(q.grad_beta.read(stream), betas) < 0.01);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(wrong_gradients_of_others_are_refused) {
  Layer q(*this, 1), k(*this, 2), v(*this, 3);
  Shared shared(*this, rowwise(), kNorms[0]);
  const std::array<Layer*, 3> layers{&q, &k, &v};
  shared.forward(layers);
  shared.backward(layers);
  const auto refused = [&](const auto& change) {
    NormLinearBackwardTensors tensors = shared.of_q(layers);
    change(tensors);
    return refusal([&] { norm_linear_backward(shared.plan(), *backend, tensors, {stream}); });
  };
  const std::string of = "norm linear \"q\" grad_values: ";
  BOOST_TEST(refused([](NormLinearBackwardTensors& t) { t.grad_input = {}; }) ==
             of + "is given, but no gradient of the input to add it to: give grad_input memory");
  check_contains(refused([&](NormLinearBackwardTensors& t) { t.grad_values = q.grad_output; }),
                 {of + "is bf16[9, 24]", "but must be bf16 [9, 33] = [tokens, in_features]"});
  BOOST_TEST(refused([](NormLinearBackwardTensors& t) { t.grad_values.data = t.scratch.data; }) ==
             of + "overlaps the scratch: give it separate memory");
  BOOST_TEST(refused([](NormLinearBackwardTensors& t) { t.grad_values = t.grad_input; }) ==
             of + "overlaps grad_input: give it separate memory");
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE_END()
