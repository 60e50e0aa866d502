#include "ingot/runtime/gemm/gemm_pair_plans.h"

#include <utility>

#include "ingot/runtime/jit/recorder.h"

namespace ingot {

const GemmPairSpec* GemmPairPlans::find(const GemmCall& first, const GemmCall& second, Own& own) {
  const std::size_t hash = hash_with(hash_value(first), hash_value(second));
  const auto matches = [&](const Entry& entry) { return entry.first == first && entry.second == second; };
  const auto pointer = [](const std::optional<GemmPairSpec>& pair) { return pair ? &*pair : nullptr; };
  if (const Entry* const entry = table_.find(hash, matches)) return pointer(entry->pair);
  Entry made{.hash = hash, .first = first, .second = second, .pair = choose(first, second)};
  if (const Entry* const kept = table_.insert(made, matches, most_)) return pointer(kept->pair);
  own = std::move(made.pair);
  return pointer(own);
}

std::optional<GemmPairSpec> GemmPairPlans::choose(const GemmCall& first, const GemmCall& second) const {
  std::optional<GemmPairSpec> pair = choose_gemm_pair(first, second, device_);
  if (!pair || !available_(*pair)) return std::nullopt;
  for (const GemmCall* const call : {&first, &second}) {
    if (services_.recorder != nullptr) services_.recorder->note(call->spec, call->size);
  }
  return pair;
}

}  // namespace ingot
