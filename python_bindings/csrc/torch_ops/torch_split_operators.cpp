// A linear layer's forward in parts, for compilers, which can then cast an input that several layers share once, and
// choose what backward keeps: torch.ops.ingot.quantize_input, quantize_weight and gemm_output. Together they compute
// what linear_forward does, from the same casts and GEMM; linear_backward takes what they leave. gemm_output_float8
// takes a weight in FP8 in place of what quantize_weight returns.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "ingot/nn/linear/linear_functions.h"
#include "module.h"
#include "torch_abi/torch_float8_weight.h"
#include "torch_abi/torch_memory.h"
#include "torch_ops/torch_operator.h"
#include "torch_ops/torch_plans.h"
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
                      .shape = {.in_features = plan.shape.in_features, .out_features = TorchPlan::kTokensPerUnit},
                      .dtypes = {.input = plan.dtypes.input},
                      .grad_weight = plan.trains_weight});
}

bool casts_alike(const LinearPlan& plan, const LinearPlan& input) {
  if (plan.output_reads_weight() || plan.fusion.prologue || plan.fusion.epilogue) return false;
  const LinearCast& cast = plan.input_of(LinearPass::training);
  return cast.any && cast.scaling == Scaling::dynamic && plan.weight.scaling == Scaling::dynamic && cast.spec.codes &&
         cast.spec == input.input_of(LinearPass::training).spec &&
         plan.saved_memory(TorchPlan::kTokensPerUnit).parts() == input.saved_memory(TorchPlan::kTokensPerUnit).parts();
}

// Saved memory is also what tells a forward with gradients from one without: they cast differently.
LinearPass pass_of(const TorchPlan& plan, std::int64_t keep) {
  return keep != 0 && plan.saved_bytes(1) > 0 ? LinearPass::training : LinearPass::inference;
}

std::size_t codes_bytes(const LinearPlan& plan, std::int64_t tokens, LinearPass pass) {
  const auto units = static_cast<std::size_t>((tokens + TorchPlan::kTokensPerUnit - 1) / TorchPlan::kTokensPerUnit);
  return units * plan.forward_scratch(TorchPlan::kTokensPerUnit, pass).bytes;
}

MemoryRegion region_of(const TorchRegion& region) {
  return region.region().bytes > 0 ? region.region() : MemoryRegion{};
}

Float8View codes_in(const TorchPlan& plan, std::int64_t tokens, const TorchRegion& saved, const TorchRegion& codes,
                    Device device) {
  return linear_input_codes(plan.plan, tokens, region_of(saved), region_of(codes), device);
}

void require_bytes(const LinearPlan& plan, const char* name, const TorchRegion& region, std::size_t bytes) {
  if (region.region().bytes == bytes) return;
  throw Error(ErrorCode::invalid_argument, TensorName{plan.subject, name}.text(),
              "has " + std::to_string(region.region().bytes) + " bytes, expected " + std::to_string(bytes) +
                  ": give what quantize_input and quantize_weight returned");
}

// Returns the codes for the output GEMM and, if it is kept, what backward needs for grad_weight.
void quantize_input(TorchArguments& all, TorchValue* stack) {
  const TorchPlan& plan = all.plan(torch_plans(), all.integer(1));
  const LinearPass pass = pass_of(plan, all.integer(2));
  const TorchMatrix input = matrix_of(all[0], {plan.plan.subject, "input"});
  const Device device = input.view.device;
  const std::int64_t tokens = input.view.rows;
  const TorchRun place(device, all);
  TorchRegion codes(codes_bytes(plan.plan, tokens, pass), device);
  TorchRegion saved(pass == LinearPass::training ? plan.saved_bytes(tokens) : 0, device);
  const CastSpec& spec = plan.plan.input_of(pass).spec;
  // No tokens have no codes, but perhaps a factor, which no GEMM reads.
  const TorchRegion factor(tokens == 0 ? codes_bytes(plan.plan, 1, pass) : 0, device);
  const Float8View views = codes_in(plan, tokens, saved, tokens == 0 ? factor : codes, device);
  CastTensors tensors{.input = input.view, .codes = views.codes, .factors = views.factors};
  if (spec.transposed) tensors.transposed = views.transposed;
  if (spec.transposed_scale) tensors.transposed_factors = views.transposed_factors;
  const ObservedRange range(place.run().observer, plan.plan.name, "cast");  // of no layer: several may share it
  place.backend().cast(spec, tensors, place.stream());
  TorchTensor kept_codes = std::move(codes).publish();
  TorchTensor kept = std::move(saved).publish();
  give(stack, {&kept_codes, &kept});
}

