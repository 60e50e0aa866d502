// The operators of two or three linear layers that share their input (q, k and v; gate and up), perhaps after a norm:
// the first layer casts the input, or the norm's values, and the others take its codes (linear_functions.h,
// norm_linear_functions.h).
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "ingot/codegen/types/spec_hash.h"
#include "ingot/nn/linear/memory_places.h"
#include "ingot/nn/modules/module_plans.h"
#include "ingot/nn/modules/norm_linear_functions.h"
#include "module.h"
#include "torch_ops/torch_module_plans.h"
#include "torch_ops/torch_module_tensors.h"

namespace ingot::python {
namespace {

namespace nb = nanobind;

// ---- plan ----------------------------------------------------------------------------------------------------------

constexpr std::size_t kMostLayers = 3;

// Where each layer's own region begins in the memory that a forward leaves.
struct SharedSavedMemory {
  std::array<std::size_t, kMostLayers> begin{};
  std::array<std::size_t, kMostLayers> size{};
  std::size_t bytes = 0;
};

struct SharedLinearPlan {
  NormLinearPlan first;
  std::vector<LinearPlan> others;
  std::uint64_t identity = 0;

  std::size_t count() const { return 1 + others.size(); }
  const LinearPlan& layer(std::size_t at) const { return at == 0 ? first.linear : others[at - 1]; }

  SharedSavedMemory saved_memory(std::int64_t tokens) const {
    SharedSavedMemory memory;
    MemoryPlaces places;
    for (std::size_t at = 0; at < count(); ++at) {
      memory.size[at] = at == 0 ? first.saved_memory(tokens).bytes : others[at - 1].saved_memory(tokens).bytes;
      memory.begin[at] = places.region(memory.size[at]);
    }
    memory.bytes = places.bytes();
    return memory;
  }
  TorchCodesSizes codes_sizes() const {
    TorchCodesSizes sizes{};
    for (std::size_t at = 0; at < count(); ++at) sizes[at] = layer(at).weight_memory().bytes;
    return sizes;
  }
};

using SharedModule = TorchModule<SharedLinearPlan>;

using SharedWeights = std::array<TorchWeight, kMostLayers>;

template <class Arguments>
SharedWeights shared_weights_of(Arguments& all) {
  return {TorchWeight{&all.template tensor<"weight0">(), &all.template tensor<"weight0_scale_inv">()},
          TorchWeight{&all.template tensor<"weight1">(), &all.template tensor<"weight1_scale_inv">()},
          TorchWeight{&all.template tensor<"weight2">(), &all.template tensor<"weight2_scale_inv">()}};
}

// ---- forward -------------------------------------------------------------------------------------------------------

// One forward's memory and tensors.
struct Forward {
  const SharedLinearPlan& plan;
  TorchCall& call;
  const TorchMatrix& input;
  const TorchKept& kept;
  SharedSavedMemory places;
  bool keeps;

