#include "training/optimizer.h"

#include <cmath>
#include <utility>

namespace training {
namespace {

using ingot::Dtype;

float* floats(const ingot::OwnedTensor& tensor) { return static_cast<float*>(tensor.view().data); }
bf16* halves(const ingot::OwnedTensor& tensor) { return static_cast<bf16*>(tensor.view().data); }

std::int64_t partials_of(const Parameter& parameter) { return (parameter.count + kRowOfVectors - 1) / kRowOfVectors; }

std::int64_t partials_of(const std::vector<Parameter*>& parameters) {
  std::int64_t sum = 0;
  for (const Parameter* parameter : parameters) sum += partials_of(*parameter);
  return sum;
}

}  // namespace

Parameter::Parameter(ingot::Backend& backend, std::int64_t rows, std::int64_t cols, bool with_working)
    : values(backend, Dtype::f32, rows, cols),
      first_moment(backend, Dtype::f32, rows, cols),
      second_moment(backend, Dtype::f32, rows, cols),
      grad(backend, Dtype::f32, rows, cols),
      count(rows * cols),
      has_working(with_working) {
  if (has_working) working = ingot::OwnedTensor(backend, Dtype::bf16, rows, cols);
}

void Parameter::init(OpRunner& ops, ingot::Stream& stream, double deviation, std::uint64_t seed) {
  const auto bytes = static_cast<std::size_t>(count) * sizeof(float);
  for (const ingot::OwnedTensor* moment : {&first_moment, &second_moment}) {
    stream.device_api().fill_zero(moment->view().data, bytes, stream);
  }
  ops.run(InitNormal{.values = floats(values),
                     .working = halves(working),
                     .count = count,
                     .deviation = static_cast<float>(deviation),
                     .seed = seed});
}

void Parameter::values_changed(OpRunner& ops) const {
  if (!has_working) return;
  ops.run(ToWorking{.values = floats(values), .working = halves(working), .count = count});
}

void set_corrections(const OptimizerOptions& options, StepValues& values) {
  const auto number = static_cast<double>(values.step + 1);
  values.correction1 = static_cast<float>(1.0 / (1.0 - std::pow(options.beta1, number)));
  values.correction2 = static_cast<float>(1.0 / (1.0 - std::pow(options.beta2, number)));
}

AdamW::AdamW(ingot::Backend& backend, std::vector<Parameter*> parameters, const OptimizerOptions& options)
    : parameters_(std::move(parameters)),
      options_(options),
      partials_(partials_of(parameters_)),
      partial_(backend, static_cast<std::size_t>(partials_) * sizeof(float)),
      norm_(backend, sizeof(float)),
      scale_(backend, sizeof(float)) {}

void AdamW::find_scale(OpRunner& ops) {
  auto* partial = static_cast<float*>(partial_.data());
  std::int64_t at = 0;
  for (const Parameter* parameter : parameters_) {
    ops.run(SumOfSquares{.grad = floats(parameter->grad), .count = parameter->count, .partial = partial + at});
    at += partials_of(*parameter);
  }
  ops.run(ClipScale{.partial = partial,
                    .count = partials_,
                    .most = static_cast<float>(options_.clip),
                    .norm = static_cast<float*>(norm_.data()),
                    .scale = static_cast<float*>(scale_.data())});
}

void AdamW::step(OpRunner& ops, const StepValues* now) {
  const bool clips = options_.clip > 0;
  if (clips) find_scale(ops);
  for (const Parameter* parameter : parameters_) {
    const bool is_matrix = parameter->values.view().rows > 1;
    ops.run(AdamWUpdate{.values = floats(parameter->values),
                        .first_moment = floats(parameter->first_moment),
                        .second_moment = floats(parameter->second_moment),
                        .grad = floats(parameter->grad),
                        .grad_scale = clips ? scale() : nullptr,
                        .working = halves(parameter->working),
                        .count = parameter->count,
                        .now = now,
                        .beta1 = static_cast<float>(options_.beta1),
                        .beta2 = static_cast<float>(options_.beta2),
                        .epsilon = static_cast<float>(options_.epsilon),
                        .weight_decay = is_matrix ? static_cast<float>(options_.weight_decay) : 0.0F});
  }
}

}  // namespace training
