// The operators of weights in 8, 6 and 4 bits: cast a weight, pack its codes in the order of the tensor cores and back,
// and multiply by it (Backend::dequant_matmul). Memory is PyTorch's; ingot/nn/_weight_only.py is the layer over them.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "arrays/arrays.h"
#include "ingot/codegen/dequant/dequant_spec.h"
#include "ingot/codegen/kernel_spec.h"
#include "ingot/codegen/types/matmul_size.h"
#include "ingot/nn/weights/weight_only.h"
#include "ingot/runtime/util/digest.h"
#include "torch_abi/torch_memory.h"
#include "torch_abi/torch_weight_operand.h"
#include "torch_ops/torch_module_plans.h"
#include "torch_ops/torch_operator.h"
#include "torch_ops/torch_run.h"

namespace ingot::python {
namespace {

namespace nb = nanobind;
using namespace nb::literals;

struct WeightOnlyPlan {
  std::string subject{};  // what messages call the layer
  Dtype dtype = Dtype::e4m3fn;
  bool mx = false;
  ScaleGranularity scale = kRowwise;
  bool pow2 = false;
  WeightLayout layout = WeightLayout::packed;
  std::int64_t out_features = 0;
  std::int64_t in_features = 0;
  // For x of bf16 and f16, each without and with a bias.
  std::array<DequantMatmulSpec, 4> specs{};

  Dtype scale_inv_dtype() const { return mx ? Dtype::e8m0fnu : Dtype::f32; }
  std::int64_t scale_inv() const { return scale_count(scale, out_features, in_features); }
  // Codes in plain rows, each of whole groups of codes that fill whole bytes.
  std::int64_t code_stride() const {
    const auto unit = static_cast<std::int64_t>(packed_unit(dtype));
    return divided_up(in_features, unit) * unit;
  }
  std::int64_t code_bytes() const { return row_bytes(dtype, code_stride()); }
  std::int64_t weight_bytes() const {
    return is_packed(layout) ? packed_weight_bytes(dtype, out_features, in_features) : out_features * code_bytes();
  }
  TensorName name(const char* tensor) const { return {subject, tensor}; }

