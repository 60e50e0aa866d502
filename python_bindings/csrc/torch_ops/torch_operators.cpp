// The operators torch.ops.ingot.*, for the CPU and for CUDA: a linear layer's forward and backward
// (nn/linear_functions.h). Autograd and fake kernels are Python's (ingot/torch).
#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "arrays/arrays.h"
#include "ingot/nn/linear/linear_functions.h"
#include "ingot/nn/recipe/recipes.h"
#include "ingot/runtime/backend.h"
#include "module.h"
#include "torch_abi/torch_float8_weight.h"
#include "torch_abi/torch_library.h"
#include "torch_abi/torch_memory.h"
#include "torch_abi/torch_streams.h"
#include "torch_ops/torch_module_plans.h"
#include "torch_ops/torch_module_tensors.h"
#include "torch_ops/torch_operator.h"
#include "torch_ops/torch_plans.h"
#include "torch_ops/torch_run.h"

namespace ingot::python {
namespace {

namespace nb = nanobind;
using namespace nb::literals;

// Bits of forward's `keep` and of backward's `wants`.
constexpr std::int64_t kInput = 1;
constexpr std::int64_t kWeight = 2;
constexpr std::int64_t kBias = 4;

TensorName name_of(const TorchPlan& plan, const char* tensor) { return {plan.plan.subject, tensor}; }

void require_device(const TorchPlan& plan, const char* name, const Tensor& tensor, Device device) {
  if (tensor.device == device) return;
  throw Error(ErrorCode::invalid_argument, name_of(plan, name).text(),
              "is on " + print(tensor.device) + ", but the layer runs on " + print(device) + ": move one with .to()");
}

// What a call runs with.
struct Call {
  Call(const TorchPlan& of, Device on, const TorchArguments& arguments, std::int64_t tokens)
      : plan(of.plan),
        device(on),
        where(on, arguments, tokens),
        backend(where.backend()),
        stream(where.stream()),
        scales(where.constants(plan)) {}

  // Scales of the caller beside the constants.
  template <class Given>
  void give(Given& given) {
    const Tensor one = scales.one;
    given.place(*this);
    scales = given.scales;
    scales.one = one;
  }

  const LinearPlan& plan;
  Device device;
  TorchRun where;
  Backend& backend;
  Stream& stream;
  LinearScales scales;
};

// Scales that the caller gives, f32 of one element, and maxima of what is cast with them.
class GivenScales {
 public:
  explicit GivenScales(std::size_t count) : count_(count) {}

  void add(LinearScale& scale, const char* name, const TorchTensor& tensor) {
    if (next_ == count_) throw Error(ErrorCode::invalid_argument, name, "is one scale too many");
    tensors_[next_++] = {&scale, name, &tensor};
  }
  // Clears the maxima and places them; `scales` are those that were added.
  void place(const Call& call) {
    const std::array<std::int64_t, 1> sizes{static_cast<std::int64_t>(count_)};
    amaxes_ = TorchTensor::empty(sizes, torch_dtype(Dtype::f32), call.device);
    auto* amax = static_cast<float*>(amaxes_.data());
    call.backend.fill_zero(amax, count_ * sizeof(float), call.stream);
    for (std::size_t at = 0; at < next_; ++at) {
      const Given& each = tensors_[at];
      std::int64_t elements = 1;
      for (const std::int64_t size : each.tensor->sizes()) elements *= size;
      if (elements != 1 || each.tensor->dtype() != Dtype::f32 || each.tensor->device() != call.device) {
        throw Error(ErrorCode::invalid_argument, TensorName{call.plan.subject, each.name}.text(),
                    "must be float32 of one element on the layer's device");
      }
      *each.scale = {.scale = vector(each.tensor->data(), Dtype::f32, 1, call.device),
                     .amax = vector(amax + at, Dtype::f32, 1, call.device)};
    }
  }

