// What Python says of modules made of several parts, and what it is told of their plans.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "ingot/codegen/types/spec_hash.h"
#include "ingot/nn/modules/norm_linear_plan.h"
#include "torch_ops/torch_module_tensors.h"
#include "torch_ops/torch_plan_table.h"

namespace ingot::python {

// The dtypes of input, weight and bias; no bias: none.
using DtypeTexts = std::array<std::optional<std::string>, 3>;
// Kind ("layer" or "rms"), affine, eps, zero_centred.
using NormText = std::tuple<std::string, bool, float, bool>;

std::optional<NormOptions> norm_options(const std::optional<NormText>& norm);
LinearDtypes linear_dtypes(const DtypeTexts& dtypes);
// A recipe's config, or casting_weight_again() of it (torch_plans.h).
LinearConfig config_of(const std::string& recipe_name, bool weight_again);
// Does backward cast the weight of this layer as forward does? With folded codes it must, for the plan cannot.
inline bool casts_whole_again(const LinearPlan& plan, bool weight_again) {
  return weight_again && plan.config.weight == OtherCodes::folded;
}
// An expression of x alone; empty for an empty text. Throws Error{invalid_spec} that names the layer for another one.
Pointwise activation_of(const std::string& subject, const std::string& text);

// A module's plan, and the sizes of what its forward leaves.
template <class Plan>
struct TorchModule {
  // `casts_again`: backward casts folded weights whole (TorchPlan::casts_whole_weight_again).
  TorchModule(Plan of, std::size_t codes, bool casts_again)
      : plan(std::move(of)),
        saved(TorchSavedSize::of(plan)),
        weight_bytes(codes),
        casts_whole_weights_again(casts_again) {}

  TorchKeptSize kept(std::int64_t tokens) const { return {.saved = saved.bytes(tokens), .codes = weight_bytes}; }

  Plan plan;
  TorchSavedSize saved;
  std::size_t weight_bytes;  // of the codes of all its weights
  bool casts_whole_weights_again;
};

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

// function(number, names): the number of this plan for layers of these names.
template <class Plan>
void bind_names(nanobind::module_& module, const char* function, TorchPlanTable<Plan>& plans) {
  module.def(
      function,
      [&plans](std::int64_t number, std::vector<std::string> names) {
        return plans.add_names(number, std::move(names));
      },
      nanobind::arg("number"), nanobind::arg("names"));
}

// Adds a module's plan to those of its family. `sizes`: of each layer that has a name. Returns (number, saved bytes of
// 0 tokens, saved bytes of each 128 tokens, bytes of codes, and those of ReadAgain).
template <class Plan>
nanobind::tuple add_module(TorchPlanTable<TorchModule<Plan>>& plans, std::uint64_t identity, TorchModule<Plan> module,
                           std::vector<std::string> sizes, ReadAgain reads) {
  reads.weight |= module.casts_whole_weights_again;
  if (module.casts_whole_weights_again) identity = mix(identity + 1);
  const TorchSavedSize saved = module.saved;
  const std::size_t codes = module.weight_bytes;
  const std::int64_t number = plans.add(identity, std::move(module), std::move(sizes));
  return nanobind::make_tuple(number, saved.constant, saved.per_unit, codes, reads.bits());
}

}  // namespace ingot::python