  Tensor codes(void* data, Device device) const {
    Tensor codes = matrix(data, dtype, out_features, in_features, device);
    codes.row_stride = code_stride();
    return codes;
  }
  Tensor weight(void* data, Device device) const {
    return is_packed(layout) ? vector(data, Dtype::u8, weight_bytes(), device) : codes(data, device);
  }
};

[[noreturn]] void refuse(const TensorName& name, const std::string& why) {
  throw Error(ErrorCode::invalid_argument, name.text(), why);
}

TorchMatrix input_of(const TorchTensor& tensor, const WeightOnlyPlan& plan, Device device) {
  TorchMatrix input = columns_of(tensor, plan.name("input"), plan.in_features, device);
  if (input.view.dtype != Dtype::f32) return input;
  refuse(plan.name("input"),
         "is float32, but activations are bfloat16 or float16: convert them with .to(), or use torch.autocast");
}

void multiply(TorchArgumentsOf<kWeightOnlyLinear>& all) {
  const TorchTensor& of_input = all.tensor<"input">();
  const TorchTensor& of_bias = all.tensor<"bias">();
  const WeightOnlyPlan& plan = all.plan(plans_of<WeightOnlyPlan>(), all.integer<"plan">());
  const Device device = device_of(of_input, plan.name("input"));
  const TorchMatrix input = input_of(of_input, plan, device);
  const Dtype dtype = input.view.dtype;
  const bool has_bias = of_bias.given();
  TorchMatrix bias;
  if (has_bias) {
    bias = columns_of(of_bias, plan.name("bias"), plan.out_features, device);
    if (bias.view.dtype != dtype) {  // f32 with a bf16 input, under autocast
      TorchTensor rounded = TorchTensor::empty(of_bias.sizes(), torch_dtype(dtype), device);
      rounded.copy_from(of_bias);
      bias = {.view = matrix(rounded.data(), dtype, 1, plan.out_features, device), .copy = std::move(rounded)};
    }
  }
  DequantMatmulTensors tensors{
      .x = input.view,
      .weight = plan.weight(bytes_of(all.tensor<"weight">(), plan.name("weight"), plan.weight_bytes(), device), device),
      .scale_inv = vector(scale_inv_of(all.tensor<"weight_scale_inv">(), plan.name("weight_scale"), plan.scale_inv(),
                                       plan.scale_inv_dtype(), device),
                          plan.scale_inv_dtype(), plan.scale_inv(), device),
      .bias = bias.view,
      .out = {},
      .constant_weight = all.integer<"constant">() != 0};
  const TorchRun place(device, all);
  TorchTensor& output = all.result<"output">();
  output = TorchTensor::empty(sizes_with_last(of_input.sizes(), plan.out_features), torch_dtype(dtype), device);
  tensors.out = matrix(output.data(), dtype, input.view.rows, plan.out_features, device);
  place.backend().dequant_matmul(plan.specs[(dtype == Dtype::f16 ? 2U : 0U) + (has_bias ? 1U : 0U)], tensors,
                                 place.stream());
}

// The rows of many experts, each by the weight of its expert.
void multiply_experts(TorchArgumentsOf<kWeightOnlyExperts>& all) {
  const TorchTensor& of_input = all.tensor<"input">();
  const TorchTensor& of_ends = all.tensor<"ends">();
  const TorchTensor& of_bias = all.tensor<"bias">();
  const WeightOnlyPlan& plan = all.plan(plans_of<WeightOnlyPlan>(), all.integer<"plan">());
  const Device device = device_of(of_input, plan.name("input"));
  const TorchMatrix input = input_of(of_input, plan, device);
  const Dtype dtype = input.view.dtype;
  const std::int64_t experts = of_ends.elements();
  const bool masked = of_input.sizes().size() == 3;
  const TensorName ends = plan.name(masked ? "counts" : "ends");
  if (of_input.sizes().size() != 2 && !masked) refuse(plan.name("input"), "must be (M, K) or (experts, capacity, K)");
  if (of_ends.device() != device) refuse(ends, "is on another device than the input: move one with .to()");
  if (!of_ends.is_contiguous()) refuse(ends, "is not contiguous: call .contiguous()");
  if (!of_ends.is_int32()) refuse(ends, "must be int32: convert it with .to()");
  if (masked && of_input.sizes()[0] != experts) {
    refuse(ends, "has " + std::to_string(experts) + " elements, but the input has rows of " +
                     std::to_string(of_input.sizes()[0]) + " experts");
  }
  DequantMatmulSpec spec = plan.specs[dtype == Dtype::f16 ? 2U : 0U];
  spec.experts = true;
  Tensor weight =
      plan.weight(bytes_of(all.tensor<"weight">(), plan.name("weight"), experts * plan.weight_bytes(), device), device);
  (is_packed(plan.layout) ? weight.cols : weight.rows) *= experts;
  if (is_packed(plan.layout)) weight.row_stride = weight.cols;
  const std::int64_t scales = experts * plan.scale_inv();
  DequantMatmulTensors tensors{
      .x = input.view,
      .weight = weight,
      .scale_inv = vector(scale_inv_of(all.tensor<"weight_scale_inv">(), plan.name("weight_scale_inv"), scales,
                                       plan.scale_inv_dtype(), device),
                          plan.scale_inv_dtype(), scales, device),
      .out = {},
      .ends = {.data = static_cast<const std::int32_t*>(of_ends.data()),
               .experts = experts,
               .device = device,
               .capacity = masked ? std::optional(of_input.sizes()[1]) : std::nullopt}};
  TorchMatrix bias;
  if (of_bias.given()) {
    spec.bias = true;
    bias = columns_of(of_bias, plan.name("bias"), plan.out_features, device);
    if (bias.view.rows != experts) {
      refuse(plan.name("bias"), "has " + std::to_string(bias.view.rows) + " rows, expected one for each of " +
                                    std::to_string(experts) + " experts");
    }
    if (bias.view.dtype != dtype || bias.view.row_stride != plan.out_features) {
      bias.copy = TorchTensor::empty(of_bias.sizes(), torch_dtype(dtype), device);
      bias.copy.copy_from(of_bias);
      bias.view.data = bias.copy.data();
    }
    tensors.bias = vector(bias.view.data, dtype, experts * plan.out_features, device);
  }
  const TorchRun place(device, all, input.view.rows);
  TorchTensor& output = all.result<"output">();
  output = TorchTensor::empty(sizes_with_last(of_input.sizes(), plan.out_features), torch_dtype(dtype), device);
  tensors.out = matrix(output.data(), dtype, input.view.rows, plan.out_features, device);
  place.backend().dequant_matmul(spec, tensors, place.stream());
}

TorchTensor empty_codes(const WeightOnlyPlan& plan, Device device) {
  const std::array<std::int64_t, 2> sizes{plan.out_features, plan.code_bytes()};
  return TorchTensor::empty(sizes, torch_functions().bytes, device);
}

// Returns codes in plain rows, and scale_inv.
void cast(TorchArgumentsOf<kWeightCast>& all) {
  const TorchTensor& values = all.tensor<"weight">();
  const WeightOnlyPlan& plan = all.plan(plans_of<WeightOnlyPlan>(), all.integer<"plan">());
  const Device device = device_of(values, plan.name("weight"));
  const TorchMatrix weight = columns_of(values, plan.name("weight"), plan.in_features, device);
  const TorchRun place(device, all);
  TorchTensor codes = empty_codes(plan, device);
  const std::array<std::int64_t, 1> count{plan.scale_inv()};
  TorchTensor scale_inv = plan.mx ? TorchTensor::empty_bytes(static_cast<std::size_t>(plan.scale_inv()), device)
                                  : TorchTensor::empty(count, torch_functions().f32, device);
  if (plan.mx) {
    const Tensor scales =
        matrix(scale_inv.data(), Dtype::e8m0fnu, plan.out_features, divided_up(plan.in_features, 32), device);
    place.backend().quantize_mx({.in = weight.view.dtype, .out = plan.dtype},
                                {.input = weight.view, .codes = plan.codes(codes.data(), device), .scales = scales},
                                place.stream());
  } else {
    place.backend().cast({.in = weight.view.dtype, .out = plan.dtype, .scale = plan.scale, .pow2 = plan.pow2},
                         {.input = weight.view,
                          .codes = plan.codes(codes.data(), device),
                          .scale_inv = vector(scale_inv.data(), Dtype::f32, plan.scale_inv(), device)},
                         place.stream());
  }
  all.result<"codes">() = std::move(codes);
  all.result<"scale_inv">() = std::move(scale_inv);
}

// Codes in plain rows to the plan's packed layout, or back.
TorchTensor pack(const WeightOnlyPlan& plan, const TorchArguments& all, const TorchTensor& from, bool unpack) {
  const TensorName name = plan.name("weight");
  if (!is_packed(plan.layout)) throw Error(ErrorCode::invalid_argument, name.text(), "is not to be packed");
  const Device device = device_of(from, name);
  void* const data = bytes_of(from, name, unpack ? plan.weight_bytes() : plan.out_features * plan.code_bytes(), device);
  const TorchRun place(device, all);
  TorchTensor to = unpack ? empty_codes(plan, device)
                          : TorchTensor::empty_bytes(static_cast<std::size_t>(plan.weight_bytes()), device);
  place.backend().pack_weight({.weight = plan.dtype, .layout = plan.layout, .unpack = unpack},
                              {.codes = plan.codes(unpack ? to.data() : data, device),
                               .packed = plan.weight(unpack ? data : to.data(), device)},
                              place.stream());
  return to;
}

void pack(TorchArgumentsOf<kWeightPack>& all) {
  const WeightOnlyPlan& plan = all.plan(plans_of<WeightOnlyPlan>(), all.integer<"plan">());
  all.result<"packed">() = pack(plan, all, all.tensor<"codes">(), false);
}

void unpack(TorchArgumentsOf<kWeightUnpack>& all) {
  const WeightOnlyPlan& plan = all.plan(plans_of<WeightOnlyPlan>(), all.integer<"plan">());
  all.result<"codes">() = pack(plan, all, all.tensor<"packed">(), true);
}

constexpr std::array kWeightOnlyOperators{
    kTorchOperator<kWeightOnlyLinear, multiply>, kTorchOperator<kWeightOnlyExperts, multiply_experts>,
    kTorchOperator<kWeightCast, cast>, kTorchOperator<kWeightPack, pack>, kTorchOperator<kWeightUnpack, unpack>};

// Returns (number, bytes of a row of codes, bytes of the weight, number of scale_inv).
nb::tuple add_weight_only_plan(const std::string& subject, const WeightOnlyOptions& options, std::int64_t out_features,
                               std::int64_t in_features) {
  if (out_features < 0 || in_features < 0) {
    throw Error(ErrorCode::invalid_argument, subject, "has a negative size: features are counts");
  }
  WeightOnlyPlan plan{.subject = subject,
                      .dtype = options.dtype,
                      .mx = options.mx,
                      .scale = options.mx ? kRowGroups32 : options.scale,
                      .pow2 = options.pow2,
                      .layout = layout_of_bits(options.dtype, options.layout),
                      .out_features = out_features,
                      .in_features = in_features};
  std::string text =
      subject + "|" + std::to_string(out_features) + "|" + std::to_string(in_features) + (plan.pow2 ? "|pow2" : "|");
  for (std::size_t i = 0; i < plan.specs.size(); ++i) {
    const Dtype x = i / 2 != 0 ? Dtype::f16 : Dtype::bf16;
    plan.specs[i] = {.x = x,
                     .weight = plan.dtype,
                     .out = x,
                     .scale = plan.scale,
                     .scale_inv = plan.scale_inv_dtype(),
                     .layout = plan.layout,
                     .bias = i % 2 != 0,
                     .batch_invariant = options.batch_invariant};
    validate(KernelSpec(plan.specs[i]));
    text += "|" + print(KernelSpec(plan.specs[i]));
  }
  const auto facts = std::array<std::int64_t, 3>{plan.code_bytes(), plan.weight_bytes(), plan.scale_inv()};
  std::uint64_t identity = 0;
  std::memcpy(&identity, digest(text).data(), sizeof(identity));
  const std::int64_t number =
      plans_of<WeightOnlyPlan>().add(identity, std::move(plan), {sizes_text(in_features, out_features)});
  return nb::make_tuple(number, facts[0], facts[1], facts[2]);
}

// Waits for PyTorch's current stream on a device, -1 for the CPU. Captures of other threads go on, which a wait for the
// device would break. Returns false, and waits for nothing, if the stream itself is captured.
bool synchronize(int index) {
  const nb::gil_scoped_release released;
  const TorchRun place(index < 0 ? Device{} : Device{DeviceType::cuda, index});
  if (place.backend().device_api().capturing(place.stream())) return false;
  place.backend().device_api().synchronize(place.stream());
  return true;
}

const TorchFamily kWeightOnlyFamily(kWeightOnlyOperators, [](nb::module_& module) {
  module.attr("packed_layout_version") = kPackedLayoutVersion;
  module.def("torch_synchronize", &synchronize, "index"_a);
  module.def("torch_weight_only_plan", &add_weight_only_plan, "subject"_a, "options"_a, "out_features"_a,
             "in_features"_a);
  bind_names(module, "weight_only", plans_of<WeightOnlyPlan>());
});

}  // namespace
}  // namespace ingot::python
