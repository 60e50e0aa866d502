// What Python says of modules made of several parts, and what it is told of their plans.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "ingot/codegen/types/spec_hash.h"
#include "ingot/nn/modules/module_plans.h"
#include "torch_ops/torch_module_tensors.h"
#include "torch_ops/torch_plan_table.h"

namespace ingot::python {

// Of a layer: out_features, in_features, and the dtypes of weight and bias; no bias: none.
using LayerText = std::tuple<std::int64_t, std::int64_t, std::string, std::optional<std::string>>;
// Kind ("layer" or "rms"), affine, eps, zero_centred.
using NormText = std::tuple<std::string, bool, float, bool>;

// What Python says of a module.
struct ModuleText {
  std::string subject{};
  std::string recipe{};
  std::string input{};  // its dtype
  std::vector<LayerText> layers{};
  bool grad_weight = false;
  std::optional<NormText> norm{};
  std::string activation{};
  bool fast_math = false;
  bool weight_again = false;

  // The recipe's, or casting_weight_again() of it.
  LinearConfig config() const;
  LinearDtypes dtypes() const { return options(0).dtypes; }
  // Of a layer.
  LinearShape shape(std::size_t at) const;
  LinearPlanOptions options(std::size_t at) const;
  std::optional<NormOptions> norm_options() const;
  // What describes a layer of the module by its sizes.
  std::string sizes(std::size_t at) const;
};

LinearDtypes linear_dtypes(const std::string& input, const std::optional<std::string>& weight,
                           const std::optional<std::string>& bias);
// The config whose backward casts the weight once more, so that forward keeps no codes of it; the same config where
// grad_input reads none, or reads folded ones.
LinearConfig casting_weight_again(LinearConfig config);
// A recipe of experts. fast_gradients: the GEMMs of the gradients sum in the tensor core throughout, as forward's does.
LinearConfig config_of_experts(const std::string& recipe, bool weight_again, bool fast_gradients);
// Does backward cast the weight of this layer as forward does? With folded codes it must, for the plan cannot.
inline bool casts_whole_again(const LinearPlan& plan, bool weight_again) {
  return weight_again && plan.config.weight == OtherCodes::folded;
}
// An expression of x alone; empty for an empty text. Throws Error{invalid_spec} that names the layer for another one.
Pointwise activation_of(const std::string& subject, const std::string& text);

// A module's plan, and the sizes of what its forward leaves.
template <class Plan>
struct TorchModule {
  // `casts_again`: backward casts the weights as forward does, for both GEMMs: with folded codes the plan itself cannot
  // (OtherCodes).
  TorchModule(Plan of, const TorchCodesSizes& codes, bool casts_again)
      : plan(std::move(of)),
        saved(TorchSavedSize::of(plan)),
        weight_bytes(codes),
        casts_whole_weights_again(casts_again) {}

  // `weights`: those of a call, one for each layer.
  TorchKeptSize kept(std::int64_t tokens, std::span<const TorchWeight> weights) const {
    TorchKeptSize size{.saved = saved.bytes(tokens), .codes = weight_bytes};
    for (std::size_t at = 0; at < weights.size(); ++at) {
      if (weights[at].is_codes()) size.codes[at] = 0;
    }
    return size;
  }

  Plan plan;
  TorchSavedSize saved;
  TorchCodesSizes weight_bytes;  // of the codes of each of its weights
  bool casts_whole_weights_again;
};

// A linear layer's.
struct TorchPlan : TorchModule<LinearPlan> {
  TorchPlan(LinearPlan of, bool weight_again)
      : TorchModule(of, {of.weight_memory().bytes}, weight_again && !of.grad_input_reads_weight()) {}

  // Does the gradient of the input?
  bool reads_weight() const { return plan.grad_input_reads_weight() || casts_whole_weights_again; }
};

// Adds the plan of a linear layer, and returns its number. `frozen`: it is of a layer whose weight is always given as
// codes, of which Python knows other facts: its number is another one.
std::int64_t add_linear(TorchPlan plan, bool frozen = false);

// What backward reads again, as kReads... say it.
struct ReadAgain {
  bool input_for_input = false;
  bool input_for_weight = false;
  bool weight = false;
  bool output = false;

  std::int64_t bits() const {
    return (input_for_input ? kReadsInputForInput : 0) | (input_for_weight ? kReadsInputForWeight : 0) |
           (weight ? kReadsWeight : 0) | (output ? kReadsOutput : 0);
  }
};

// torch_name_<family>(number, names): the number of this plan for layers of these names.
template <class Plan>
void bind_names(nanobind::module_& module, const std::string& family, TorchPlanTable<Plan>& plans) {
  module.def(("torch_name_" + family).c_str(),
             [&plans](std::int64_t number, std::vector<std::string> names) {
               return plans.add_names(number, std::move(names));
             },
             nanobind::arg("number"), nanobind::arg("names"));
}

// A family's functions for its plans: torch_<family>_plan, which calls add(), and torch_name_<family>.
using AddModule = nanobind::tuple (*)(const ModuleText& module);
void bind_add(nanobind::module_& module, const std::string& family, AddModule add);
template <class Plan>
void bind_module(nanobind::module_& module, const std::string& family, TorchPlanTable<Plan>& plans, AddModule add) {
  bind_add(module, family, add);
  bind_names(module, family, plans);
}

// The plans of a family. Never destroyed: other threads may call until the very end.
template <class Plan>
TorchPlanTable<Plan>& plans_of() {
  static auto* const plans = new TorchPlanTable<Plan>;
  return *plans;
}

// Adds a module's plan to those of its family. `sizes`: of each layer that has a name. Returns (number, saved bytes of
// 0 tokens, saved bytes of each 128 tokens, bytes of codes of each weight, and those of ReadAgain).
template <class Plan>
nanobind::tuple add_module(std::uint64_t identity, TorchModule<Plan> module, std::vector<std::string> sizes,
                           ReadAgain reads) {
  reads.weight |= module.casts_whole_weights_again;
  if (module.casts_whole_weights_again) identity = mix(identity + 1);
  const TorchSavedSize saved = module.saved;
  const TorchCodesSizes codes = module.weight_bytes;
  const std::int64_t number = plans_of<TorchModule<Plan>>().add(identity, std::move(module), std::move(sizes));
  return nanobind::make_tuple(number, saved.constant, saved.per_unit, codes, reads.bits());
}

}  // namespace ingot::python
