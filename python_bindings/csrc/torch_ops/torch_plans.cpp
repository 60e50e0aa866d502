#include "torch_ops/torch_plans.h"

namespace ingot::python {

LinearConfig casting_weight_again(LinearConfig config) {
  if (is_float8(config.grad_input) && config.weight == OtherCodes::together) config.weight = OtherCodes::again;
  return config;
}

TorchPlan::TorchPlan(LinearPlan of, bool weight_again)
    : plan(std::move(of)),
      weight_bytes(plan.weight_memory().bytes),
      casts_whole_weight_again(weight_again && !plan.grad_input_reads_weight()) {
  const TorchSavedSize size = TorchSavedSize::of(plan);
  saved_constant = size.constant;
  saved_per_unit = size.per_unit;
}

std::size_t TorchPlan::saved_bytes(std::int64_t tokens) const {
  return TorchSavedSize{.constant = saved_constant, .per_unit = saved_per_unit}.bytes(tokens);
}

TorchPlans& torch_plans() {
  static auto* const plans = new TorchPlans;  // never destroyed: other threads may call until the very end
  return *plans;
}

}  // namespace ingot::python