  MemoryRegion saved(std::size_t at) const { return part_of(kept.saved(), places.begin[at], places.size[at]); }
};

void forward_of_first(const Forward& run, const NormOperands& norm, const LayerOperands& operands,
                      const TorchResult& output, const MemoryRegion& scratch) {
  LinearSaved saved{.memory = run.saved(0)};
  NormLinearForwardTensors tensors{.input = run.input.view,
                                   .gamma = norm.gamma.view,
                                   .beta = norm.beta.view,
                                   .weight = operands.weight.view,
                                   .bias = operands.bias.view,
                                   .output = output.view,
                                   .codes = operands.codes,
                                   .scales = run.call.scales(run.plan.first.linear),
                                   .saved = run.keeps ? &saved : nullptr,
                                   .scratch = scratch};
  if (const MemoryRegion codes = run.kept.codes(0); codes.bytes > 0) tensors.weight_into = codes;
  norm_linear_forward(run.plan.first, run.call.backend(), tensors, run.call.run());
}

void forward_of_other(const Forward& run, std::size_t at, const LayerOperands& operands, const TorchResult& output,
                      const MemoryRegion& scratch_of_first) {
  const LinearPlan& layer = run.plan.layer(at);
  const std::int64_t tokens = run.input.view.rows;
  const Device device = run.call.device();
  const MemoryRegion first = run.saved(0);
  const Tensor values = norm_linear_input_values(run.plan.first, tokens, first, scratch_of_first, device);
  LinearSaved saved{.memory = run.saved(at)};
  const LinearPass pass = run.keeps ? LinearPass::training : LinearPass::inference;
  const TorchRegion scratch(layer.forward_scratch(tokens, pass, run.call.observes_values()).bytes, device);
  LinearForwardTensors tensors{.input = values.data != nullptr ? values : run.input.view,
                               .weight = operands.weight.view,
                               .bias = operands.bias.view,
                               .output = output.view,
                               .codes = operands.codes,
                               .scales = run.call.scales(layer, static_cast<std::int64_t>(at)),
                               .saved = run.keeps ? &saved : nullptr,
                               .scratch = scratch.region()};
  if (const MemoryRegion codes = run.kept.codes(at); codes.bytes > 0) tensors.weight_into = codes;
  if (layer.given_input.any) {
    tensors.given_input = norm_linear_input_codes(run.plan.first, tokens, first, scratch_of_first, device);
  }
  linear_forward(layer, run.call.backend(), tensors, run.call.run());
}

// Returns three outputs, the third none if there are two layers, and what backward needs. All layers cast the input
// with the first layer's scale.
void forward(TorchArgumentsOf<kSharedLinearForward>& all) {
  const SharedWeights weights = shared_weights_of(all);
  const std::array<const TorchTensor*, kMostLayers> biases{&all.tensor<"bias0">(), &all.tensor<"bias1">(),
                                                           &all.tensor<"bias2">()};
  const std::array<TorchTensor*, kMostLayers> results{&all.result<"output0">(), &all.result<"output1">(),
                                                      &all.result<"output2">()};
  const SharedModule& of = all.plan(plans_of<SharedModule>(), all.integer<"plan">());
  const std::int64_t keep = all.integer<"keep">();
  const SharedLinearPlan& plan = of.plan;
  const TorchMatrix input = matrix_of(all.tensor<"input">(), {plan.first.subject, "input"});
  TorchCall call(input.view.device, all, input.view.rows);
  const auto layers = static_cast<std::int64_t>(plan.count());
  call.use(delayed_scales(all), layers, plan.first.subject);
  const Device device = call.device();
  const std::int64_t tokens = input.view.rows;
  const bool keeps = (keep & kKeepSaved) != 0;

  TorchKept kept(of.kept(tokens, weights), keeps, (keep & kKeepCodes) != 0, device);
  const Forward run{plan, call, input, kept, keeps ? plan.saved_memory(tokens) : SharedSavedMemory{}, keeps};
  const LinearPass pass = keeps ? LinearPass::training : LinearPass::inference;
  // The first layer's scratch holds the codes that the others read.
  const TorchRegion scratch(plan.first.forward_scratch(tokens, pass, run.call.observes_values()).bytes, device);
  const NormOperands norm(plan.first, all.tensor<"gamma">(), all.tensor<"beta">(), device);
  for (std::size_t at = 0; at < plan.count(); ++at) {
    const LinearPlan& layer = plan.layer(at);
    const LayerOperands operands(layer, weights[at], *biases[at], call);
    TorchResult output(true, sizes_with_last(all.tensor<"input">().sizes(), layer.shape.out_features),
                       *layer.dtypes.output, device);
    if (at == 0) {
      forward_of_first(run, norm, operands, output, scratch.region());
    } else {
      forward_of_other(run, at, operands, output, scratch.region());
    }
    *results[at] = std::move(output.tensor);
  }
  all.result<"saved">() = std::move(kept).publish();
  call.note(all, all.result<"saved">());
}

// ---- backward ------------------------------------------------------------------------------------------------------

// The arguments, those of layers by their places.
struct BackwardArguments {
  explicit BackwardArguments(TorchArgumentsOf<kSharedLinearBackward>& all)
      : grad_outputs{&all.tensor<"grad_output0">(), &all.tensor<"grad_output1">(), &all.tensor<"grad_output2">()},
        weights(shared_weights_of(all)),
        main_grads{&all.tensor<"main_grad0">(), &all.tensor<"main_grad1">(), &all.tensor<"main_grad2">()},
        input(all.tensor<"input">()),
        gamma(all.tensor<"gamma">()),
        saved(all.tensor<"saved">()) {}

