#include "ingot/nn/linear/linear_step.h"

namespace ingot {
namespace {

void report(const LinearStep& step, const LinearCastNames& names, const CastSpec& spec, const CastTensors& tensors,
            Stream& stream) {
  CastEvent event{.layer = step.plan.name,
                  .tensor = names.tensor,
                  .gemms = names.of_codes,
                  .values = spec.result              ? tensors.result
                            : spec.pointwise.empty() ? tensors.input
                                                     : Tensor{},
                  .codes = tensors.codes,
                  .factors = tensors.factors,
                  .scale = spec.scale};
  if (spec.codes) step.run.observer->cast(event, stream);
  if (!spec.transposed) return;
  event.gemms = names.of_transposed;
  event.codes = tensors.transposed;
  event.transposed = true;
  if (spec.transposed_scale) {
    event.factors = tensors.transposed_factors;
    event.scale = *spec.transposed_scale;
  }
  step.run.observer->cast(event, stream);
}

void cast_as(const LinearStep& step, const LinearCastNames& names, const CastSpec& spec, const CastTensors& tensors,
             Stream& stream) {
  step.backend.cast(spec, tensors, stream);
  if (step.run.observer != nullptr) report(step, names, spec, tensors, stream);
}

}  // namespace

void cast(const LinearStep& step, const LinearCastNames& names, const CastSpec& spec, CastTensors& tensors,
          const Tensor& observed, Stream& stream) {
  if (!step.observes_values || spec.pointwise.empty() || spec.result) {
    return cast_as(step, names, spec, tensors, stream);
  }
  CastSpec with_values = spec;
  with_values.result = true;
  tensors.result = observed;
  cast_as(step, names, with_values, tensors, stream);
}

void give_scale(const LinearStep& step, CastTensors& tensors, const LinearCast& of, const LinearScale& scale,
                const Tensor& scratch, Stream& stream) {
  if (of.scaling == Scaling::dynamic) return;
  tensors.scales = scale.scale;
  tensors.amax = of.scaling == Scaling::fixed ? scratch : scale.amax;
  if (!scale.start) return;
  // A cast of the same values finds their maximum, whatever is fused with it; the codes that it writes are cast again.
  CastTensors measured = tensors;
  measured.amax = scale.start->amax;
  step.backend.cast(of.spec, measured, stream);
  step.backend.amax_history(scale.start_spec, *scale.start, stream);
}

void report(const LinearStep& step, const char* role, const GemmSpec& spec, const GemmTensors& tensors,
            Stream& stream) {
  if (step.run.observer == nullptr) return;
  step.run.observer->gemm({.layer = step.plan.name, .role = role, .spec = spec, .tensors = tensors}, stream);
}

void multiply(const LinearStep& step, const char* role, const GemmSpec& spec, const GemmTensors& tensors,
              Stream& stream) {
  step.backend.gemm(spec, tensors, stream);
  report(step, role, spec, tensors, stream);
}

}  // namespace ingot
