// The plans of linear layers that PyTorch's operators run, by number: an operator takes tensors and integers only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "ingot/codegen/types/spec_hash.h"
#include "ingot/nn/linear/linear_plan.h"
#include "torch_ops/torch_plan_table.h"

namespace ingot::python {

// The config whose backward casts the weight once more, so that forward keeps no codes of it; the same config where
// grad_input reads none, or reads folded ones.
LinearConfig casting_weight_again(LinearConfig config);

// A plan, and how much memory its saved tensors take (TorchSavedSize).
struct TorchPlan {
  TorchPlan(LinearPlan of, bool weight_again);

  static constexpr std::int64_t kTokensPerUnit = TorchSavedSize::kTokensPerUnit;

  LinearPlan plan;
  std::size_t saved_constant = 0;
  std::size_t saved_per_unit = 0;
  std::size_t weight_bytes = 0;
  // Backward casts the weight as forward does, for both GEMMs: with folded codes the plan itself cannot (OtherCodes).
  bool casts_whole_weight_again = false;
  // The weight is always given as FP8 codes and factors, as checkpoints have them.
  bool frozen = false;

  std::size_t saved_bytes(std::int64_t tokens) const;
  // Does the gradient of the input?
  bool reads_weight() const { return plan.grad_input_reads_weight() || casts_whole_weight_again; }
};

class TorchPlans : public TorchPlanTable<TorchPlan> {
 public:
  // `weight_again`: forward keeps no codes of the weight.
  std::int64_t add(LinearPlan plan, bool weight_again = false) {
    TorchPlan added(std::move(plan), weight_again);
    const std::uint64_t identity = added.plan.identity;
    const std::uint64_t own = added.casts_whole_weight_again ? mix(identity + 1) : identity;
    return add(std::move(added), own);
  }
  std::int64_t add_frozen(LinearPlan plan) {
    TorchPlan added(std::move(plan), false);
    added.frozen = true;
    const std::uint64_t identity = mix(added.plan.identity + 2);
    return add(std::move(added), identity);
  }

 private:
  std::int64_t add(TorchPlan plan, std::uint64_t identity) {
    std::vector<std::string> sizes{sizes_text(plan.plan.shape.in_features, plan.plan.shape.out_features)};
    return TorchPlanTable::add(identity, std::move(plan), std::move(sizes));
  }
};

// Those of the process: PyTorch calls plain functions, so what they share cannot be passed to them.
TorchPlans& torch_plans();

}  // namespace ingot::python
