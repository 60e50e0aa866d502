#include "ingot/nn/modules/weight_casts.h"

#include <fmt/format.h>

#include <algorithm>

#include "ingot/nn/linear/linear_checks.h"
#include "ingot/nn/linear/tensor_checks.h"
#include "ingot/nn/modules/gated_mlp.h"
#include "ingot/nn/modules/mlp.h"
#include "ingot/nn/modules/norm_linear.h"

namespace ingot {

void WeightCasts::add_cast(const CastSpec& spec, const CastTensors& tensors) {
  auto kind = std::ranges::find(kinds_, spec, &Kind::spec);
  if (kind == kinds_.end()) kind = kinds_.insert(kinds_.end(), Kind{.spec = spec});
  kind->tensors.push_back(tensors);
  kind->list.reset();
}

Float8View WeightCasts::add(const LinearPlan& plan, const WeightCastTensors& tensors, Stream& stream) {
  check_weight_cast(plan, *backend_, tensors, {stream});
  const Float8View codes = weight_codes(plan, tensors.into, backend_->device());
  if (!plan.weight.any) return codes;
  CastTensors cast{.input = tensors.weight,
                   .codes = codes.codes,
                   .transposed = codes.transposed,
                   .factors = codes.factors,
                   .transposed_factors = codes.transposed_factors};
  if (plan.weight.scaling != Scaling::dynamic) {
    cast.scales = tensors.scale.scale;
    cast.amax =
        plan.weight.is_fixed() ? plan.weight_memory().amax.in(tensors.into, backend_->device()) : tensors.scale.amax;
  }
  add_cast(plan.weight.spec, cast);
  return codes;
}

void WeightCasts::check(Float8Linear& layer, const Tensor& weight, const Stream& stream) const {
  if (layer.backend_ != backend_) {
    refuse_argument("WeightCasts layer", "belongs to another backend than the casts: make both from one");
  }
  if (std::ranges::find(layers_, &layer, &Listed::layer) != layers_.end()) {
    refuse_argument("WeightCasts layer",
                    fmt::format("\"{}\" was added before, and has memory for the codes of one weight: make other casts "
                                "for another weight",
                                layer.name()));
  }
  // A weight without a dtype of its own has the input's.
  if (!layer.options_.weight_dtype && is_high_precision(weight.dtype)) layer.plan_for(weight.dtype);
  if (layer.plan_.weight.any) check_weight(layer.plan_, *backend_, weight, stream);
}

void WeightCasts::add_checked(Float8Linear& layer, const Tensor& weight, Stream& stream) {
  if (!layer.plan_.weight.any) return;
  add(layer.plan_, layer.list_weight(weight, stream), stream);
  layers_.push_back({.layer = &layer, .weight = weight});
}

void WeightCasts::add(Float8Linear& layer, const Tensor& weight, Stream& stream) {
  check(layer, weight, stream);
  add_checked(layer, weight, stream);
}

void WeightCasts::add(NormLinear& layer, const Tensor& weight, Stream& stream) { add(layer.linear_, weight, stream); }

void WeightCasts::add(Mlp& layer, const Tensor& up_weight, const Tensor& down_weight, Stream& stream) {
  check(layer.up_, up_weight, stream);
  check(layer.down_, down_weight, stream);
  add_checked(layer.up_, up_weight, stream);
  add_checked(layer.down_, down_weight, stream);
}

void WeightCasts::add(GatedMlp& layer, const Tensor& gate_up_weight, const Tensor& down_weight, Stream& stream) {
  add(layer.mlp_, gate_up_weight, down_weight, stream);
}

void WeightCasts::run(Stream& stream) {
  for (Kind& kind : kinds_) {
    if (kind.list == nullptr) {
      if (backend_->capturing(stream)) {
        refuse_argument("WeightCasts",
                        "has weights that were not cast yet, and a capture must not contain the first "
                        "cast: call run() once before");
      }
      kind.list = backend_->make_cast_list(kind.spec, kind.tensors, stream);
    }
    kind.list->run(stream);
  }
  for (const auto& [layer, weight] : layers_) layer->weight_was_cast(weight, stream);
}

std::size_t WeightCasts::size() const {
  std::size_t count = 0;
  for (const Kind& kind : kinds_) count += kind.tensors.size();
  return count;
}

}  // namespace ingot
