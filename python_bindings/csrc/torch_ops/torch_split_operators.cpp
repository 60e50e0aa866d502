// A linear layer's forward in parts, for compilers, which can then cast an input that several layers share once, and
// choose what backward keeps: torch.ops.ingot.quantize_input, quantize_weight and gemm_output. Together they compute
// what linear_forward does, from the same casts and GEMM; linear_backward takes what they leave. gemm_output takes a
// weight in FP8, too, in place of what quantize_weight returns.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "ingot/nn/linear/linear_functions.h"
#include "torch_abi/torch_memory.h"
#include "torch_abi/torch_weight_operand.h"
#include "torch_ops/torch_module_plans.h"
#include "torch_ops/torch_operator.h"
#include "torch_ops/torch_run.h"

namespace ingot::python {
namespace {

namespace nb = nanobind;
using namespace nb::literals;

// ---- the cast of an input, apart from its layer --------------------------------------------------------------------

// A plan that casts its input as this one does. Layers that cast one input alike have the same, whatever their names
// and outputs are.
LinearPlan input_plan(const LinearPlan& plan) {
  return linear_plan({.name = "input",
                      .config = plan.config,
                      .shape = {.in_features = plan.shape.in_features, .out_features = TorchSavedSize::kTokensPerUnit},
                      .dtypes = {.input = plan.dtypes.input},
                      .grad_weight = plan.trains_weight});
}

bool casts_alike(const LinearPlan& plan, const LinearPlan& input) {
  if (plan.output_reads_weight() || plan.fusion.prologue || plan.fusion.epilogue) return false;
  const LinearCast& cast = plan.input_of(LinearPass::training);
  return cast.any && cast.scaling == Scaling::dynamic && plan.weight.scaling == Scaling::dynamic && cast.spec.codes &&
         cast.spec == input.input_of(LinearPass::training).spec &&
         plan.saved_memory(TorchSavedSize::kTokensPerUnit).parts() ==
             input.saved_memory(TorchSavedSize::kTokensPerUnit).parts();
}

// Saved memory is also what tells a forward with gradients from one without: they cast differently.
LinearPass pass_of(const TorchPlan& plan, std::int64_t keep) {
  return keep != 0 && plan.saved.bytes(1) > 0 ? LinearPass::training : LinearPass::inference;
}

std::size_t codes_bytes(const LinearPlan& plan, std::int64_t tokens, LinearPass pass) {
  const auto units = static_cast<std::size_t>(divided_up(tokens, TorchSavedSize::kTokensPerUnit));
  return units * plan.forward_scratch(TorchSavedSize::kTokensPerUnit, pass).bytes;
}

MemoryRegion region_of(const TorchRegion& region) {
  return region.region().bytes > 0 ? region.region() : MemoryRegion{};
}

Float8View codes_in(const TorchPlan& plan, std::int64_t tokens, const TorchRegion& saved, const TorchRegion& codes,
                    Device device) {
  return linear_input_codes(plan.plan, tokens, region_of(saved), region_of(codes), device);
}

void require_quantized_bytes(const LinearPlan& plan, const char* name, const TorchRegion& region, std::size_t bytes) {
  if (region.region().bytes == bytes) return;
  throw Error(ErrorCode::invalid_argument, TensorName{plan.subject, name}.text(),
              "has " + std::to_string(region.region().bytes) + " bytes, expected " + std::to_string(bytes) +
                  ": give what quantize_input and quantize_weight returned");
}

// Returns the codes for the output GEMM and, if it is kept, what backward needs for grad_weight.
void quantize_input(TorchArgumentsOf<kQuantizeInput>& all) {
  const TorchPlan& plan = all.plan(plans_of<TorchPlan>(), all.integer<"plan">());
  const LinearPass pass = pass_of(plan, all.integer<"keep">());
  const TorchMatrix input = matrix_of(all.tensor<"input">(), {plan.plan.subject, "input"});
  const Device device = input.view.device;
  const std::int64_t tokens = input.view.rows;
  const TorchRun place(device, all);
  TorchRegion codes(codes_bytes(plan.plan, tokens, pass), device);
  TorchRegion saved = pass == LinearPass::training ? TorchRegion(plan.saved.bytes(tokens), device) : TorchRegion();
  const CastSpec& spec = plan.plan.input_of(pass).spec;
  // No tokens have no codes, but perhaps a factor, which no GEMM reads.
  const TorchRegion factor(tokens == 0 ? codes_bytes(plan.plan, 1, pass) : 0, device);
  const Float8View views = codes_in(plan, tokens, saved, tokens == 0 ? factor : codes, device);
  CastTensors tensors{.input = input.view, .codes = views.codes, .scale_inv = views.scale_inv};
  if (spec.transposed) tensors.transposed = views.transposed;
  if (spec.transposed_scale) tensors.transposed_scale_inv = views.transposed_scale_inv;
  const ObservedRange range(place.run().observer, plan.plan.name, "cast");  // of no layer: several may share it
  place.backend().cast(spec, tensors, place.stream());
  all.result<"codes">() = std::move(codes).publish();
  if (pass == LinearPass::training) all.result<"saved">() = std::move(saved).publish();
}

// Returns the weight's codes and scale_inv, as linear_forward keeps them.
void quantize_weight(TorchArgumentsOf<kQuantizeWeight>& all) {
  const TorchPlan& plan = all.plan(plans_of<TorchPlan>(), all.integer<"plan">());
  const TorchMatrix weight = matrix_of(all.tensor<"weight">(), {plan.plan.subject, "weight"});
  const TorchRun place(weight.view.device, all);
  TorchRegion codes(plan.weight_bytes[0], place.device());
  const ObservedRange range(place.run().observer, plan.plan.name, "forward");
  cast_weight(plan.plan, place.backend(), {.weight = weight.view, .into = codes.region()}, place.run());
  TorchTensor& kept = all.result<"codes">();
  kept = std::move(codes).publish();
  place.note(all, kept);
}

// The bias in the dtype that the GEMM takes.
TorchRegion rounded(const LinearPlan& plan, const TorchRun& place, Tensor& bias) {
  const Dtype dtype = bias_dtype(plan.output_gemm[0]);
  TorchRegion region(static_cast<std::size_t>(bias.cols) * sizeof(float), place.device());
  const Tensor to = vector(region.region().data, dtype, bias.cols, place.device());
  place.backend().column_sum({.in = bias.dtype, .out = dtype}, {.input = bias, .sum = to}, place.stream());
  bias = to;
  return region;
}

// Layers may share a cast, so that its operator knows no layer: the GEMM's tells of it, and of the transposed codes,
// which only backward reads.
void tell_of_input(LayerObserver& observer, const LinearPlan& plan, const CastSpec& spec, const Tensor& values,
                   const Float8View& codes, Stream& stream) {
  CastEvent event{.layer = plan.name,
                  .tensor = "input",
                  .gemms = "output",
                  .values = values,
                  .codes = codes.codes,
                  .scale_inv = codes.scale_inv,
                  .scale = spec.scale};
  observer.cast(event, stream);
  if (!spec.transposed) return;
  event.gemms = "grad_weight";
  event.codes = codes.transposed;
  event.transposed = true;
  if (spec.transposed_scale) {
    event.scale_inv = codes.transposed_scale_inv;
    event.scale = *spec.transposed_scale;
  }
  observer.cast(event, stream);
}

// The weight's codes: what quantize_weight returned, in `memory` from now on, or FP8 codes with their scale_inv, which
// may have to be copied there.
Float8View weight_of(TorchArgumentsOf<kGemmOutput>& all, const TorchPlan& plan, const TorchRun& run,
                     TorchRegion& memory) {
  const Device device = run.device();
  TorchTensor& weight = all.tensor<"weight">();
  const TorchTensor& scale_inv = all.tensor<"weight_scale_inv">();
  if (scale_inv.given()) {
    const Float8Weight given(plan.plan, WeightReader::output, weight, scale_inv, device);
    return given.for_output(run.backend(), run.stream(), memory);
  }
  memory = TorchRegion(std::move(weight), device);
  require_quantized_bytes(plan.plan, "weight codes", memory, plan.weight_bytes[0]);
  return weight_codes(plan.plan, memory.region(), device);
}

// Returns the output.
void gemm_output(TorchArgumentsOf<kGemmOutput>& all) {
  const TorchPlan& of = all.plan(plans_of<TorchPlan>(), all.integer<"plan">());
  const LinearPlan& plan = of.plan;
  const TorchPlan& cast = *plans_of<TorchPlan>().at(all.integer<"input_plan">()).plan;
  const TorchTensor& input = all.tensor<"input">();  // for its sizes
  const Device device = input.device().value_or(Device{});
  const std::int64_t tokens = tokens_of(input);
  const TorchRun place(device, all, tokens);
  place.note(all, all.tensor<"saved">(), true);
  // The tensors are not moved before the call has found its layer's name.
  const LinearPass pass = all.tensor<"saved">().given() ? LinearPass::training : LinearPass::inference;
  TorchRegion saved;
  if (pass == LinearPass::training) {
    saved = TorchRegion(std::move(all.tensor<"saved">()), device);
    require_quantized_bytes(plan, "saved", saved, cast.saved.bytes(tokens));
  }
  const TorchRegion codes(std::move(all.tensor<"codes">()), device);
  require_quantized_bytes(plan, "codes", codes, codes_bytes(cast.plan, tokens, pass));
  TorchRegion of_weight;
  const Float8View b = weight_of(all, of, place, of_weight);
  const std::int64_t columns = plan.shape.out_features;
  const Dtype dtype = *plan.dtypes.output;
  TorchTensor& output = all.result<"output">();
  output = TorchTensor::empty(sizes_with_last(input.sizes(), columns), torch_dtype(dtype), device);
  if (tokens == 0) return;
  const Float8View a = codes_in(cast, tokens, saved, codes, device);
  LayerObserver* const observer = place.run().observer;
  const ObservedRange forward(observer, plan.name, "forward");
  TorchMatrix values;
  if (observer != nullptr) {
    values = matrix_of(input, {plan.subject, "input"});
    tell_of_input(*observer, plan, cast.plan.input_of(pass).spec, values.view, a, place.stream());
  }
  const ObservedRange range(observer, plan.name, "output");
  GemmTensors tensors{.a = a.codes,
                      .b = b.codes,
                      .scale_inv_a = a.scale_inv,
                      .scale_inv_b = b.scale_inv,
                      .out = matrix(output.data(), dtype, tokens, columns, device)};
  TorchMatrix bias;
  TorchRegion rounded_bias;
  if (plan.shape.bias) {
    bias = matrix_of(all.tensor<"bias">(), {plan.subject, "bias"});
    if (plan.rounds_bias()) rounded_bias = rounded(plan, place, bias.view);
    tensors.bias = bias.view;
  }
  place.backend().gemm(plan.output_gemm[0], tensors, place.stream());
  if (observer != nullptr) {
    observer->gemm({.layer = plan.name, .role = "output", .spec = plan.output_gemm[0], .tensors = tensors},
                   place.stream());
  }
}

constexpr std::array kSplitOperators{kTorchOperator<kQuantizeInput, quantize_input>,
                                     kTorchOperator<kQuantizeWeight, quantize_weight>,
                                     kTorchOperator<kGemmOutput, gemm_output>};

// Returns (number, bytes of codes for each TorchSavedSize::kTokensPerUnit tokens without and with gradients) of the
// plan that casts this plan's input; None if its forward cannot be split.
std::optional<nb::tuple> add_input_plan(std::int64_t number) {
  const LinearPlan& plan = plans_of<TorchPlan>().at(number).plan->plan;
  LinearPlan input = input_plan(plan);
  if (!casts_alike(plan, input)) return std::nullopt;
  const std::size_t inference = codes_bytes(input, 1, LinearPass::inference);
  const std::size_t training = codes_bytes(input, 1, LinearPass::training);
  return nb::make_tuple(add_linear({std::move(input), false}), inference, training);
}

const TorchFamily kSplitFamily(kSplitOperators,
                               [](nb::module_& module) { module.def("torch_input_plan", &add_input_plan, "plan"_a); });

}  // namespace
}  // namespace ingot::python