  std::array<const TorchTensor*, kMostLayers> grad_outputs;
  SharedWeights weights;
  std::array<const TorchTensor*, kMostLayers> main_grads;
  const TorchTensor &input, &gamma;
  TorchTensor& saved;
};

// One backward's memory and tensors.
struct Backward {
  const SharedLinearPlan& plan;
  TorchCall& call;
  const BackwardArguments& arguments;
  std::int64_t tokens;
  std::int64_t wants;
  SharedSavedMemory places;
  TorchKept kept;
  bool casts_whole_weights_again = false;
  TorchMatrix input{};

  bool wants_input() const { return (wants & (kInput | kGamma)) != 0; }
  bool wants_weight(std::size_t at) const { return (wants & weight_bit(at)) != 0; }
  bool accumulates(std::size_t at) const { return wants_weight(at) && arguments.main_grads[at]->given(); }
  bool wants_bias(std::size_t at) const { return (wants & bias_bit(at)) != 0; }
  MemoryRegion saved(std::size_t at) const { return part_of(kept.saved(), places.begin[at], places.size[at]); }
  LinearSaved stamped(std::size_t at, std::uint64_t identity) const {
    return {.memory = saved(at), .plan = identity, .tokens = tokens, .kept = true};
  }
  TorchMatrix grad_output(std::size_t at) const {
    return operand_of(*arguments.grad_outputs[at], {plan.layer(at).subject, "grad_output"}, call.device());
  }
};

void backward_of_first(const Backward& run, NormGradients& norm, const Tensor& grad_input, LayerGradients& gradients,
                       const Tensor& grad_values) {
  const NormLinearPlan& plan = run.plan.first;
  const Device device = run.call.device();
  const LinearSaved saved = run.stamped(0, plan.identity);
  const LinearGradients wants{.input = run.wants_input(), .weight = run.wants_weight(0), .bias = run.wants_bias(0)};
  const TorchMatrix grad_output = run.grad_output(0);
  const WeightOfBackward weight(plan.linear, wants.input, run.arguments.weights[0], run.kept.codes(0),
                                run.casts_whole_weights_again, run.call);
  TorchMatrix gamma;
  if (plan.has_gamma() && wants.input) {
    gamma = vector_in(run.arguments.gamma, plan.linear.dtypes.input, {plan.subject, "gamma"}, device);
  }
  const TorchRegion scratch(plan.backward_scratch(run.tokens, wants, run.call.observes_values()).bytes, device);
  norm_linear_backward(plan, run.call.backend(),
                       {.saved = &saved,
                        .grad_output = grad_output.view,
                        .grad_input = grad_input,
                        .grad_gamma = norm.gamma.view,
                        .grad_beta = norm.beta.view,
                        .grad_weight = gradients.weight.view,
                        .grad_bias = gradients.bias.view,
                        .accumulate = run.accumulates(0),
                        .input = run.input.view,
                        .gamma = gamma.view,
                        .weight = weight.matrix.view,
                        .codes = weight.codes,
                        .scales = run.call.scales(plan.linear),
                        .scratch = scratch.region(),
                        .grad_values = grad_values},
                       run.call.run());
}

// Adds to the gradient of the values; the last layer writes it.
void backward_of_other(const Backward& run, std::size_t at, const Tensor& grad_input, LayerGradients& gradients) {
  const LinearPlan& layer = run.plan.layer(at);
  const Device device = run.call.device();
  const LinearSaved saved = run.stamped(at, layer.identity);
  const LinearGradients wants{.input = run.wants_input(), .weight = run.wants_weight(at), .bias = run.wants_bias(at)};
  const TorchMatrix grad_output = run.grad_output(at);
  const WeightOfBackward weight(layer, wants.input, run.arguments.weights[at], run.kept.codes(at),
                                run.casts_whole_weights_again, run.call);
  const Tensor values = norm_linear_input_values(run.plan.first, run.tokens, run.saved(0), {}, device);
  const TorchRegion scratch(layer.backward_scratch(run.tokens, wants, run.call.observes_values()).bytes, device);
  LinearBackwardTensors tensors{.saved = &saved,
                                .grad_output = grad_output.view,
                                .grad_input = grad_input,
                                .grad_input_of_others = at + 1 < run.plan.count() ? grad_input : Tensor{},
                                .grad_weight = gradients.weight.view,
                                .grad_bias = gradients.bias.view,
                                .accumulate = run.accumulates(at),
                                .input = values.data != nullptr ? values : run.input.view,
                                .weight = weight.matrix.view,
                                .codes = weight.codes,
                                .scales = run.call.scales(layer, static_cast<std::int64_t>(at)),
                                .scratch = scratch.region()};
  if (layer.given_input.any && wants.weight) {
    tensors.given_input = norm_linear_input_codes(run.plan.first, run.tokens, run.saved(0), {}, device);
  }
  linear_backward(layer, run.call.backend(), tensors, run.call.run());
}

// Returns the gradients of input, gamma, beta and of each layer's weight and bias; those that are not wanted are none,
// and so are those of weights that are added to a main_grad.
void backward(TorchArgumentsOf<kSharedLinearBackward>& all) {
  const BackwardArguments arguments(all);
  const SharedModule& of = all.plan(plans_of<SharedModule>(), all.integer<"plan">());
  const SharedLinearPlan& plan = of.plan;
  const NormLinearPlan& first = plan.first;
  const TorchMatrix first_grad = matrix_of(*arguments.grad_outputs[0], {first.linear.subject, "grad_output"});
  TorchCall call(first_grad.view.device, all, first_grad.view.rows);
  const Device device = call.device();
  const std::int64_t tokens = first_grad.view.rows;
  std::int64_t wants = all.integer<"wants">();
  for (std::size_t at = 0; at < kMostLayers; ++at) wants = asked(wants, weight_bit(at), *arguments.main_grads[at]);
  const auto layers = static_cast<std::int64_t>(plan.count());
  call.use(delayed_scales(all), layers, first.subject);
  const bool wants_input = (wants & (kInput | kGamma)) != 0;
  const TorchKeptSize size = of.kept(tokens, arguments.weights);
  const bool needs_codes =
      wants_input && size.all_codes() > 0 && !first.linear.grad_input_reads_weight() && !of.casts_whole_weights_again;
  Backward run{plan,
               call,
               arguments,
               tokens,
               wants,
               plan.saved_memory(tokens),
               TorchKept(std::move(arguments.saved), size, needs_codes, {first.subject, "saved"}, device),
               of.casts_whole_weights_again};
  const bool wants_weight = run.wants_weight(0) || run.wants_weight(1) || run.wants_weight(2);
  if (first.backward_reads_input({.input = wants_input, .weight = wants_weight, .bias = false})) {
    run.input = operand_of(arguments.input, {first.subject, "input"}, device);
  }

  NormGradients norm(first, wants_input, *arguments.grad_outputs[0], arguments.gamma, device);
  std::vector<LayerGradients> gradients;
  gradients.reserve(kMostLayers);
  for (std::size_t at = 0; at < kMostLayers; ++at) {
    const bool is_layer = at < plan.count();
    gradients.emplace_back(plan.layer(is_layer ? at : 0), is_layer && run.wants_weight(at),
                           is_layer && run.wants_bias(at), device, *arguments.main_grads[at]);
  }
  // The gradient of the shared values, to which layers add theirs from the last to the first, in the order of autograd.
  // Without a norm it is the input's.
  const bool flows_on = wants_input && first.norm.has_value();
  const TorchResult behind_norm(flows_on, flows_on ? norm.input.tensor.sizes() : std::span<const std::int64_t>{},
                                first.linear.dtypes.input, device);
  const Tensor grad_values = first.norm ? behind_norm.view : norm.input.view;
  for (std::size_t at = plan.count() - 1; at > 0; --at) backward_of_other(run, at, grad_values, gradients[at]);
  backward_of_first(run, norm, norm.input.view, gradients[0], grad_values);
  if ((wants & kInput) != 0) all.result<"grad_input">() = std::move(norm.input.tensor);
  all.result<"grad_gamma">() = std::move(norm.gamma.tensor);
  all.result<"grad_beta">() = std::move(norm.beta.tensor);
  all.result<"grad_weight0">() = std::move(gradients[0].weight.tensor);
  all.result<"grad_bias0">() = std::move(gradients[0].bias.tensor);
  all.result<"grad_weight1">() = std::move(gradients[1].weight.tensor);
  all.result<"grad_bias1">() = std::move(gradients[1].bias.tensor);
  all.result<"grad_weight2">() = std::move(gradients[2].weight.tensor);
  all.result<"grad_bias2">() = std::move(gradients[2].bias.tensor);
}

constexpr std::array kSharedOperators{kTorchOperator<kSharedLinearForward, forward>,
                                      kTorchOperator<kSharedLinearBackward, backward>};

SharedLinearPlan shared_plan(const ModuleText& module) {
  SharedLinearPlan plan;
  plan.first =
      norm_linear_plan({.linear = module.options(0), .norm = module.norm_options(), .subject = module.subject});
  plan.identity = plan.first.identity;
  for (std::size_t at = 1; at < module.layers.size(); ++at) {
    LinearPlanOptions options = module.options(at);
    options.given_input = true;
    plan.others.push_back(linear_plan(options));
    plan.identity = mix(plan.identity + 1) + plan.others.back().identity;
  }
  return plan;
}

nb::tuple add_shared_plan(const ModuleText& module) {
  if (module.layers.size() < 2 || module.layers.size() > kMostLayers) {
    throw Error(ErrorCode::invalid_argument, module.subject,
                "has " + std::to_string(module.layers.size()) + " layers, but two or three can share an input");
  }
  SharedLinearPlan plan = shared_plan(module);
  const TorchCodesSizes codes = plan.codes_sizes();
  const std::uint64_t identity = plan.identity;
  const bool casts_again = casts_whole_again(plan.first.linear, module.weight_again);
  const ReadAgain reads{.input_for_input = plan.first.norm.has_value(),
                        .input_for_weight = plan.first.backward_reads_input({.input = false, .bias = false}),
                        .weight = plan.first.linear.grad_input_reads_weight()};
  std::vector<std::string> sizes;
  for (std::size_t at = 0; at < plan.count(); ++at) sizes.push_back(module.sizes(at));
  return add_module(identity, SharedModule(std::move(plan), codes, casts_again), std::move(sizes), reads);
}

const TorchFamily kSharedFamily(kSharedOperators, [](nb::module_& module) {
  bind_module(module, "shared_linear", plans_of<SharedModule>(), &add_shared_plan);
});

}  // namespace
}  // namespace ingot::python
