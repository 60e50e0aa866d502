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

Parameter::Parameter(ingot::Backend& backend, std::int64_t row_count, std::int64_t col_count, const ParameterParts& of)
    : grad(backend, Dtype::f32, row_count + of.spare_rows, col_count),
      rows(row_count),
      cols(col_count),
      count(rows * cols),
      decays(rows > 1),
      parts(of) {
  if (parts.working) working = ingot::OwnedTensor(backend, Dtype::bf16, rows + parts.spare_rows, cols);
  if (!parts.values) return;
  for (ingot::OwnedTensor* each : {&values, &first_moment, &second_moment}) {
    *each = ingot::OwnedTensor(backend, Dtype::f32, rows, cols);
  }
}

ingot::Tensor Parameter::weight() const {
  const ingot::Tensor& grads = grad.view();  // of a weight that has only a shape: nobody reads it there
  if (parts.working) return ingot::matrix(working.view().data, Dtype::bf16, rows, cols, grads.device);
  return parts.values ? values.view() : ingot::matrix(grads.data, parts.shape_only, rows, cols, grads.device);
}

ingot::Tensor Parameter::gradient() const {
  return ingot::matrix(grad.view().data, Dtype::f32, rows, cols, grad.view().device);
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
  if (!parts.working) return;
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
  update(ops, now, clips ? scale() : nullptr);
}

void AdamW::update(OpRunner& ops, const StepValues* now, const float* scale) {
  for (const Parameter* parameter : parameters_) {
    ops.run(AdamWUpdate{.values = floats(parameter->values),
                        .first_moment = floats(parameter->first_moment),
                        .second_moment = floats(parameter->second_moment),
                        .grad = floats(parameter->grad),
                        .grad_scale = scale,
                        .working = halves(parameter->working),
                        .count = parameter->count,
                        .now = now,
                        .beta1 = static_cast<float>(options_.beta1),
                        .beta2 = static_cast<float>(options_.beta2),
                        .epsilon = static_cast<float>(options_.epsilon),
                        .weight_decay = parameter->decays ? static_cast<float>(options_.weight_decay) : 0.0F});
  }
}

}  // namespace training
