#include "torch_plans.h"

#include <utility>

#include "ingot/codegen/types/divided_up.h"
#include "ingot/nn/memory_places.h"
#include "ingot/runtime/error.h"

namespace ingot::python {

// Each part of the saved memory either has M in its size or does not. With M a multiple of 128 a row of M codes needs
// no padding, so t units take at most t times the bytes of one.
TorchPlan::TorchPlan(LinearPlan of) : plan(std::move(of)), weight_bytes(plan.weight_memory().bytes) {
  const LinearSavedMemory one = plan.saved_memory(kTokensPerUnit);
  const LinearSavedMemory two = plan.saved_memory(2 * kTokensPerUnit);
  MemoryPlaces per_unit;
  MemoryPlaces constant;
  for (std::size_t at = 0; at < one.parts().size(); ++at) {
    const TensorPlace part = one.parts()[at];
    if (!part.used) continue;
    const bool grows = two.parts()[at].bytes() > part.bytes();
    (grows ? per_unit : constant).region(part.bytes());
  }
  saved_per_unit = per_unit.bytes();
  saved_constant = constant.bytes();
}

std::size_t TorchPlan::saved_bytes(std::int64_t tokens) const {
  const auto units = static_cast<std::size_t>(divided_up(tokens, kTokensPerUnit));
  return units * saved_per_unit + saved_constant;
}

std::int64_t TorchPlans::add(LinearPlan plan) {
  const auto number = static_cast<std::int64_t>(plan.identity >> 1U);
  const std::lock_guard lock(mutex_);
  const Table* const before = newest_.load(std::memory_order_relaxed);
  if (before != nullptr && before->contains(number)) return number;
  plans_.push_back(std::make_unique<const TorchPlan>(std::move(plan)));
  auto table = before == nullptr ? std::make_unique<Table>() : std::make_unique<Table>(*before);
  table->emplace(number, plans_.back().get());
  newest_.store(table.get(), std::memory_order_release);
  tables_.push_back(std::move(table));
  return number;
}

const TorchPlan& TorchPlans::at(std::int64_t number) const {
  const Table* const table = newest_.load(std::memory_order_acquire);
  const auto found = table == nullptr ? Table::const_iterator{} : table->find(number);
  if (table == nullptr || found == table->end()) {
    throw Error(ErrorCode::invalid_argument, "plan", "this process has no such plan: use ingot.torch.linear()");
  }
  return *found->second;
}

TorchPlans& torch_plans() {
  static auto* const plans = new TorchPlans;  // never destroyed: other threads may call until the very end
  return *plans;
}

}  // namespace ingot::python
