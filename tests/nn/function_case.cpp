#include "nn/function_case.h"

#include "ingot/nn/linear/linear_checks.h"

namespace ingot::test {

PoisonedRegion::PoisonedRegion(std::size_t bytes, Backend& backend, Stream& stream)
    : bytes_(bytes), memory_(backend, bytes) {
  const std::vector<std::uint8_t> poison(bytes, 0xff);
  backend.device_api().copy_from_host(memory_.data(), poison.data(), bytes, stream);
}

FunctionLayer::FunctionLayer(const LinearPlanOptions& options, Backend& backend, Stream& stream)
    : plan(linear_plan(options)),
      codes(),
      scales(),
      backend_(&backend),
      weight_(plan.weight_memory().bytes, backend, stream),
      constants_(kLinearConstantBytes, backend, stream) {
  scales = linear_constants(plan, backend, constants_, stream);
  codes = weight_codes(plan, weight_, backend.device());
}

void FunctionLayer::use(const DelayedScaling& delayed) {
  int slot = 0;
  const auto take = [&](LinearScale& scale, const std::optional<Cast>& cast) {
    if (!cast || cast->scaling != Scaling::delayed) return;
    scale = {.scale = delayed.scale(slot), .amax = delayed.amax(slot)};
    ++slot;
  };
  take(scales.input, plan.scaling.input);
  take(scales.weight, plan.scaling.weight);
  take(scales.grad_output, plan.scaling.grad_output);
}

void FunctionLayer::cast_weight(const Tensor& weight, Stream& stream) {
  codes = ingot::cast_weight(plan, *backend_, {.weight = weight, .into = weight_, .scale = scales.weight},
                             {.stream = stream});
}

LinearForwardTensors FunctionLayer::forward_tensors(const LinearForward& tensors, LinearSaved* saved,
                                                    const MemoryRegion& scratch) const {
  return {.input = tensors.input,
          .weight = tensors.weight,
          .bias = tensors.bias,
          .output = tensors.output,
          .prologue_inputs = tensors.prologue_inputs,
          .epilogue_inputs = tensors.epilogue_inputs,
          .codes = codes,
          .scales = scales,
          .saved = saved,
          .scratch = scratch};
}

LinearBackwardTensors FunctionLayer::backward_tensors(const LinearBackward& tensors, const LinearForward& of,
                                                      const LinearSaved& saved, const MemoryRegion& scratch) const {
  return {.saved = &saved,
          .grad_output = tensors.grad_output,
          .grad_input = tensors.grad_input,
          .grad_weight = tensors.grad_weight,
          .grad_bias = tensors.grad_bias,
          .accumulate = tensors.accumulate,
          .input = of.input,
          .weight = of.weight,
          .output = of.output,
          .prologue_inputs = of.prologue_inputs,
          .epilogue_inputs = of.epilogue_inputs,
          .codes = codes,
          .scales = scales,
          .scratch = scratch};
}

void FunctionLayer::forward(const LinearForward& tensors, LinearSaved* saved, Stream& stream, bool cast) const {
  const LinearPass pass = saved != nullptr ? LinearPass::training : LinearPass::inference;
  const PoisonedRegion scratch(plan.forward_scratch(tensors.input.rows, pass).bytes, *backend_, stream);
  LinearForwardTensors all = forward_tensors(tensors, saved, scratch);
  if (cast && plan.weight.any) all.weight_into = weight_;
  linear_forward(plan, *backend_, all, {.stream = stream});
}

void FunctionLayer::recompute(const LinearForward& tensors, LinearSaved& saved, Stream& stream) const {
  const LinearPass pass = plan.recomputes_output() ? LinearPass::training : LinearPass::recompute;
  const PoisonedRegion scratch(plan.forward_scratch(tensors.input.rows, pass).bytes, *backend_, stream);
  linear_recompute(plan, *backend_, forward_tensors(tensors, &saved, scratch), {.stream = stream});
}

void FunctionLayer::backward(const LinearBackward& tensors, const LinearForward& of, const LinearSaved& saved,
                             Stream& stream) const {
  const LinearGradients wants = wanted_gradients(tensors);
  const bool expands = expands_grad_output(plan, backward_tensors(tensors, of, saved, {}));
  const PoisonedRegion scratch(plan.backward_scratch(saved.tokens, wants, false, expands).bytes, *backend_, stream);
  linear_backward(plan, *backend_, backward_tensors(tensors, of, saved, scratch), {.stream = stream});
}

}  // namespace ingot::test
