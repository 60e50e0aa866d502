// Plans that PyTorch's operators run, by number: an operator takes tensors and integers only.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "ingot/codegen/types/matmul_size.h"
#include "ingot/codegen/types/spec_hash.h"
#include "ingot/runtime/context/context.h"
#include "ingot/runtime/util/error.h"
#include "ingot/runtime/util/fork_mutex.h"
#include "torch_abi/torch_names.h"
#include "torch_ops/torch_schemas.h"

namespace ingot::python {

// Plans are added under a lock and found without one. They stay as long as this object. Layers that differ only in
// their names have one plan, and a number for each name.
template <class Plan>
class TorchPlanTable {
 public:
  struct Entry : TorchCalled {
    const Plan* plan = nullptr;
  };

  // Equal plans have one number, the same in every process with this version of Ingot, so that graphs which compilers
  // keep on disk stay valid; those of another version have other numbers and are compiled again, and so are those of
  // another table of operators. `identity` is the plan's, `sizes` what describes each of its layers where nobody knows
  // the name.
  std::int64_t add(std::uint64_t identity, Plan plan, std::vector<std::string> sizes) {
    const std::int64_t number = as_number(identity + hash_of(version(), kTorchTableHash));
    const std::lock_guard lock(mutex_);
    if (find(number) != nullptr) return number;
    const Shared& shared = shared_.emplace_back(Shared{.plan = std::move(plan), .sizes = std::move(sizes)});
    insert({{.number = number, .names = {}, .sizes = &shared.sizes}, &shared.plan});
    return number;
  }
  // The number of a plan for layers of these names, for calls that know them. Throws as at().
  std::int64_t add_names(std::int64_t number, std::vector<std::string> names) {
    const Entry& of = at(number);
    std::uint64_t hash = static_cast<std::uint64_t>(number);
    for (const std::string& name : names) hash = hash_of(name, mix(hash));
    const std::int64_t named = as_number(hash);
    const std::lock_guard lock(mutex_);
    if (find(named) == nullptr) insert({{.number = named, .names = std::move(names), .sizes = of.sizes}, of.plan});
    return named;
  }

  // Throws Error{invalid_argument} for a number that this process has not made.
  const Entry& at(std::int64_t number) const {
    if (const Entry* const found = find(number)) return *found;
    throw Error(ErrorCode::invalid_argument, "plan",
                "this process has no plan of this number: a graph that another process, or another version of Ingot, "
                "has compiled is compiled again where its model is traced here; torch.export makes programs that run "
                "elsewhere");
  }

 private:
  struct Shared {
    Plan plan;
    std::vector<std::string> sizes;
  };
  // A hash table with open addressing, at most half full. It only grows: a larger one takes its place, and a reader may
  // still look at the one before.
  struct Slots {
    explicit Slots(std::size_t count) : mask(count - 1), of(new std::atomic<const Entry*>[count]()) {}

    void put(const Entry& entry) {
      std::size_t at = static_cast<std::size_t>(entry.number) & mask;
      while (of[at].load(std::memory_order_relaxed) != nullptr) at = (at + 1) & mask;
      of[at].store(&entry, std::memory_order_release);
    }

    std::size_t mask;
    std::unique_ptr<std::atomic<const Entry*>[]> of;
  };

  static std::int64_t as_number(std::uint64_t hash) { return static_cast<std::int64_t>(mix(hash) >> 1U); }

  const Entry* find(std::int64_t number) const {
    const Slots* const slots = newest_.load(std::memory_order_acquire);
    if (slots == nullptr) return nullptr;
    for (std::size_t at = static_cast<std::size_t>(number);; ++at) {
      const Entry* const entry = slots->of[at & slots->mask].load(std::memory_order_acquire);
      if (entry == nullptr || entry->number == number) return entry;
    }
  }

  void insert(Entry added) {
    const Entry& entry = entries_.emplace_back(std::move(added));
    if (Slots* const slots = newest_.load(std::memory_order_relaxed);
        slots != nullptr && 2 * entries_.size() <= slots->mask) {
      return slots->put(entry);
    }
    constexpr std::size_t kFewest = 64;
    auto larger = std::make_unique<Slots>(slots_.empty() ? kFewest : 2 * (slots_.back()->mask + 1));
    for (const Entry& each : entries_) larger->put(each);
    newest_.store(larger.get(), std::memory_order_release);
    slots_.push_back(std::move(larger));
  }

  ForkMutex mutex_;
  std::deque<Shared> shared_;
  std::deque<Entry> entries_;
  std::vector<std::unique_ptr<Slots>> slots_;
  std::atomic<Slots*> newest_{nullptr};
};

// The bytes that a module keeps of a forward. Under torch.compile the number of tokens M may be a symbol, so they are
// linear in ceil(M / 128): bytes(M) >= plan.saved_memory(M).bytes for every M. A part of that memory either has M in
// its size or does not, and with M a multiple of 128 a row of M codes needs no padding.
struct TorchSavedSize {
  static constexpr std::int64_t kTokensPerUnit = 128;

  template <class Plan>
  static TorchSavedSize of(const Plan& plan) {
    return of_bytes([&](std::int64_t tokens) { return plan.saved_memory(tokens).bytes; });
  }
  // The same of other memory, whose bytes for so many tokens a function says.
  template <class Bytes>
  static TorchSavedSize of_bytes(const Bytes& bytes_of) {
    const std::size_t constant = bytes_of(0);
    return {.constant = constant, .per_unit = bytes_of(kTokensPerUnit) - constant};
  }

  std::size_t bytes(std::int64_t tokens) const {
    return static_cast<std::size_t>(divided_up(tokens, kTokensPerUnit)) * per_unit + constant;
  }

  std::size_t constant = 0;
  std::size_t per_unit = 0;
};

}  // namespace ingot::python
