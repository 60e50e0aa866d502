// What the operators of modules share: what a call runs with, the memory that a forward leaves for its backward, the
// operands of a norm and of a layer, and the gradients of both.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <string>

#include "ingot/nn/modules/norm_linear_functions.h"
#include "torch_abi/torch_memory.h"
#include "torch_ops/torch_operator.h"
#include "torch_ops/torch_run.h"

namespace ingot::python {

// A contiguous tensor and its view as a matrix; neither if it is not wanted.
struct TorchResult {
  TorchResult(bool wanted, std::span<const std::int64_t> sizes, Dtype dtype, Device device);

  TorchTensor tensor;
  Tensor view{};
};

// A matrix of the call. Throws Error{invalid_argument} if it is on another device than the layer's input.
TorchMatrix operand_of(const TorchTensor& tensor, const TensorName& name, Device device);
// A vector in the dtype of the input, to which one of f32 (a norm's gamma with a bf16 input) is rounded.
TorchMatrix vector_in(const TorchTensor& tensor, Dtype dtype, const TensorName& name, Device device);

// Delayed scales of a module's layers, as its operators take them: f32 [layers, 3], for input, weight and grad_output;
// of experts [layers, 3, experts].
struct TorchDelayedScales {
  const TorchTensor* scale = nullptr;
  const TorchTensor* amax = nullptr;  // is raised to the largest |value| that is cast with each scale
  // An empty tensor whose sizes say, for each layer, which scales may be missing: 2, + 1 input, + 2 weight, + 4
  // grad_output. A missing one (has_scale(), on the device) is made of the data of its cast, as dynamic scaling does.
  // Sizes, because a compiled graph takes them for variables, and is not compiled again when a tensor gets its scale.
  const TorchTensor* starts = nullptr;
};
// Those of an operator's call.
template <class Arguments>
TorchDelayedScales delayed_scales(Arguments& all) {
  return {.scale = &all.template tensor<"scale">(),
          .amax = &all.template tensor<"amax">(),
          .starts = &all.template tensor<"starts">()};
}

// What a call of a module runs with.
class TorchCall : public TorchRun {
 public:
  using TorchRun::TorchRun;

  // For scales(); a call without them has no handles in their places. Throws Error{invalid_argument} for other tensors
  // than TorchDelayedScales says.
  // experts: of layers that have a scale for each.
  void use(TorchDelayedScales delayed, std::int64_t layers, const std::string& subject, std::int64_t experts = 1);
  // The scales of one of the module's layers, as long as this object: constants, and delayed ones if there are any.
  LinearScales scales(const LinearPlan& plan, std::int64_t layer = 0);
  // May any scale of a layer be made of the call's own data?
  bool scales_start(std::int64_t layer = 0) const { return starts(layer) != 0; }

 private:
  // The bits of a layer's scales that may be missing.
  std::int64_t starts(std::int64_t layer) const;
  LinearScale delayed_scale(const Cast& cast, std::int64_t at, bool starts);
  const MemoryRegion& region(std::size_t bytes) { return regions_.emplace_back(bytes, device()).region(); }

  TorchDelayedScales delayed_{};
  std::int64_t experts_ = 1;
  std::deque<TorchRegion> regions_{};
};

// int32 of the call: the ends of experts, or an index of rows. Throws Error{invalid_argument} for another dtype, for
// one that is not contiguous, and for one on another device than the layer's input.
const std::int32_t* int32_of(const TorchTensor& tensor, const TensorName& name, Device device);

// The memory of a tensor; none if it is not given.
TorchRegion given_region(TorchTensor& tensor, Device device);
// The same of what a forward left. Throws Error{invalid_argument} for another number of bytes.
TorchRegion left_by_forward(TorchTensor& tensor, std::size_t bytes, const TensorName& name, Device device);

// The bytes of the codes of each weight of a module's layers.
using TorchCodesSizes = std::array<std::size_t, 3>;

// How much a module's forward leaves for its backward.
struct TorchKeptSize {
  std::size_t saved = 0;    // the plan's saved memory
  TorchCodesSizes codes{};  // of the weights that are not given as codes

