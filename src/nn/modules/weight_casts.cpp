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
                   .scale_inv = codes.scale_inv,
                   .transposed_scale_inv = codes.transposed_scale_inv};
  if (plan.weight.scaling != Scaling::dynamic) {
    cast.scales = tensors.scale.scale;
    cast.amax =
        plan.weight.is_fixed() ? plan.weight_memory().amax.in(tensors.into, backend_->device()) : tensors.scale.amax;
  }
  add_cast(plan.weight.spec, cast);
  return codes;
}

void WeightCasts::check(const OwnedLinear& layer, const Tensor& weight, const Stream& stream) const {
  if (&layer.owner->backend() != backend_) {
    refuse_argument("WeightCasts layer", "belongs to another backend than the casts: make both from one");
  }
  if (std::ranges::find(layers_, layer.owner, &Listed::layer) != layers_.end()) {
    refuse_argument("WeightCasts layer",
                    fmt::format("\"{}\" was added before, and has memory for the codes of one weight: make other casts "
                                "for another weight",
                                layer.owner->options().name));
  }
  if (layer.plan->weight.any) check_weight(*layer.plan, *backend_, weight, stream);
}

void WeightCasts::add_checked(const OwnedLinear& layer, const Tensor& weight, Stream& stream) {
  if (!layer.plan->weight.any) return;
  add(*layer.plan, layer.owner->list_weight(*layer.plan, weight, stream), stream);
  layers_.push_back({.layer = layer.owner, .weight = weight});
}

void WeightCasts::add_pair(const std::array<OwnedLinear, 2>& layers, const Tensor& up, const Tensor& down,
                           Stream& stream) {
  check(layers[0], up, stream);
  check(layers[1], down, stream);
  add_checked(layers[0], up, stream);
  add_checked(layers[1], down, stream);
}

void WeightCasts::add(Float8Linear& layer, const Tensor& weight, Stream& stream) {
  const OwnedLinear linear = layer.linear_of(weight.dtype);
  check(linear, weight, stream);
  add_checked(linear, weight, stream);
}

void WeightCasts::add(NormLinear& layer, const Tensor& weight, Stream& stream) {
  const OwnedLinear linear = layer.linear_of(weight.dtype);
  check(linear, weight, stream);
  add_checked(linear, weight, stream);
}

void WeightCasts::add(Mlp& layer, const Tensor& up_weight, const Tensor& down_weight, Stream& stream) {
  add_pair(layer.linears_of(up_weight.dtype), up_weight, down_weight, stream);
}

void WeightCasts::add(GatedMlp& layer, const Tensor& gate_up_weight, const Tensor& down_weight, Stream& stream) {
  add_pair(layer.linears_of(gate_up_weight.dtype), gate_up_weight, down_weight, stream);
}

void WeightCasts::run(Stream& stream) {
  for (Kind& kind : kinds_) {
    if (kind.list == nullptr) {
      if (backend_->device_api().capturing(stream)) {
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
