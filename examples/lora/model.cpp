#include "model.h"

#include <bit>
#include <cmath>

#include "ingot/nn/recipe/recipes.h"
#include "ingot/nn/weights/float8_checkpoint.h"
#include "training/schedule.h"

namespace lora {
namespace {

using ingot::Dtype;
using ingot::OwnedTensor;
using training::OpRunner;

constexpr double kAdapterScale = 2;
constexpr double kTeacherDeviation = 0.5;  // of the teacher's `up`: how far it is from the frozen weights

LoraOptions layer_options(const char* name, const ingot::Tensor& weight, const ModelShape& shape,
                          const std::optional<ingot::LinearConfig>& config) {
  return {.name = name,
          .in_features = weight.cols,
          .out_features = weight.rows,
          .rank = shape.rank,
          .scale = kAdapterScale,
          .tokens = shape.tokens,
          .config = config.value_or(ingot::high_precision())};
}

FrozenWeight frozen(ingot::Backend& backend, ingot::Stream& stream, const ingot::Tensor& weight,
                    const std::optional<ingot::LinearConfig>& config) {
  if (!config) return weight;
  return in_float8(backend, stream, weight, *config);
}

// Values from N(0, deviation^2) in bf16.
OwnedTensor normal(ingot::Backend& backend, OpRunner& ops, std::int64_t rows, std::int64_t cols, double deviation,
                   std::uint64_t seed) {
  OwnedTensor result(backend, Dtype::bf16, rows, cols);
  const OwnedTensor values(backend, Dtype::f32, rows, cols);
  ops.run(training::InitNormal{.values = static_cast<float*>(values.view().data),
                               .working = static_cast<training::bf16*>(result.view().data),
                               .count = rows * cols,
                               .deviation = static_cast<float>(deviation),
                               .seed = seed});
  return result;
}

// A class for each row, drawn with the probabilities that its logits (bf16) give: the largest of logits with Gumbel's
// noise. Labels with chance in them cannot be learned to a loss of nothing, where a gap of two losses would mean
// little.
std::vector<std::uint32_t> drawn(const std::vector<std::uint16_t>& logits, std::int64_t rows, std::uint64_t seed) {
  const std::size_t cols = logits.size() / static_cast<std::size_t>(rows);
  std::vector<std::uint32_t> result;
  for (std::size_t first = 0; first < logits.size(); first += cols) {
    float largest = -3e38F;
    std::uint32_t label = 0;
    for (std::size_t col = 0; col < cols; ++col) {
      const auto logit = std::bit_cast<float>(static_cast<std::uint32_t>(logits[first + col]) << 16);
      const float chance = training::uniform(training::hash_of(seed ^ training::hash_of(first + col)));
      const float value = logit - std::log(-std::log(chance));
      if (value <= largest) continue;
      largest = value;
      label = static_cast<std::uint32_t>(col);
    }
    result.push_back(label);
  }
  return result;
}

}  // namespace

ingot::Float8WeightState in_float8(ingot::Backend& backend, ingot::Stream& stream, const ingot::Tensor& weight,
                                   const ingot::LinearConfig& config) {
  const ingot::LinearPlan plan = ingot::linear_plan(
      {.config = config, .shape = {.in_features = weight.cols, .out_features = weight.rows}, .grad_weight = false});
  const ingot::Buffer memory(backend, plan.weight_memory().bytes);
  const ingot::Float8View codes =
      ingot::cast_weight(plan, backend, {.weight = weight, .into = {memory.data(), memory.bytes()}}, {stream});
  return ingot::weight_state(plan, backend, codes, stream);
}

// ---- the task ------------------------------------------------------------------------------------------------------

Task::Task(ingot::Backend& backend, ingot::Stream& stream, OpRunner& ops, const ModelShape& shape, std::uint64_t seed)
    : shape_(shape),
      first_(normal(backend, ops, shape.hidden, shape.features, 1.0 / std::sqrt(static_cast<double>(shape.features)),
                    seed)),
      second_(normal(backend, ops, shape.classes, shape.hidden, 1.0 / std::sqrt(static_cast<double>(shape.hidden)),
                     seed + 1)),
      inputs_(normal(backend, ops, shape.tokens, shape.features, 1.0, seed + 2)),
      labels_(backend, static_cast<std::size_t>(shape.tokens) * sizeof(std::uint32_t)) {
  make_labels(backend, stream, ops, seed + 3);
}

void Task::make_labels(ingot::Backend& backend, ingot::Stream& stream, OpRunner& ops, std::uint64_t seed) {
  Model teacher(backend, stream, ops, *this, std::nullopt);
  teacher.init(seed, kTeacherDeviation);
  const OwnedTensor logits(backend, Dtype::bf16, shape_.tokens, shape_.classes);
  teacher.forward(logits);
  std::vector<std::uint16_t> values(static_cast<std::size_t>(shape_.tokens * shape_.classes));
  backend.device_api().copy_to_host(values.data(), logits.view().data, values.size() * sizeof(std::uint16_t), stream);
  backend.device_api().synchronize(stream);
  const std::vector<std::uint32_t> labels = drawn(values, shape_.tokens, seed);
  backend.device_api().copy_from_host(labels_.data(), labels.data(), labels.size() * sizeof(std::uint32_t), stream);
}

// ---- the model -----------------------------------------------------------------------------------------------------

Model::Model(ingot::Backend& backend, ingot::Stream& stream, OpRunner& ops, const Task& task,
             const std::optional<ingot::LinearConfig>& config)
    : backend_(&backend),
      stream_(&stream),
      ops_(&ops),
      task_(&task),
      first_(backend, stream, layer_options("first", task.first_weight(), task.shape(), config),
             frozen(backend, stream, task.first_weight(), config)),
      second_(backend, stream, layer_options("second", task.second_weight(), task.shape(), config),
              frozen(backend, stream, task.second_weight(), config)),
      silu_(ingot::parse_pointwise("silu(x)")),
      silu_gradient_(silu_),
      loss_(backend, task.shape().tokens),
      before_(backend, Dtype::bf16, task.shape().tokens, task.shape().hidden),
      hidden_(backend, Dtype::bf16, task.shape().tokens, task.shape().hidden),
      grad_hidden_(backend, Dtype::bf16, task.shape().tokens, task.shape().hidden),
      logits_(backend, Dtype::bf16, task.shape().tokens, task.shape().classes),
      grad_logits_(backend, Dtype::bf16, task.shape().tokens, task.shape().classes) {}

void Model::init(std::uint64_t seed, double up_deviation) {
  first_.init(*ops_, seed, up_deviation);
  second_.init(*ops_, seed + 2, up_deviation);
}

void Model::forward(const ingot::Tensor& logits) {
  first_.forward(task_->inputs(), before_);
  backend_->elementwise({.pointwise = silu_}, {.input = before_, .output = hidden_}, *stream_);
  second_.forward(hidden_, logits);
}

void Model::forward_backward(float* sums, const training::StepValues* now) {
  forward(logits_);
  loss_.run(*ops_, {.logits = logits_,
                    .targets = task_->labels(),
                    .grad = grad_logits_,
                    .batch = task_->shape().tokens,
                    .sums = sums,
                    .now = now});
  second_.backward(hidden_, grad_logits_, grad_hidden_);
  backend_->elementwise({.pointwise = silu_gradient_.expression()},
                        {.input = before_, .inputs = silu_gradient_.inputs(grad_hidden_, {}), .output = grad_hidden_},
                        *stream_);
  first_.backward(task_->inputs(), grad_hidden_);
}

std::vector<float> train(ingot::Backend& backend, ingot::Stream& stream, OpRunner& ops, Model& model,
                         const TrainOptions& options) {
  model.init(options.seed);
  const training::OptimizerOptions adamw{.weight_decay = 0};
  training::AdamW optimizer(backend, model.parameters(), adamw);
  const training::Schedule schedule{.peak = options.learning_rate, .steps = options.steps};
  training::StepTable table(backend, options.steps, [&](std::int64_t step) {
    training::StepValues values{.step = step,
                                .seed = 0,
                                .learning_rate = static_cast<float>(training::learning_rate(schedule, step)),
                                .correction1 = 0,
                                .correction2 = 0};
    set_corrections(adamw, values);
    return values;
  });
  const OwnedTensor losses(backend, Dtype::f32, 1, options.steps);
  for (std::int64_t step = 0; step < options.steps; ++step) {
    table.prepare(step, stream);
    table.advance(ops);
    model.forward_backward(static_cast<float*>(losses.view().data), table.now());
    optimizer.step(ops, table.now());
  }
  std::vector<float> result(static_cast<std::size_t>(options.steps));
  backend.device_api().copy_to_host(result.data(), losses.view().data, result.size() * sizeof(float), stream);
  backend.device_api().synchronize(stream);
  return result;
}

}  // namespace lora
