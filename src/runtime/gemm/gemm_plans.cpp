#include "ingot/runtime/gemm/gemm_plans.h"

#include <utility>

#include "ingot/runtime/jit/recorder.h"
#include "ingot/runtime/tuning/matmul_choices.h"
#include "ingot/runtime/tuning/matmul_manifest.h"

namespace ingot {

KernelOrder<GemmSpec> GemmPlans::find(const GemmSpec& spec, const MatmulSize& size) {
  const std::size_t hash = hash_with(hash_value(spec), size);
  const auto matches = [&](const Entry& entry) { return entry.call.size == size && entry.call.spec == spec; };
  if (const Entry* const entry = table_.find(hash, matches)) return KernelOrder<GemmSpec>(entry->order);
  Entry made = make(hash, {.spec = spec, .size = size});
  if (const Entry* const kept = table_.insert(made, matches, most_)) return KernelOrder<GemmSpec>(kept->order);
  return KernelOrder<GemmSpec>(std::move(made.order));
}

GemmPlans::Entry GemmPlans::make(std::size_t hash, const GemmCall& call) const {
  if (services_.manifest != nullptr) services_.manifest->note(call.spec, call.size);
  if (services_.recorder != nullptr) services_.recorder->note(call.spec, call.size);
  Entry entry{.hash = hash, .call = call, .order = {}};
  if (services_.choices != nullptr && call.spec.kernel == GemmKernel::automatic) {
    if (const MatmulSpec* const chosen = services_.choices->find({.spec = call.spec, .size = call.size})) {
      entry.order.push_back(std::get<GemmSpec>(*chosen));
    }
  }
  const MatmulDevice device{.target = target_, .multiprocessors = multiprocessors_, .compiles = services_.compiles};
  for (const GemmSpec& spec : gemm_order(call, device)) entry.order.push_back(spec);
  return entry;
}

}  // namespace ingot
