#include "ingot/runtime/gemm/gemm_plans.h"
#include <utility>
#include "ingot/runtime/jit/recorder.h"
#include "ingot/runtime/tuning/matmul_choices.h"

namespace ingot {

KernelOrder<GemmSpec> GemmPlans::find(const GemmSpec& spec, const MatmulSize& size, bool scale_inv_as_read) {
  const std::size_t hash = hash_with(hash_value(spec), size) + (scale_inv_as_read ? 1 : 0);
  const auto matches = [&](const Entry& entry) {
    return entry.call.size == size && entry.scale_inv_as_read == scale_inv_as_read && entry.call.spec == spec;
  };
  if (const Entry* const entry = table_.find(hash, matches)) return KernelOrder<GemmSpec>(entry->order);
  Entry made = make(hash, {.spec = spec, .size = size}, scale_inv_as_read);
  if (const Entry* const kept = table_.insert(made, matches, most_)) return KernelOrder<GemmSpec>(kept->order);
  return KernelOrder<GemmSpec>(std::move(made.order));
}

GemmPlans::Entry GemmPlans::make(std::size_t hash, const GemmCall& call, bool scale_inv_as_read) const {
  if (services_.recorder != nullptr) services_.recorder->note(call.spec, call.size);
  Entry entry{.hash = hash, .call = call, .scale_inv_as_read = scale_inv_as_read, .order = {}};
  if (services_.choices != nullptr && call.spec.kernel == GemmKernel::automatic) {
    if (const MatmulSpec* const chosen = services_.choices->find({.spec = call.spec, .size = call.size})) {
      entry.order.push_back(std::get<GemmSpec>(*chosen));
    }
  }
  const MatmulDevice device{.target = target_, .multiprocessors = multiprocessors_, .compiles = services_.compiles};
  for (const GemmSpec& spec : gemm_order(call, device, scale_inv_as_read)) entry.order.push_back(spec);
  return entry;
}

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