// Returns the weight's codes and factors, as linear_forward keeps them.
void quantize_weight(TorchArguments& all, TorchValue* stack) {
  const TorchPlan& plan = all.plan(torch_plans(), all.integer(1));
  const TorchMatrix weight = matrix_of(all[0], {plan.plan.subject, "weight"});
  const TorchRun place(weight.view.device, all);
  TorchRegion codes(plan.weight_bytes, place.device());
  const ObservedRange range(place.run().observer, plan.plan.name, "forward");
  cast_weight(plan.plan, place.backend(), {.weight = weight.view, .into = codes.region()}, place.run());
  TorchTensor kept = std::move(codes).publish();
  place.note(all, kept);
  give(stack, {&kept});
}

struct GemmArguments {
  TorchArguments& all;
  const TorchTensor& input;  // for its sizes
  TorchTensor& codes;
  TorchTensor& saved;
  const TorchTensor* bias;
  std::int64_t input_plan;
  std::int64_t plan;
};

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
                  .factors = codes.factors,
                  .scale = spec.scale};
  observer.cast(event, stream);
  if (!spec.transposed) return;
  event.gemms = "grad_weight";
  event.codes = codes.transposed;
  event.transposed = true;
  if (spec.transposed_scale) {
    event.factors = codes.transposed_factors;
    event.scale = *spec.transposed_scale;
  }
  observer.cast(event, stream);
}

// Returns the output. weight_of(plan, device) gives the weight's codes.
template <typename WeightOf>
void gemm_output(TorchValue* stack, const GemmArguments& arguments, const WeightOf& weight_of) {
  const LinearPlan& plan = arguments.all.plan(torch_plans(), arguments.plan).plan;
  const TorchPlan& cast = *torch_plans().at(arguments.input_plan).plan;
  const Device device = arguments.input.device().value_or(Device{});
  const std::int64_t tokens = tokens_of(arguments.input);
  const TorchRun place(device, arguments.all, tokens);
  place.note(arguments.all, arguments.saved, true);
  const TorchRegion saved(std::move(arguments.saved), device);
  const TorchRegion codes(std::move(arguments.codes), device);
  const LinearPass pass = saved.region().bytes > 0 ? LinearPass::training : LinearPass::inference;
  if (pass == LinearPass::training) require_bytes(plan, "saved", saved, cast.saved_bytes(tokens));
  require_bytes(plan, "codes", codes, codes_bytes(cast.plan, tokens, pass));
  const Float8View b = weight_of(plan, device);
  const std::int64_t columns = plan.shape.out_features;
  const Dtype dtype = *plan.dtypes.output;
  TorchTensor output =
      TorchTensor::empty(sizes_with_last(arguments.input.sizes(), columns), torch_dtype(dtype), device);
  if (tokens == 0) return give(stack, {&output});
  const Float8View a = codes_in(cast, tokens, saved, codes, device);
  LayerObserver* const observer = place.run().observer;
  const ObservedRange forward(observer, plan.name, "forward");
  TorchMatrix values;
  if (observer != nullptr) {
    values = matrix_of(arguments.input, {plan.subject, "input"});
    tell_of_input(*observer, plan, cast.plan.input_of(pass).spec, values.view, a, place.stream());
  }
  const ObservedRange range(observer, plan.name, "output");
  GemmTensors tensors{.a = a.codes,
                      .b = b.codes,
                      .factor_a = a.factors,
                      .factor_b = b.factors,
                      .out = matrix(output.data(), dtype, tokens, columns, device)};
  TorchMatrix bias;
  TorchRegion rounded_bias;
  if (plan.shape.bias) {
    bias = matrix_of(*arguments.bias, {plan.subject, "bias"});
    if (plan.rounds_bias()) rounded_bias = rounded(plan, place, bias.view);
    tensors.bias = bias.view;
  }
  place.backend().gemm(plan.output_gemm[0], tensors, place.stream());
  if (observer != nullptr) {
    observer->gemm({.layer = plan.name, .role = "output", .spec = plan.output_gemm[0], .tensors = tensors},
                   place.stream());
  }
  give(stack, {&output});
}

