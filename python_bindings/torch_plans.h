// The plans of linear layers that PyTorch's operators run, by number: an operator takes tensors and integers only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "ingot/nn/linear_plan.h"
#include "torch_plan_table.h"

namespace ingot::python {

// A plan, and how much memory its saved tensors take (TorchSavedSize).
struct TorchPlan {
  explicit TorchPlan(LinearPlan of);

  static constexpr std::int64_t kTokensPerUnit = TorchSavedSize::kTokensPerUnit;

  LinearPlan plan;
  std::size_t saved_constant = 0;
  std::size_t saved_per_unit = 0;
  std::size_t weight_bytes = 0;

  std::size_t saved_bytes(std::int64_t tokens) const;
};

class TorchPlans : public TorchPlanTable<TorchPlan> {
 public:
  std::int64_t add(LinearPlan plan) {
    const std::uint64_t identity = plan.identity;
    return TorchPlanTable::add(identity, TorchPlan(std::move(plan)));
  }
};

// Those of the process: PyTorch calls plain functions, so what they share cannot be passed to them.
TorchPlans& torch_plans();

}  // namespace ingot::python
