#include "ingot/runtime/dequant/dequant_plans.h"

#include <fmt/format.h>

#include <cstdint>
#include <utility>
#include <variant>

#include "ingot/codegen/kernel_spec.h"
#include "ingot/codegen/matmul.h"
#include "ingot/runtime/error.h"
#include "ingot/runtime/jit/recorder.h"
#include "ingot/runtime/tuning/matmul_choices.h"

namespace ingot {

KernelOrder<DequantMatmulSpec> DequantPlans::find(const DequantMatmulSpec& spec, const MatmulSize& size) {
  const std::size_t hash = hash_with(hash_value(spec), size);
  const auto matches = [&](const Entry& entry) { return entry.size == size && entry.spec == spec; };
  if (const Entry* const entry = table_.find(hash, matches)) return KernelOrder<DequantMatmulSpec>(entry->order);
  Entry made = make(hash, spec, size);
  if (const Entry* const kept = table_.insert(made, matches, most_)) return KernelOrder<DequantMatmulSpec>(kept->order);
  return KernelOrder<DequantMatmulSpec>(std::move(made.order));
}

DequantPlans::Entry DequantPlans::make(std::size_t hash, const DequantMatmulSpec& spec, const MatmulSize& size) const {
  if (services_.recorder != nullptr) services_.recorder->note(spec, size);
  Entry entry{.hash = hash, .spec = spec, .size = size, .order = {}};
  if (services_.choices != nullptr && is_tuned(spec) && !names_kernel(spec)) {
    if (const MatmulSpec* const chosen = services_.choices->find({.spec = spec, .size = size})) {
      const auto* const named = std::get_if<DequantMatmulSpec>(chosen);
      if (named != nullptr && named->tiling) entry.order.push_back(*named);
    }
  }
  for (const DequantMatmulSpec& each : dequant_order(spec, size, device_)) entry.order.push_back(each);
  return entry;
}

void refuse_dequant(const DequantMatmulSpec& asked, const char* reason) {
  if (reason == nullptr) {
    throw Error(ErrorCode::invalid_argument, print(asked), "no kernel on this GPU supports the spec; the CPU does");
  }
  throw Error(ErrorCode::invalid_argument, print(asked),
              fmt::format("{}; leave kernel out to have the library choose one", reason));
}

}  // namespace ingot