// With what quantize_weight returned.
void gemm_output_of_bytes(TorchValue* stack, const GemmArguments& arguments, TorchTensor& weight_codes_tensor) {
  TorchRegion weight;
  gemm_output(stack, arguments, [&](const LinearPlan& plan, Device device) {
    weight = TorchRegion(std::move(weight_codes_tensor), device);  // not before the call has found its layer's name
    require_bytes(plan, "weight codes", weight, plan.weight_memory().bytes);
    return weight_codes(plan, weight.region(), device);
  });
}

void gemm_output_operator(TorchArguments& all, TorchValue* stack) {
  gemm_output_of_bytes(stack, {all, all[0], all[1], all[2], nullptr, all.integer(4), all.integer(5)}, all[3]);
}

void gemm_output_bias_operator(TorchArguments& all, TorchValue* stack) {
  gemm_output_of_bytes(stack, {all, all[0], all[1], all[2], &all[4], all.integer(5), all.integer(6)}, all[3]);
}

// With a weight in FP8. Without a bias any tensor stands in its place.
void gemm_output_float8_operator(TorchArguments& all, TorchValue* stack) {
  gemm_output(
      stack, {all, all[0], all[1], all[2], &all[5], all.integer(6), all.integer(7)},
      [&](const LinearPlan& plan, Device device) { return Float8Weight(plan, all[3], all[4], device).for_output(); });
}

constexpr std::array kOperators{
    kTorchOperator<quantize_input, "quantize_input(Tensor input, int plan, int keep) -> (Tensor, Tensor)">,
    kTorchOperator<quantize_weight, "quantize_weight(Tensor weight, int plan) -> Tensor">,
    kTorchOperator<gemm_output_operator,
                   "gemm_output(Tensor input, Tensor codes, Tensor saved, Tensor weight_codes, int input_plan,"
                   " int plan) -> Tensor">,
    kTorchOperator<gemm_output_bias_operator,
                   "gemm_output_bias(Tensor input, Tensor codes, Tensor saved, Tensor weight_codes, Tensor bias,"
                   " int input_plan, int plan) -> Tensor">,
    kTorchOperator<gemm_output_float8_operator,
                   "gemm_output_float8(Tensor input, Tensor codes, Tensor saved, Tensor weight, Tensor factor,"
                   " Tensor bias, int input_plan, int plan) -> Tensor">};

// Returns (number, bytes of codes for each TorchPlan::kTokensPerUnit tokens without and with gradients) of the plan
// that casts this plan's input; None if its forward does not come apart.
std::optional<nb::tuple> add_input_plan(std::int64_t number) {
  const LinearPlan& plan = torch_plans().at(number).plan->plan;
  LinearPlan input = input_plan(plan);
  if (!casts_alike(plan, input)) return std::nullopt;
  const std::size_t inference = codes_bytes(input, 1, LinearPass::inference);
  const std::size_t training = codes_bytes(input, 1, LinearPass::training);
  return nb::make_tuple(torch_plans().add(std::move(input)), inference, training);
}

}  // namespace

std::span<const TorchOperator> split_linear_operators() { return kOperators; }

void bind_torch_split(nb::module_& module) { module.def("torch_input_plan", &add_input_plan, "plan"_a); }

}  // namespace ingot::python
