#include "nn/experts_mlp_case.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cmath>

namespace ingot::test {
namespace {

ExpertsMlpPlan plan_of(const ExpertsMlpCase& c) {
  return experts_mlp_plan({.name = "moe",
                           .config = c.config,
                           .experts = c.experts,
                           .shape = {.features = c.features, .hidden = c.hidden},
                           .up_bias = c.up_bias,
                           .dtypes = {.input = c.dtype},
                           .activation = c.activation,
                           .fast_math = c.fast_math,
                           .grad_up_weight = c.grad_up_weight,
                           .grad_down_weight = c.grad_down_weight});
}

std::int64_t rows_of(const ExpertsMlpCase& c) { return c.tokens * c.choices; }

template <class T>
std::size_t bytes_of(const std::vector<T>& values) {
  return values.size() * sizeof(T);
}

// A step that wants less may need more: there is no kept memory to be in.
std::size_t most_scratch(const ExpertsMlpPlan& plan, std::int64_t rows) {
  std::size_t most = 0;
  for (unsigned bits = 0; bits < 8; ++bits) {
    const ExpertsMlpGradients wants{
        .input = (bits & 1) != 0, .up_weight = (bits & 2) != 0, .down_weight = (bits & 4) != 0};
    most = std::max(most, plan.backward_scratch(rows, wants).bytes);
  }
  return most;
}

double dot(const Matrix& a, std::int64_t row, const Matrix& b, std::int64_t other) {
  double sum = 0;
  for (std::int64_t c = 0; c < a.cols; ++c) sum += a.at(row, c) * b.at(other, c);
  return sum;
}

}  // namespace

std::string describe(const ExpertsMlpCase& c) {
  return fmt::format("{} {} {}, {} experts of {} tokens' {}, {}->{}{}{}{}", print(c.config), name(c.dtype),
                     c.activation, c.experts, c.tokens, c.choices, c.features, c.hidden,
                     c.lacks ? ", of other ranks" : "", c.up_bias ? ", with biases" : "",
                     c.accumulate ? ", accumulated" : "");
}

// Experts in no order, the last of which has no token.
ExpertsMlpRun::Rows ExpertsMlpRun::route() {
  for (std::int64_t i = 0; i < rows_of(case_); ++i) {
    const std::int64_t expert = (i * 5 + i / 3) % std::max<std::int64_t>(1, case_.experts - 1);
    chosen_.push_back(case_.lacks && i % 3 == 1 ? -1 : expert);
  }
  Rows rows;
  rows.of_tokens.assign(chosen_.size(), -1);
  std::vector<double> weights;
  const auto add = [&](std::int64_t expert) {
    for (std::size_t i = 0; i < chosen_.size(); ++i) {
      if (chosen_[i] != expert) continue;
      if (expert >= 0) rows.of_tokens[i] = static_cast<std::int32_t>(rows.tokens.size());
      rows.tokens.push_back(static_cast<std::int32_t>(static_cast<std::int64_t>(i) / case_.choices));
      weights.push_back(expert >= 0 ? router_.values[i] : 0);
    }
  };
  for (std::int64_t e = 0; e < case_.experts; ++e) {
    add(e);
    rows.ends.push_back(static_cast<std::int32_t>(rows.tokens.size()));
  }
  add(-1);
  rows.weights = {1, rows_of(case_), weights};
  return rows;
}

ExpertsMlpRun::ExpertsMlpRun(const ExpertsMlpCase& c, Backend& backend, Stream& stream)
    : plan(plan_of(c)),
      wants{.up_weight = c.grad_up_weight, .down_weight = c.grad_down_weight, .up_bias = c.up_bias},
      scales(c.config, 2, c.experts, backend, stream),
      case_(c),
      backend_(&backend),
      stream_(&stream),
      input_(Random(1).normal(c.tokens, c.features, c.dtype)),
      router_(Random(2).normal(1, rows_of(c), Dtype::f32)),
      up_(Random(3).weight(c.experts * plan.hidden_columns(), c.features, c.dtype)),
      down_(Random(4).weight(c.experts * c.features, c.hidden, c.dtype)),
      grad_output_(Random(5).normal(c.tokens, c.features, c.dtype)),
      before_up_(Random(6).normal(up_.rows, up_.cols, c.grad_weight)),
      before_down_(Random(7).normal(down_.rows, down_.cols, c.grad_weight)),
      up_bias_(Random(8).normal(c.up_bias ? c.experts : 0, plan.hidden_columns(), plan.up.bias_dtype())),
      rows_(route()),
      input_memory_(input_, c.dtype, backend, stream),
      weights_memory_(rows_.weights, Dtype::f32, backend, stream),
      up_memory_(up_, c.dtype, backend, stream),
      down_memory_(down_, c.dtype, backend, stream),
      grad_output_memory_(grad_output_, c.dtype, backend, stream),
      output_(DeviceMatrix::poisoned(c.tokens, c.features, c.dtype, backend, stream)),
      hidden_(DeviceMatrix::poisoned(rows_of(c), plan.hidden_columns(), c.dtype, backend, stream)),
      grad_input_(DeviceMatrix::poisoned(c.tokens, c.features, c.dtype, backend, stream)),
      grad_router_(DeviceMatrix::poisoned(1, rows_of(c), Dtype::f32, backend, stream)),
      grad_up_(DeviceMatrix::poisoned(up_.rows, up_.cols, c.grad_weight, backend, stream)),
      grad_down_(DeviceMatrix::poisoned(down_.rows, down_.cols, c.grad_weight, backend, stream)),
      up_amax_(DeviceMatrix::poisoned(1, plan.up.weight_amax_count(), Dtype::f32, backend, stream)),
      down_amax_(DeviceMatrix::poisoned(1, plan.down.weight_amax_count(), Dtype::f32, backend, stream)),
      up_bias_memory_(up_bias_, plan.up.bias_dtype(), backend, stream),
      grad_up_bias_(DeviceMatrix::poisoned(up_bias_.rows, up_bias_.cols, Dtype::f32, backend, stream)),
      tokens_(backend, bytes_of(rows_.tokens) + 1),
      of_tokens_(backend, bytes_of(rows_.of_tokens) + 1),
      ends_(backend, bytes_of(rows_.ends)),
      up_codes_(plan.up.weight_memory().bytes, backend, stream),
      down_codes_(plan.down.weight_memory().bytes, backend, stream),
      saved_memory_(plan.saved_memory(rows_of(c)).bytes, backend, stream),
      forward_scratch_(plan.forward_scratch(rows_of(c)).bytes, backend, stream),
      kept_input_(plan.kept_memory(rows_of(c), wants).input_bytes, backend, stream),
      kept_up_(plan.kept_memory(rows_of(c), wants).up_bytes, backend, stream),
      kept_down_(plan.kept_memory(rows_of(c), wants).down_bytes, backend, stream),
      backward_scratch_(most_scratch(plan, rows_of(c)), backend, stream),
      input_scratch_(plan.input_gradient_scratch(rows_of(c)).bytes, backend, stream) {
  saved.memory = saved_memory_;
  const auto copy = [&](Buffer& to, const std::vector<std::int32_t>& from) {
    backend.device_api().copy_from_host(to.data(), from.data(), bytes_of(from), stream);
  };
  copy(tokens_, rows_.tokens);
  copy(of_tokens_, rows_.of_tokens);
  copy(ends_, rows_.ends);
  reset();
}

ExpertsRouting ExpertsMlpRun::routing() const {
  const auto index = [&](const Buffer& of) -> RowIndex {
    return {.data = static_cast<const std::int32_t*>(of.data()), .rows = rows_of(case_), .device = backend_->device()};
  };
  return {.tokens = index(tokens_),
          .rows = index(of_tokens_),
          .weights = weights_memory_,
          .ends = {static_cast<const std::int32_t*>(ends_.data()), case_.experts, backend_->device()},
          .all_have_experts = !case_.lacks};
}

ExpertsMlpForwardTensors ExpertsMlpRun::forward_tensors() {
  return {.input = input_memory_,
          .routing = routing(),
          .up_bias = case_.up_bias ? up_bias_memory_.view() : Tensor{},
          .output = output_,
          .up_codes = up_view_,
          .down_codes = down_view_,
          .saved = &saved,
          .hidden = hidden_,
          .scratch = forward_scratch_};
}

ExpertsMlpBackwardTensors ExpertsMlpRun::backward_tensors() {
  return {.saved = &saved,
          .hidden = hidden_,
          .routing = routing(),
          .wants = wants,
          .grad_output = grad_output_memory_,
          .grad_router = grad_router_,
          .grad_up_bias = case_.up_bias ? grad_up_bias_.view() : Tensor{},
          .down = {.weight = down_memory_, .codes = down_view_},
          .kept_input = kept_input_,
          .kept_up = kept_up_,
          .kept_down = kept_down_,
          .scratch = backward_scratch_};
}

ExpertsMlpInputGradientTensors ExpertsMlpRun::input_gradient_tensors() {
  const ExpertsRouting routes = routing();
  return {.saved = &saved,
          .rows = routes.rows,
          .ends = routes.ends,
          .wants = wants,
          .kept_input = kept_input_,
          .kept_up = kept_up_,
          .up = {.weight = up_memory_, .codes = up_view_},
          .grad_input = grad_input_,
          .scratch = input_scratch_};
}

ExpertsMlpWeightGradientTensors ExpertsMlpRun::weight_gradient_tensors() {
  return {.saved = &saved,
          .ends = routing().ends,
          .wants = wants,
          .kept_up = kept_up_,
          .kept_down = kept_down_,
          .grad_up = wants.up_weight ? grad_up_.view() : Tensor{},
          .grad_down = wants.down_weight ? grad_down_.view() : Tensor{},
          .accumulate_up = case_.accumulate,
          .accumulate_down = case_.accumulate};
}

void ExpertsMlpRun::reset() {
  for (DeviceMatrix* const each : {&output_, &grad_input_, &grad_router_, &grad_up_, &grad_down_, &grad_up_bias_}) {
    each->poison(*stream_);
  }
  if (!case_.accumulate) return;
  grad_up_.write(before_up_, *stream_);
  grad_down_.write(before_down_, *stream_);
}

void ExpertsMlpRun::enqueue(bool known_amax) {
  const LinearRun run{*stream_};
  const LinearScales of_up = scales.of(0);
  const LinearScales of_down = scales.of(1);
  const auto cast = [&](const GroupedLinearPlan& layer, const Tensor& weight, const MemoryRegion& into,
                        const Tensor& amax, const LinearScale& scale) {
    const bool finds = known_amax && layer.weight_amax_count() != 0;
    return cast_expert_weights(layer, *backend_,
                               {.weight = weight, .into = into, .amax = finds ? amax : Tensor{}, .scale = scale}, run);
  };
  up_view_ = cast(plan.up, up_memory_, up_codes_, up_amax_, of_up.weight);
  down_view_ = cast(plan.down, down_memory_, down_codes_, down_amax_, of_down.weight);
  ExpertsMlpForwardTensors forward = forward_tensors();
  forward.up_scales = of_up;
  forward.down_scales = of_down;
  experts_mlp_forward(plan, *backend_, forward, run);
  ExpertsMlpBackwardTensors backward = backward_tensors();
  ExpertsMlpInputGradientTensors of_input = input_gradient_tensors();
  backward.up_scales = of_up;
  backward.down_scales = of_down;
  backward.down.scale = of_down.weight;
  of_input.up.scale = of_up.weight;
  if (known_amax && plan.up.weight_amax_count() != 0) of_input.up.weight_amax = up_amax_;
  if (known_amax && plan.down.weight_amax_count() != 0) backward.down.weight_amax = down_amax_;
  experts_mlp_backward(plan, *backend_, backward, run);
  if (wants.input) experts_mlp_input_gradient(plan, *backend_, of_input, run);
  if (wants.up_weight || wants.down_weight) {
    experts_mlp_weight_gradients(plan, *backend_, weight_gradient_tensors(), run);
  }
}

std::vector<Matrix> ExpertsMlpRun::results() const {
  std::vector<Matrix> all;
  for (const DeviceMatrix* const each : {&output_, &grad_input_, &grad_router_, &grad_up_, &grad_down_}) {
    all.push_back(each->read(*stream_));
  }
  if (case_.up_bias) all.push_back(grad_up_bias_.read(*stream_));
  return all;
}

// One token and one of its experts after the other.
std::vector<Matrix> ExpertsMlpRun::expected() const {
  const std::int64_t columns = plan.hidden_columns();
  const std::int64_t hidden = case_.hidden;
  const Pointwise activation = parse_pointwise(case_.activation);
  const Pointwise by_x = derivative(activation, "x");
  const Pointwise by_up = plan.gated ? derivative(activation, "up") : Pointwise{};
  const auto at = [](const Pointwise& of, double x, const std::vector<double>& up) {
    return evaluate(of, x, of.inputs().empty() ? std::vector<double>{} : up);
  };
  Matrix output = zeros(case_.tokens, case_.features), grad_input = output;
  Matrix grad_router = zeros(1, rows_of(case_)), grad_up = before_up_, grad_down = before_down_;
  Matrix grad_up_bias = zeros(up_bias_.rows, up_bias_.cols);
  const auto bias_at = [&](std::int64_t expert, std::int64_t column) {
    return case_.up_bias ? up_bias_.at(expert, column) : 0.0;
  };
  if (!case_.accumulate) {
    grad_up = zeros(grad_up.rows, grad_up.cols);
    grad_down = zeros(grad_down.rows, grad_down.cols);
  }
  for (std::size_t i = 0; i < chosen_.size(); ++i) {
    if (chosen_[i] < 0) continue;
    const std::int64_t token = static_cast<std::int64_t>(i) / case_.choices;
    const std::int64_t up_row = chosen_[i] * columns;
    const std::int64_t down_row = chosen_[i] * case_.features;
    const double weight = router_.values[i];
    double& of_router = grad_router.at(0, rows_.of_tokens[i]);
    for (std::int64_t h = 0; h < hidden; ++h) {
      const double x = dot(input_, token, up_, up_row + h) + bias_at(chosen_[i], h);
      std::vector<double> up;
      if (plan.gated) up.push_back(dot(input_, token, up_, up_row + hidden + h) + bias_at(chosen_[i], hidden + h));
      const double value = evaluate(activation, x, up);
      double grad = 0;
      for (std::int64_t f = 0; f < case_.features; ++f) {
        output.at(token, f) += weight * value * down_.at(down_row + f, h);
        grad += grad_output_.at(token, f) * down_.at(down_row + f, h);
        grad_down.at(down_row + f, h) += grad_output_.at(token, f) * weight * value;
      }
      of_router += grad * value;
      const auto flow = [&](std::int64_t row, double of_row) {
        if (case_.up_bias) grad_up_bias.at(chosen_[i], row - up_row) += of_row;
        for (std::int64_t f = 0; f < case_.features; ++f) {
          grad_input.at(token, f) += of_row * up_.at(row, f);
          grad_up.at(row, f) += of_row * input_.at(token, f);
        }
      };
      flow(up_row + h, grad * weight * at(by_x, x, up));
      if (plan.gated) flow(up_row + hidden + h, grad * weight * at(by_up, x, up));
    }
  }
  std::vector<Matrix> all{output, grad_input, grad_router, grad_up, grad_down};
  if (case_.up_bias) all.push_back(grad_up_bias);
  return all;
}

void ExpertsMlpRun::check(const std::string& what) const {
  constexpr double kLeastDb = 18;  // operands of two products with four significant bits each
  const std::vector<Matrix> exact = expected();
  std::vector<Matrix> found = results();
  for (std::size_t row = static_cast<std::size_t>(rows_.ends.back()); row < found[2].values.size(); ++row) {
    found[2].values[row] = 0;  // of rows without experts nothing is promised
  }
  const char* const names[] = {"output", "grad_input", "grad_router", "grad_up", "grad_down", "grad_up_bias"};
  for (std::size_t i = 0; i < exact.size(); ++i) {
    if ((i == 3 && !case_.grad_up_weight) || (i == 4 && !case_.grad_down_weight)) continue;
    if (std::ranges::all_of(exact[i].values, [](double value) { return value == 0; })) {
      BOOST_TEST((found[i].values == exact[i].values), what << ": " << names[i]);
      continue;
    }
    const double db = sqnr(exact[i], found[i]);
    BOOST_TEST(db >= kLeastDb, what << ": " << names[i] << " has " << db << " dB");
  }
}

}  // namespace ingot::test
