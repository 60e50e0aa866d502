// The plans of linear layers that PyTorch's operators run, by number: an operator takes tensors and integers only.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "ingot/nn/linear_plan.h"

namespace ingot::python {

// A plan, and how much memory its saved tensors take. Under torch.compile the number of tokens M may be a symbol, so
// saved memory is linear in ceil(M / 128): saved_bytes() >= plan.saved_memory(M).bytes for every M.
struct TorchPlan {
  explicit TorchPlan(LinearPlan of);

  static constexpr std::int64_t kTokensPerUnit = 128;

  LinearPlan plan;
  std::size_t saved_constant = 0;
  std::size_t saved_per_unit = 0;
  std::size_t weight_bytes = 0;

  std::size_t saved_bytes(std::int64_t tokens) const;
};

// Plans are added under a lock and found without one. They stay as long as this object: a trained model has few.
class TorchPlans {
 public:
  // Equal plans have one number, the same in every process, so that graphs which compilers keep on disk stay valid.
  std::int64_t add(LinearPlan plan);
  // Throws Error{invalid_argument} for a number that add() has not returned.
  const TorchPlan& at(std::int64_t number) const;

 private:
  using Table = std::unordered_map<std::int64_t, const TorchPlan*>;

  std::mutex mutex_;
  std::vector<std::unique_ptr<const TorchPlan>> plans_;
  std::vector<std::unique_ptr<const Table>> tables_;  // the newest last; a reader may still look at an older one
  std::atomic<const Table*> newest_{nullptr};
};

// Those of the process: PyTorch calls plain functions, so what they share cannot be passed to them.
TorchPlans& torch_plans();

}  // namespace ingot::python
