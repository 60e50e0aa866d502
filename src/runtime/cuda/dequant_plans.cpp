#include "ingot/runtime/cuda/dequant_plans.h"

#include <cstdint>

#include "ingot/codegen/kernel_spec.h"

namespace ingot {
namespace {

std::size_t hash_of(const DequantMatmulSpec& spec, const DequantSize& size) {
  std::uint64_t hash = hash_value(spec);
  for (const std::int64_t extent : {size.m, size.n, size.k}) {
    hash = (hash ^ static_cast<std::uint64_t>(extent)) * 0x9e3779b97f4a7c15U;
    hash ^= hash >> 29U;
  }
  return static_cast<std::size_t>(hash);
}

}  // namespace

std::span<const DequantMatmulSpec> DequantPlans::find(const DequantMatmulSpec& spec, const DequantSize& size) {
  const std::size_t hash = hash_of(spec, size);
  const auto matches = [&](const Entry& entry) { return entry.size == size && entry.spec == spec; };
  if (const Entry* const entry = table_.find(hash, matches)) return entry->order;
  return table_.insert({.hash = hash, .spec = spec, .size = size, .order = dequant_order(spec, size, place_)}, matches)
      .order;
}

}  // namespace ingot
