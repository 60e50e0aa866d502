// Plans that PyTorch's operators run, by number: an operator takes tensors and integers only.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ingot/codegen/types/divided_up.h"
#include "ingot/runtime/error.h"
#include "ingot/runtime/util/fork_mutex.h"

namespace ingot::python {

// Plans are added under a lock and found without one. They stay as long as this object: a trained model has few.
template <class Plan>
class TorchPlanTable {
 public:
  // Equal plans have one number, the same in every process, so that graphs which compilers keep on disk stay valid.
  // `identity` is the plan's.
  std::int64_t add(std::uint64_t identity, Plan plan) {
    const auto number = static_cast<std::int64_t>(identity >> 1U);
    const std::lock_guard lock(mutex_);
    const Table* const before = newest_.load(std::memory_order_relaxed);
    if (before != nullptr && before->contains(number)) return number;
    plans_.push_back(std::make_unique<const Plan>(std::move(plan)));
    auto table = before == nullptr ? std::make_unique<Table>() : std::make_unique<Table>(*before);
    table->emplace(number, plans_.back().get());
    newest_.store(table.get(), std::memory_order_release);
    tables_.push_back(std::move(table));
    return number;
  }

  // Throws Error{invalid_argument} for a number that add() has not returned.
  const Plan& at(std::int64_t number) const {
    const Table* const table = newest_.load(std::memory_order_acquire);
    const auto found = table == nullptr ? typename Table::const_iterator{} : table->find(number);
    if (table == nullptr || found == table->end()) {
      throw Error(ErrorCode::invalid_argument, "plan",
                  "this process has no such plan: use the functions of ingot.torch");
    }
    return *found->second;
  }

 private:
  using Table = std::unordered_map<std::int64_t, const Plan*>;

  ForkMutex mutex_;
  std::vector<std::unique_ptr<const Plan>> plans_;
  std::vector<std::unique_ptr<const Table>> tables_;  // the newest last; a reader may still look at an older one
  std::atomic<const Table*> newest_{nullptr};
};

// The bytes that a module keeps of a forward. Under torch.compile the number of tokens M may be a symbol, so they are
// linear in ceil(M / 128): bytes(M) >= plan.saved_memory(M).bytes for every M. A part of that memory either has M in
// its size or does not, and with M a multiple of 128 a row of M codes needs no padding.
struct TorchSavedSize {
  static constexpr std::int64_t kTokensPerUnit = 128;

  template <class Plan>
  static TorchSavedSize of(const Plan& plan) {
    const std::size_t constant = plan.saved_memory(0).bytes;
    return {.constant = constant, .per_unit = plan.saved_memory(kTokensPerUnit).bytes - constant};
  }

  std::size_t bytes(std::int64_t tokens) const {
    return static_cast<std::size_t>(divided_up(tokens, kTokensPerUnit)) * per_unit + constant;
  }

  std::size_t constant = 0;
  std::size_t per_unit = 0;
};

}  // namespace ingot::python