  LinearScales scales{};
  TorchTensor& amaxes() { return amaxes_; }

 private:
  struct Given {
    LinearScale* scale = nullptr;
    const char* name = "";
    const TorchTensor* tensor = nullptr;
  };

  std::size_t count_;
  std::size_t next_ = 0;
  std::array<Given, 2> tensors_{};
  TorchTensor amaxes_{};
};

struct ForwardArguments {
  TorchArguments& all;
  const TorchTensor& input;
  const TorchTensor& weight;
  const TorchTensor* bias;
  std::int64_t plan;
  std::int64_t keep;
  GivenScales* given = nullptr;
  const TorchTensor* factor = nullptr;  // of a weight in FP8
};

// Returns output, saved and codes. Saved memory is kept for the gradient of the weight, codes for that of the input.
void forward(TorchValue* stack, const ForwardArguments& arguments) {
  const TorchPlan& plan = arguments.all.plan(torch_plans(), arguments.plan);
  const TorchMatrix input = matrix_of(arguments.input, name_of(plan, "input"));
  std::optional<Float8Weight> float8;
  TorchMatrix weight;
  if (arguments.factor != nullptr) {
    float8.emplace(plan.plan, arguments.weight, *arguments.factor, input.view.device);
  } else {
    weight = matrix_of(arguments.weight, name_of(plan, "weight"));
    require_device(plan, "weight", weight.view, input.view.device);
  }
  const std::int64_t tokens = input.view.rows;
  Call call(plan, input.view.device, arguments.all, tokens);
  if (arguments.given != nullptr) call.give(*arguments.given);
  const bool keeps_saved = (arguments.keep & kWeight) != 0;

  TorchTensor output = TorchTensor::empty(sizes_with_last(arguments.input.sizes(), plan.plan.shape.out_features),
                                          torch_dtype(*plan.plan.dtypes.output), call.device);
  TorchRegion codes(float8 ? 0 : plan.weight_bytes, call.device);
  TorchRegion saved_memory(keeps_saved ? plan.saved_bytes(tokens) : 0, call.device);
  LinearSaved saved{.memory = saved_memory.region()};
  const LinearPass pass = keeps_saved ? LinearPass::training : LinearPass::inference;
  const std::size_t scratch_bytes = plan.plan.forward_scratch(tokens, pass, call.where.observes_values()).bytes;
  const StreamBlock scratch = call.stream.call_scratch(scratch_bytes);
  LinearForwardTensors tensors{
      .input = input.view,
      .weight = weight.view,
      .output = matrix(output.data(), *plan.plan.dtypes.output, tokens, plan.plan.shape.out_features, call.device),
      .scales = call.scales,
      .saved = keeps_saved ? &saved : nullptr,
      .scratch = {scratch.data(), scratch_bytes}};
  TorchMatrix bias;
  if (arguments.bias != nullptr && plan.plan.shape.bias) {
    bias = matrix_of(*arguments.bias, name_of(plan, "bias"));
    tensors.bias = bias.view;
  }
  TorchSide side(call.where, faster_with_side(plan.plan, tokens) && !float8 && plan.weight_bytes > 0);
  if (float8) {
    tensors.codes = float8->for_output();
  } else if (plan.weight_bytes > 0) {
    cast_weight_beside(plan.plan, call.backend, codes.region(), side, tensors);
  }
  linear_forward(plan.plan, call.backend, tensors, call.where.run());

  TorchTensor kept = std::move(saved_memory).publish();
  TorchTensor kept_codes =
      (arguments.keep & kInput) != 0 ? std::move(codes).publish() : TorchTensor::empty_bytes(0, call.device);
  call.where.note(arguments.all, kept);
  call.where.note(arguments.all, kept_codes);
  give(stack, {&output, &kept, &kept_codes});
}

void linear_forward_operator(TorchArguments& all, TorchValue* stack) {
  forward(stack, {all, all[0], all[1], nullptr, all.integer(2), all.integer(3)});
}

void linear_forward_bias_operator(TorchArguments& all, TorchValue* stack) {
  forward(stack, {all, all[0], all[1], &all[2], all.integer(3), all.integer(4)});
}

// The same with scales that the caller gives for input and weight where the plan has delayed ones, and returns as well
// the maxima of both. What the plan lacks has any tensor in its place.
void linear_forward_scaled_operator(TorchArguments& all, TorchValue* stack) {
  GivenScales given(2);
  given.add(given.scales.input, "scale of input", all[3]);
  given.add(given.scales.weight, "scale of weight", all[4]);
  forward(stack, {all, all[0], all[1], &all[2], all.integer(5), all.integer(6), &given});
  give(stack + 3, {&given.amaxes()});
}

// The same for a weight in FP8. Its codes are the caller's, so nothing of it is kept: returns output and saved.
void linear_forward_float8_operator(TorchArguments& all, TorchValue* stack) {
  std::array<TorchValue, 3> results{};
  forward(results.data(), {all, all[0], all[1], &all[3], all.integer(4), all.integer(5) & kWeight, nullptr, &all[2]});
  const TorchTensor no_codes(std::bit_cast<TorchHandle>(results[2]));
  stack[0] = results[0];
  stack[1] = results[1];
}

struct BackwardArguments {
  TorchArguments& all;
  const TorchTensor& grad_output;
  const TorchTensor& input;  // read only if the plan reads it again, and so the weight
  const TorchTensor& weight;
  TorchTensor& saved;
  TorchTensor* codes;
  GivenScales* given = nullptr;
  const TorchTensor* factor = nullptr;  // of a weight in FP8
};

void require_bytes(const TorchPlan& plan, const char* name, const MemoryRegion& region, std::size_t bytes) {
  if (region.bytes == bytes) return;
  throw Error(ErrorCode::invalid_argument, name_of(plan, name).text(),
              "has " + std::to_string(region.bytes) + " bytes, but a forward of this plan and size leaves " +
                  std::to_string(bytes) + ": give what that forward returned");
}

// The gradients that are wanted, and empty tensors in the place of the others.
class Gradients {
 public:
  // Without makes_weight the caller gives the gradient of the weight.
  Gradients(const LinearPlan& plan, const LinearGradients& wants, const TorchTensor& grad_output, Device device,
            bool makes_weight) {
    const LinearShape& shape = plan.shape;
    const std::int64_t tokens = tokens_of(grad_output);
    const std::array<std::int64_t, 2> weight_sizes{shape.out_features, shape.in_features};
    const std::array<std::int64_t, 1> bias_sizes{shape.out_features};
    const auto make = [&](bool wanted, std::span<const std::int64_t> sizes, Dtype dtype) {
      return wanted ? TorchTensor::empty(sizes, torch_dtype(dtype), device) : TorchTensor::empty_bytes(0, device);
    };
    const auto view = [&](const TorchTensor& of, std::int64_t rows, std::int64_t cols, Dtype dtype) {
      return matrix(of.data(), dtype, rows, cols, device);
    };
    input = make(wants.input, sizes_with_last(grad_output.sizes(), shape.in_features), plan.dtypes.input);
    weight = make(wants.weight && makes_weight, weight_sizes, *plan.dtypes.weight);
    bias = make(wants.bias, bias_sizes, *plan.dtypes.bias);
    if (wants.input) input_view = view(input, tokens, shape.in_features, plan.dtypes.input);
    if (wants.weight && makes_weight)
      weight_view = view(weight, shape.out_features, shape.in_features, *plan.dtypes.weight);
    if (wants.bias) bias_view = view(bias, 1, shape.out_features, *plan.dtypes.bias);
  }