  std::size_t all_codes() const { return codes[0] + codes[1] + codes[2]; }
};

// The one tensor that a module's forward leaves for its backward: the plan's saved memory, then its weights' codes.
class TorchKept {
 public:
  // For a forward. What is not kept lives as long as this object.
  TorchKept(const TorchKeptSize& size, bool keeps_saved, bool keeps_codes, Device device);
  // For a backward, of what a forward left. Throws Error{invalid_argument} for another number of bytes.
  TorchKept(TorchTensor tensor, const TorchKeptSize& size, bool needs_codes, const TensorName& name, Device device);

  // The saved memory; a null region where a forward keeps none.
  MemoryRegion saved() const { return saved_; }
  // The codes of a layer's weight; a null region where there are none.
  MemoryRegion codes(std::size_t layer = 0) const;
  TorchTensor publish() && { return std::move(kept_).publish(); }

 private:
  TorchRegion kept_{};
  TorchRegion passing_{};
  MemoryRegion saved_{};
  MemoryRegion codes_{};  // of all weights
  TorchCodesSizes sizes_{};
};

// gamma and beta in the input's dtype; the tensors are read only if the norm has them.
struct NormOperands {
  NormOperands(const NormLinearPlan& plan, const TorchTensor& of_gamma, const TorchTensor& of_beta, Device device);

  TorchMatrix gamma{};
  TorchMatrix beta{};
};

// A weight as an operator takes it.
struct TorchWeight {
  const TorchTensor* tensor = nullptr;
  const TorchTensor* scale_inv = nullptr;  // given: the tensor is FP8 codes, and these are theirs

  bool is_codes() const { return scale_inv->given(); }
};

// The weight, in high precision or as codes, and, if the layer has one, the bias.
struct LayerOperands {
  LayerOperands(const LinearPlan& plan, const TorchWeight& of_weight, const TorchTensor& of_bias, const TorchRun& run);

  TorchMatrix weight{};
  Float8View codes{};
  TorchMatrix bias{};
  TorchRegion made{};  // the memory of the codes, if those that were given had to be copied
};

// The gradients of the input and, which come with it, of gamma and beta. They have gamma's dtype: f32, or the input's.
// Without a norm the input's alone.
struct NormGradients {
  NormGradients(const NormLinearPlan& plan, bool wanted, const TorchTensor& grad_output, const TorchTensor& of_gamma,
                Device device);

  TorchResult input, gamma, beta;
};

// `wants` without the weight's bit if the engine wants no gradient of the weight that has this main_grad.
std::int64_t asked(std::int64_t wants, std::int64_t weight, const TorchTensor& main_grad);

// The matrix that a gradient of this layer's weight is added to, in place. Throws Error{invalid_argument} for one on
// another device, and for one whose rows are not contiguous.
Tensor main_grad_of(const LinearPlan& plan, const TorchTensor& tensor, Device device);

struct LayerGradients {
  // With a main_grad the weight's gradient is a view of that, and no tensor.
  LayerGradients(const LinearPlan& plan, bool wants_weight, bool wants_bias, Device device,
                 const TorchTensor& main_grad = {});

  // Of a module some of whose weights have a main_grad: what the others' gradients are added to.
  void clear_weight(Backend& backend, Stream& stream) const;

  TorchResult weight, bias;
};

// The weight for the gradient of a layer's input, if that is wanted: its codes, or the weight itself where the plan
// reads it again. casts_again: the codes are made here, as forward makes them. Codes that are given are transposed
// here.
struct WeightOfBackward {
  WeightOfBackward(const LinearPlan& plan, bool wanted, const TorchWeight& of_weight, const MemoryRegion& codes_memory,
                   bool casts_again, const TorchRun& run);

  TorchMatrix matrix{};
  TorchRegion made{};
  Float8View codes{};
};

}  // namespace ingot::python
