#include "torch_ops/torch_module_tensors.h"

#include <nanobind/nanobind.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include "ingot/nn/linear/memory_places.h"
#include "ingot/runtime/util/error.h"
#include "torch_abi/torch_weight_operand.h"

namespace ingot::python {
namespace {

constexpr std::int64_t kScalesOfLayer = 3;
// TorchDelayedScales::starts.
constexpr std::int64_t kNoneStarts = 2;
constexpr std::int64_t kAllStart = std::int64_t{1} << kScalesOfLayer;

std::array<std::int64_t, 1> features(const LinearPlan& plan) { return {plan.shape.in_features}; }

Dtype dtype_of_norm(const NormLinearPlan& plan, const TorchTensor& gamma) {
  const bool has = plan.has_gamma() && gamma.given();
  return has ? gamma.dtype().value_or(plan.linear.dtypes.input) : plan.linear.dtypes.input;
}

std::span<const std::int64_t> sizes_of(const TorchTensor& tensor) {
  return tensor.given() ? tensor.sizes() : std::span<const std::int64_t>();
}

[[noreturn]] void refuse_left(const TensorName& name, std::size_t has, std::size_t leaves) {
  throw Error(ErrorCode::invalid_argument, name.text(),
              "has " + std::to_string(has) + " bytes, but a forward of this plan and size leaves " +
                  std::to_string(leaves) + ": give what that forward returned");
}

TorchSizes sizes_of_input(const LinearPlan& plan, const TorchTensor& grad_output) {
  return sizes_with_last(grad_output.sizes(), plan.shape.in_features);
}

}  // namespace

TorchResult::TorchResult(bool wanted, std::span<const std::int64_t> sizes, Dtype dtype, Device device)
    : tensor(wanted ? TorchTensor::empty(sizes, torch_dtype(dtype), device) : TorchTensor()) {
  if (!wanted) return;
  view = matrix(tensor.data(), dtype, tokens_of(tensor), sizes.back(), device);
}

TorchMatrix operand_of(const TorchTensor& tensor, const TensorName& name, Device device) {
  TorchMatrix operand = matrix_of(tensor, name);
  if (operand.view.device == device) return operand;
  throw Error(
      ErrorCode::invalid_argument, name.text(),
      "is on " + print(operand.view.device) + ", but the layer runs on " + print(device) + ": move one with .to()");
}

TorchMatrix vector_in(const TorchTensor& tensor, Dtype dtype, const TensorName& name, Device device) {
  TorchMatrix vector = operand_of(tensor, name, device);
  if (vector.view.dtype == dtype) return vector;
  TorchTensor rounded = TorchTensor::empty(tensor.sizes(), torch_dtype(dtype), device);
  rounded.copy_from(tensor);
  vector.view = matrix(rounded.data(), dtype, vector.view.rows, vector.view.cols, device);
  vector.copy = std::move(rounded);
  return vector;
}

void TorchCall::use(TorchDelayedScales delayed, std::int64_t layers, const std::string& subject, std::int64_t experts) {
  if (!delayed.scale->given()) return;
  const std::int64_t count = kScalesOfLayer * layers * experts;
  const auto require = [&](const TorchTensor& tensor, const char* name) {
    if (tensor.given() && tensor.is_contiguous() && tensor.dtype() == Dtype::f32 && tensor.device() == device() &&
        tensor.elements() == count) {
      return;
    }
    throw Error(ErrorCode::invalid_argument, TensorName{subject, name}.text(),
                "must be contiguous float32 of " + std::to_string(count) +
                    " elements on the layer's device, for input, weight and grad_output of each layer" +
                    (experts > 1 ? ", of each expert" : ""));
  };
  require(*delayed.scale, "delayed scale");
  require(*delayed.amax, "delayed amax");
  const std::span<const std::int64_t> starts = sizes_of(*delayed.starts);
  const auto none_or_some = [](std::int64_t size) { return size >= kNoneStarts && size < kNoneStarts + kAllStart; };
  if (starts.size() <= static_cast<std::size_t>(layers) ||
      !std::ranges::all_of(starts.first(static_cast<std::size_t>(layers)), none_or_some)) {
    throw Error(ErrorCode::invalid_argument, TensorName{subject, "delayed starts"}.text(),
                "must be an empty tensor of " + std::to_string(layers) +
                    " sizes from 2 to 9, and another: give a bool, or what a module of ingot.nn gives");
  }
  delayed_ = delayed;
  experts_ = experts;
}

std::int64_t TorchCall::starts(std::int64_t layer) const {
  if (delayed_.starts == nullptr) return 0;
  return delayed_.starts->sizes()[static_cast<std::size_t>(layer)] - kNoneStarts;
}

LinearScale TorchCall::delayed_scale(const Cast& cast, std::int64_t at, bool starts) {
  const auto one_of = [&](const TorchTensor& tensor) {
    return vector(static_cast<float*>(tensor.data()) + at * experts_, Dtype::f32, experts_, device());
  };
  const Tensor amax = one_of(*delayed_.amax);
  const Tensor scale = one_of(*delayed_.scale);
  if (!starts) return {.scale = scale, .amax = amax};
  const std::size_t bytes = kStartingScaleBytes * static_cast<std::size_t>(experts_);
  LinearScale made = starting_scale(backend(), cast, amax, region(bytes), stream());
  made.start->known = scale;
  return made;
}

LinearScales TorchCall::scales(const LinearPlan& plan, std::int64_t layer) {
  LinearScales made = constants(plan);
  if (delayed_.scale == nullptr) return made;
  const auto add = [&](LinearScale& scale, const std::optional<Cast>& cast, std::int64_t row) {
    if (!cast || cast->scaling != Scaling::delayed) return;
    scale = delayed_scale(*cast, kScalesOfLayer * layer + row, (starts(layer) >> row & 1) != 0);
  };
  add(made.input, plan.scaling.input, 0);
  add(made.weight, plan.scaling.weight, 1);
  add(made.grad_output, plan.scaling.grad_output, 2);
  return made;
}

const std::int32_t* int32_of(const TorchTensor& tensor, const TensorName& name, Device device) {
  const auto refuse = [&](const char* why) { throw Error(ErrorCode::invalid_argument, name.text(), why); };
  if (tensor.device() != device) refuse("is on another device than the input: move one with .to()");
  if (!tensor.is_int32()) refuse("must be int32: convert it with .to()");
  if (!tensor.is_contiguous()) refuse("is not contiguous: call .contiguous()");
  return static_cast<const std::int32_t*>(tensor.data());
}

TorchRegion given_region(TorchTensor& tensor, Device device) {
  return tensor.given() ? TorchRegion(std::move(tensor), device) : TorchRegion();
}

TorchRegion left_by_forward(TorchTensor& tensor, std::size_t bytes, const TensorName& name, Device device) {
  TorchRegion region = given_region(tensor, device);
  if (region.region().bytes != bytes) refuse_left(name, region.region().bytes, bytes);
  return region;
}

TorchKept::TorchKept(const TorchKeptSize& size, bool keeps_saved, bool keeps_codes, Device device)
    : kept_((keeps_saved ? size.saved : 0) + (keeps_codes ? size.all_codes() : 0), device),
      passing_(keeps_codes ? 0 : size.all_codes(), device),
      sizes_(size.codes) {
  if (keeps_saved) saved_ = part_of(kept_.region(), 0, size.saved);
  codes_ = keeps_codes ? part_of(kept_.region(), keeps_saved ? size.saved : 0, size.all_codes()) : passing_.region();
}

TorchKept::TorchKept(TorchTensor tensor, const TorchKeptSize& size, bool needs_codes, const TensorName& name,
                     Device device)
    : kept_(std::move(tensor), device), sizes_(size.codes) {
  const std::size_t bytes = kept_.region().bytes;
  const bool has_codes = bytes == size.saved + size.all_codes();
  if (!has_codes && (needs_codes || bytes != size.saved)) {
    refuse_left(name, bytes, size.saved + (needs_codes ? size.all_codes() : 0));
  }
  saved_ = part_of(kept_.region(), 0, size.saved);
  if (has_codes) codes_ = part_of(kept_.region(), size.saved, size.all_codes());
}

MemoryRegion TorchKept::codes(std::size_t layer) const {
  if (sizes_[layer] == 0) return {};
  const std::size_t begin = std::accumulate(sizes_.begin(), sizes_.begin() + layer, std::size_t{0});
  return part_of(codes_, begin, sizes_[layer]);
}

NormOperands::NormOperands(const NormLinearPlan& plan, const TorchTensor& of_gamma, const TorchTensor& of_beta,
                           Device device) {
  const Dtype dtype = plan.linear.dtypes.input;
  if (plan.has_gamma()) gamma = vector_in(of_gamma, dtype, {plan.subject, "gamma"}, device);
  if (plan.has_beta()) beta = vector_in(of_beta, dtype, {plan.subject, "beta"}, device);
}

LayerOperands::LayerOperands(const LinearPlan& plan, const TorchWeight& of_weight, const TorchTensor& of_bias,
                             const TorchRun& run) {
  const Device device = run.device();
  if (of_weight.is_codes()) {
    const Float8Weight given(plan, WeightReader::output, *of_weight.tensor, *of_weight.scale_inv, device);
    codes = given.for_output(run.backend(), run.stream(), made);
  } else {
    weight = operand_of(*of_weight.tensor, {plan.subject, "weight"}, device);
  }
  if (plan.shape.bias) bias = operand_of(of_bias, {plan.subject, "bias"}, device);
}

NormGradients::NormGradients(const NormLinearPlan& plan, bool wanted, const TorchTensor& grad_output,
                             const TorchTensor& of_gamma, Device device)
    : input(wanted, sizes_of_input(plan.linear, grad_output), plan.linear.dtypes.input, device),
      gamma(wanted && plan.has_gamma(), features(plan.linear), dtype_of_norm(plan, of_gamma), device),
      beta(wanted && plan.has_beta(), features(plan.linear), dtype_of_norm(plan, of_gamma), device) {}

std::int64_t asked(std::int64_t wants, std::int64_t weight, const TorchTensor& main_grad) {
  if ((wants & kAsksEngine) == 0 || (wants & weight) == 0 || !main_grad.given()) return wants;
  namespace nb = nanobind;
  const nb::gil_scoped_acquire lock;
  const nb::object ask = nb::module_::import_("ingot.torch._main_grad").attr("engine_wants");
  const nb::object answer = ask(reinterpret_cast<std::uintptr_t>(main_grad.data()));
  if (answer.is_none()) {
    throw Error(ErrorCode::invalid_argument, "main_grad",
                "cannot be told apart in a compiled graph, where gradients of some weights are asked for and of others "
                "not: ask for all or none of them, or do not compile");
  }
  return nb::cast<bool>(answer) ? wants : wants & ~weight;
}

Tensor main_grad_of(const LinearPlan& plan, const TorchTensor& tensor, Device device) {
  const TensorName name{plan.subject, "main_grad"};
  const TorchMatrix matrix = operand_of(tensor, name, device);
  if (matrix.copy.handle() != nullptr) {
    throw Error(ErrorCode::invalid_argument, name.text(),
                "has rows that are not contiguous: give the weight one of ordinary strides");
  }
  return matrix.view;
}

LayerGradients::LayerGradients(const LinearPlan& plan, bool wants_weight, bool wants_bias, Device device,
                               const TorchTensor& main_grad)
    : weight(wants_weight && !main_grad.given(), std::array{plan.shape.out_features, plan.shape.in_features},
             *plan.dtypes.weight, device),
      bias(wants_bias, std::array{plan.shape.out_features}, *plan.dtypes.bias, device) {
  if (wants_weight && main_grad.given()) weight.view = main_grad_of(plan, main_grad, device);
}

void LayerGradients::clear_weight(Backend& backend, Stream& stream) const {
  const Tensor& view = weight.view;
  if (view.empty()) return;
  backend.device_api().fill_zero(view.data, static_cast<std::size_t>(view.rows * view.cols * size_of(view.dtype)),
                                 stream);
}

WeightOfBackward::WeightOfBackward(const LinearPlan& plan, bool wanted, const TorchWeight& of_weight,
                                   const MemoryRegion& codes_memory, bool casts_again, const TorchRun& run) {
  const Device device = run.device();
  if (!wanted) return;
  if (of_weight.is_codes()) {
    const Float8Weight given(plan, WeightReader::grad_input, *of_weight.tensor, *of_weight.scale_inv, device);
    made = TorchRegion(given.transposed_bytes(), device);
    codes = given.for_grad_input(run.backend(), run.stream(), made.region().data);
  } else if (plan.grad_input_reads_weight()) {
    matrix = operand_of(*of_weight.tensor, {plan.subject, "weight"}, device);
  } else if (casts_again) {
    const TorchMatrix weight = operand_of(*of_weight.tensor, {plan.subject, "weight"}, device);
    made = TorchRegion(plan.weight_memory().bytes, device);
    codes = cast_weight(plan, run.backend(), {.weight = weight.view, .into = made.region()}, run.run());
  } else {
    codes = weight_codes(plan, codes_memory, device);
  }
}

}  // namespace ingot::python