  TorchTensor input, weight, bias;
  Tensor input_view{}, weight_view{}, bias_view{};
};

// The weight for grad_input: its codes, or the weight itself where the plan reads it again.
struct WeightOperand {
  WeightOperand(const TorchPlan& plan, const BackwardArguments& arguments, const Call& call,
                LinearBackwardTensors& tensors) {
    const Device device = call.device;
    if (plan.reads_weight()) {
      matrix = matrix_of(arguments.weight, name_of(plan, "weight"));
      if (!plan.casts_whole_weight_again) {
        tensors.weight = matrix.view;
        return;
      }
      require_device(plan, "weight", matrix.view, device);
      codes = TorchRegion(plan.weight_bytes, device);
      tensors.codes =
          cast_weight(plan.plan, call.backend, {.weight = matrix.view, .into = codes.region()}, call.where.run());
    } else if (plan.weight_bytes > 0) {
      codes = TorchRegion(std::move(*arguments.codes), device);
      require_bytes(plan, "codes", codes.region(), plan.weight_bytes);
      tensors.codes = weight_codes(plan.plan, codes.region(), device);
    }
  }

  TorchMatrix matrix{};
  TorchRegion codes{};
};

// The gradients that are wanted: that of the weight is added to main_grad if there is one, else it is a tensor.
Gradients backward(const BackwardArguments& arguments, std::int64_t number, std::int64_t bits,
                   const TorchTensor* main_grad = nullptr) {
  const TorchPlan& plan = arguments.all.plan(torch_plans(), number);
  const bool accumulates = main_grad != nullptr;
  const LinearGradients wants{
      .input = (bits & kInput) != 0, .weight = (bits & kWeight) != 0, .bias = (bits & kBias) != 0};
  const TorchMatrix grad_output = matrix_or_element_of(arguments.grad_output, name_of(plan, "grad_output"));
  const std::int64_t tokens = tokens_of(arguments.grad_output);
  Call call(plan, grad_output.view.device, arguments.all, tokens);
  if (arguments.given != nullptr) call.give(*arguments.given);

  const TorchRegion saved_memory(std::move(arguments.saved), call.device);
  if (wants.weight) require_bytes(plan, "saved", saved_memory.region(), plan.saved_bytes(tokens));
  const LinearSaved saved{.memory = saved_memory.region(), .plan = plan.plan.identity, .tokens = tokens, .kept = true};
  Gradients gradients(plan.plan, wants, arguments.grad_output, call.device, !accumulates);
  if (accumulates) gradients.weight_view = main_grad_of(plan.plan, *main_grad, call.device);
  LinearBackwardTensors tensors{.saved = &saved,
                                .grad_output = grad_output.view,
                                .grad_input = gradients.input_view,
                                .grad_weight = gradients.weight_view,
                                .grad_bias = gradients.bias_view,
                                .accumulate = accumulates,
                                .scales = call.scales};
  TorchMatrix input;
  if (wants.weight && plan.plan.grad_weight_reads_input()) {
    input = matrix_of(arguments.input, name_of(plan, "input"));
    tensors.input = input.view;
  }
  std::optional<WeightOperand> weight;
  TorchRegion transposed;
  if (wants.input && arguments.factor != nullptr) {
    const Float8Weight float8(plan.plan, arguments.weight, *arguments.factor, call.device);
    transposed = TorchRegion(float8.bytes(), call.device);
    tensors.codes = float8.for_grad_input(call.backend, call.stream, transposed.region().data);
  } else if (wants.input) {
    weight.emplace(plan, arguments, call, tensors);
  }
  const bool expands = expands_grad_output(plan.plan, tensors);
  const std::size_t scratch_bytes =
      plan.plan.backward_scratch(tokens, wants, call.where.observes_values(), expands).bytes;
  const StreamBlock scratch = call.stream.call_scratch(scratch_bytes);
  tensors.scratch = {scratch.data(), scratch_bytes};
  TorchSide side(call.where, faster_with_side(plan.plan, tokens) && wants.input && wants.weight,
                 [&] { return multiplies_together(plan.plan, call.backend, tensors); });
  linear_backward(plan.plan, call.backend, tensors, call.where.run(side.stream()));
  return gradients;
}

BackwardArguments backward_arguments(TorchArguments& all, GivenScales* given = nullptr) {
  return {all, all[0], all[1], all[2], all[3], &all[4], given};
}

// Returns grad_input, grad_weight and grad_bias; those that are not wanted are empty.
void linear_backward_operator(TorchArguments& all, TorchValue* stack) {
  Gradients gradients = backward(backward_arguments(all), all.integer(5), all.integer(6));
  give(stack, {&gradients.input, &gradients.weight, &gradients.bias});
}

// The same, but the gradient of the weight is added to main_grad. Returns grad_input and grad_bias.
void linear_backward_into_operator(TorchArguments& all, TorchValue* stack) {
  const std::int64_t wants = asked(all.integer(7), kWeight, all[5]);
  const TorchTensor* const main_grad = (wants & kWeight) != 0 ? &all[5] : nullptr;
  Gradients gradients = backward(backward_arguments(all), all.integer(6), wants, main_grad);
  give(stack, {&gradients.input, &gradients.bias});
}

// The same with scales that the caller gives for grad_output, and for the weight where backward casts it again. Returns
// as well the maxima of both.
void linear_backward_scaled_operator(TorchArguments& all, TorchValue* stack) {
  GivenScales given(2);
  given.add(given.scales.grad_output, "scale of grad_output", all[5]);
  given.add(given.scales.weight, "scale of weight", all[6]);
  Gradients gradients = backward(backward_arguments(all, &given), all.integer(7), all.integer(8));
  give(stack, {&gradients.input, &gradients.weight, &gradients.bias, &given.amaxes()});
}

// The same for a weight in FP8.
void linear_backward_float8_operator(TorchArguments& all, TorchValue* stack) {
  const BackwardArguments arguments{all, all[0], all[1], all[2], all[4], nullptr, nullptr, &all[3]};
  Gradients gradients = backward(arguments, all.integer(5), all.integer(6));
  give(stack, {&gradients.input, &gradients.weight, &gradients.bias});
}

constexpr std::array kOperators{
    kTorchOperator<linear_forward_operator,
                   "linear_forward(Tensor input, Tensor weight, int plan, int keep) -> (Tensor, Tensor, Tensor)">,
    kTorchOperator<linear_forward_bias_operator,
                   "linear_forward_bias(Tensor input, Tensor weight, Tensor bias, int plan, int keep)"
                   " -> (Tensor, Tensor, Tensor)">,
    kTorchOperator<linear_backward_operator,
                   "linear_backward(Tensor grad_output, Tensor input, Tensor weight, Tensor saved, Tensor codes,"
                   " int plan, int wants) -> (Tensor, Tensor, Tensor)">,
    kTorchOperator<linear_forward_scaled_operator,
                   "linear_forward_scaled(Tensor input, Tensor weight, Tensor bias, Tensor scale_input,"
                   " Tensor scale_weight, int plan, int keep) -> (Tensor, Tensor, Tensor, Tensor)">,
    kTorchOperator<linear_backward_scaled_operator,
                   "linear_backward_scaled(Tensor grad_output, Tensor input, Tensor weight, Tensor saved, Tensor codes,"
                   " Tensor scale_grad_output, Tensor scale_weight, int plan, int wants)"
                   " -> (Tensor, Tensor, Tensor, Tensor)">,
    kTorchOperator<linear_backward_into_operator,
                   "linear_backward_into(Tensor grad_output, Tensor input, Tensor weight, Tensor saved, Tensor codes,"
                   " Tensor(a!) main_grad, int plan, int wants) -> (Tensor, Tensor)">,
    kTorchOperator<linear_forward_float8_operator,
                   "linear_forward_float8(Tensor input, Tensor weight, Tensor factor, Tensor bias, int plan, int keep)"
                   " -> (Tensor, Tensor)">,
    kTorchOperator<linear_backward_float8_operator,
                   "linear_backward_float8(Tensor grad_output, Tensor input, Tensor weight, Tensor factor,"
                   " Tensor saved, int plan, int wants) -> (Tensor, Tensor, Tensor)">};

void accept(std::int32_t code, const std::string& what) {
  if (code != 0) throw Error(ErrorCode::invalid_argument, what, "PyTorch refused the operator: are there two Ingots?");
}

void implement(TorchLibraryOpaque* library, const TorchOperator& each) {
  const TorchFunctions& torch = torch_functions();
  const std::string name = each.name();
  const bool versioned = torch.implement_versioned != nullptr;
  accept(versioned ? torch.implement_versioned(library, name.c_str(), each.kernel, torch.version())
                   : torch.implement(library, name.c_str(), each.kernel),
         name);
}

void register_all() {
  const TorchFunctions& torch = torch_functions();
  TorchLibraryOpaque* library = nullptr;  // as long as the process: an operator is never taken back
  accept(torch.library_fragment("ingot", __FILE__, __LINE__, &library), "torch.ops.ingot");
  const std::array<std::span<const TorchOperator>, 9> families{
      {kOperators, float8_operators(), split_linear_operators(), weight_only_operators(), frozen_linear_operators(),
       norm_linear_operators(), mlp_operators(), shared_linear_operators(), gated_linear_operators()}};
  for (const auto& family : families) {
    for (const TorchOperator& each : family) accept(torch.define(library, each.schema.data()), each.name());
  }
  for (const char* key : {"CPU", "CUDA"}) {
    accept(torch.library_kernels("ingot", key, __FILE__, __LINE__, &library), key);
    for (const auto& family : families) {
      for (const TorchOperator& each : family) implement(library, each);
    }
  }
}

void register_once() {
  static std::once_flag once;
  std::call_once(once, register_all);
}

// Returns (number, saved_constant, saved_per_128_tokens, weight_bytes, backward reads input, backward reads weight).
// `weight_again`: backward casts the weight once more, and forward keeps none of its codes.
nb::tuple add_plan(LinearConfig config, std::int64_t in_features, std::int64_t out_features,
                   const std::array<std::optional<std::string>, 3>& dtypes, bool grad_weight, bool weight_again) {
  weight_again = weight_again && is_float8(config.grad_input);
  if (weight_again) config = casting_weight_again(config);
  const auto& [input, weight, bias] = dtypes;
  LinearPlanOptions options{
      .name = placeholder(0),
      .config = config,
      .shape = {.in_features = in_features, .out_features = out_features, .bias = bias.has_value()},
      .dtypes = {.input = dtype_of(input.value_or(""), "input"), .weight = dtype_of(weight.value_or(""), "weight")},
      .grad_weight = grad_weight};
  if (bias) options.dtypes.bias = dtype_of(*bias, "bias");
  TorchPlans& plans = torch_plans();
  const std::int64_t number = plans.add(linear_plan(options), weight_again);
  const TorchPlan& plan = *plans.at(number).plan;
  return nb::make_tuple(number, plan.saved_constant, plan.saved_per_unit, plan.weight_bytes,
                        grad_weight && plan.plan.grad_weight_reads_input(), plan.reads_weight());
}

// How an operand is cast, from its dtype and whether it has a scale for each row; no dtype: it is not.
using CastText = std::pair<std::string, bool>;

// The casts of input, weight and grad_output in the GEMMs that read them first, and then in the others. `given`: is
// the scale of each of these three tensors given by the caller of the operators?
LinearConfig config_of(const std::array<CastText, 6>& casts, bool pow2, const std::array<bool, 3>& fast_accumulation,
                       const std::array<bool, 3>& given) {
  const auto cast = [&](std::size_t at) -> std::optional<Cast> {
    const auto& [dtype, rows] = casts[at];
    if (dtype.empty()) return std::nullopt;
    const bool is_given = given[at % given.size()];
    return Cast{.dtype = dtype_of(dtype, "cast"),
                .granularity = rows ? kRowwise : kTensorwise,
                .pow2 = pow2 && !is_given,
                .scaling = is_given ? Scaling::delayed : Scaling::dynamic};
  };
  LinearConfig config{.output = {.a = cast(0), .b = cast(1), .fast_accumulation = fast_accumulation[0]},
                      .grad_input = {.a = cast(2), .b = cast(4), .fast_accumulation = fast_accumulation[1]},
                      .grad_weight = {.a = cast(5), .b = cast(3), .fast_accumulation = fast_accumulation[2]}};
  for (GemmConfig* gemm : {&config.output, &config.grad_input, &config.grad_weight}) {
    gemm->fast_accumulation = gemm->fast_accumulation && is_float8(*gemm);
  }
  return config;
}

}  // namespace

void bind_torch(nb::module_& module) {
  module.def("torch_register", &register_once);
  module.def("torch_stream_count", [] { return shared_context(Device{}).torch_streams().count(); });
  // Where the blocks of a stream's allocator lie on the CPU, as addresses.
  module.def(
      "torch_allocator_addresses",
      [](const std::vector<std::size_t>& sizes) {
        TorchAllocator allocator(Device{});
        std::vector<std::uintptr_t> addresses;
        addresses.reserve(sizes.size());
        for (const std::size_t bytes : sizes) {
          addresses.push_back(reinterpret_cast<std::uintptr_t>(allocator.allocate(bytes, nullptr)));
        }
        return addresses;
      },
      "sizes"_a);
  // How many bytes an allocator keeps after it has given and got back a block of each size.
  module.def(
      "torch_allocator_keeps",
      [](const std::vector<std::size_t>& sizes) {
        TorchAllocator allocator(Device{});
        std::vector<std::size_t> kept;
        kept.reserve(sizes.size());
        for (const std::size_t bytes : sizes) {
          allocator.release(allocator.allocate(bytes, nullptr), bytes, nullptr);
          kept.push_back(allocator.kept_bytes());
        }
        return kept;
      },
      "sizes"_a);
  module.attr("torch_tokens_per_unit") = TorchPlan::kTokensPerUnit;
  module.attr("torch_many_tokens") = TorchStreams::kManyTokens;
  module.def(
      "torch_linear_plan",
      [](const std::string& recipe_name, std::int64_t in_features, std::int64_t out_features,
         const std::array<std::optional<std::string>, 3>& dtypes, bool grad_weight, bool weight_again) {
        return add_plan(recipe(recipe_name), in_features, out_features, dtypes, grad_weight, weight_again);
      },
      "recipe"_a, "in_features"_a, "out_features"_a, "dtypes"_a, "grad_weight"_a, "weight_again"_a);
  module.def(
      "torch_linear_plan_of_casts",
      [](const std::array<CastText, 6>& casts, bool pow2, const std::array<bool, 3>& fast_accumulation,
         bool weight_again, const std::array<bool, 3>& given, std::int64_t in_features, std::int64_t out_features,
         const std::array<std::optional<std::string>, 3>& dtypes, bool grad_weight) {
        return add_plan(config_of(casts, pow2, fast_accumulation, given), in_features, out_features, dtypes,
                        grad_weight, weight_again);
      },
      "casts"_a, "pow2"_a, "fast_accumulation"_a, "weight_again"_a, "given"_a, "in_features"_a, "out_features"_a,
      "dtypes"_a, "grad_weight"_a);
  // What stands in the place of layers' names in plans' texts.
  module.attr("torch_placeholders") = nb::make_tuple(placeholder(0), placeholder(1), placeholder(2));
  bind_names(module, "torch_name_linear", torch_plans());
}

}  // namespace ingot::python
