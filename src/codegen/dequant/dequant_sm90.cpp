#include "ingot/codegen/dequant/dequant_sm90.h"

#include <algorithm>
#include <string>

#include "ingot/codegen/dequant/dequant_granularities.h"
#include "ingot/codegen/types/template_granularity.h"
#include "ingot/runtime/error.h"

namespace ingot {
namespace {

constexpr int kMostStages = 32;

static_assert(std::ranges::all_of(kDequantGranularities,
                                  [](ScaleGranularity scale) {
                                    return has_dequant_factors({.scale = template_granularity(scale)});
                                  }),
              "has_dequant_factors() of templates/dequant/dequant_factors.cuh lacks one of kDequantGranularities");

// Formats with the same number of bits have the same tilings.
template <class Function>
auto visit_bits(Dtype weight, const Function& function) {
  switch (bits_of(weight)) {
    case 6: return function.template operator()<e2m3fn>();
    case 4: return function.template operator()<e2m1fn>();
    case 8: return function.template operator()<e4m3fn>();
    default: break;
  }
  throw Error(ErrorCode::invalid_spec, std::string(name(weight)), "visit_bits() in dequant_sm90.cpp lacks its size");
}

// Are its numbers within what the arithmetic below can take, and its rows divided into warpgroups of whole waves?
bool is_sound(const DequantTiling& t) {
  const auto within = [](int value, int most) { return value >= 1 && value <= most; };
  return within(t.tokens, 256) && within(t.rows, 1024) && within(t.depth, 1024) && within(t.stages, kMostStages) &&
         within(t.split, 8) && within(t.waves, 4) && within(t.multicast, 8) && within(t.blocks, 4) &&
         within(t.k_warps, 4) && t.rows % (64 * t.waves) == 0;
}

}  // namespace

DequantSm90Tiling dequant_sm90_tiling(const DequantTiling& t) {
  const auto unsigned_of = [](int value) { return static_cast<u32>(value); };
  return {.tokens = unsigned_of(t.tokens),
          .groups = unsigned_of(t.rows / (64 * t.waves) * t.k_warps),
          .waves = unsigned_of(t.waves),
          .depth = unsigned_of(t.depth),
          .stages = unsigned_of(t.stages),
          .split = unsigned_of(t.split),
          .multicast = unsigned_of(t.multicast),
          .wgmma = t.wgmma,
          .blocks_per_sm = unsigned_of(t.blocks),
          .k_warps = unsigned_of(t.k_warps),
          .stream_k = t.stream_k};
}

DequantFactors dequant_mma_factors(const DequantMatmulSpec& spec) {
  return {.scale = template_granularity(spec.scale), .e8m0 = spec.factors == Dtype::e8m0fnu};
}

DequantFactors dequant_sm90_factors(const DequantMatmulSpec& spec) {
  DequantFactors factors = dequant_mma_factors(spec);
  factors.into_codes = factors.e8m0 && spec.x == Dtype::bf16 && is_sub_byte(spec.weight);
  return factors;
}

bool dequant_sm90_exists(const DequantMatmulSpec& spec, const DequantTiling& tiling) {
  if (!is_sound(tiling)) return false;
  return visit_bits(spec.weight, [&]<class W>() {
    return ingot::dequant_sm90_exists<W>(dequant_sm90_tiling(tiling), dequant_sm90_factors(spec));
  });
}

DequantTiling with_all_stages(const DequantMatmulSpec& spec, DequantTiling tiling) {
  for (tiling.stages = kMostStages; tiling.stages > 0; --tiling.stages) {
    if (dequant_sm90_exists(spec, tiling)) break;
  }
  return tiling;
}

DequantTiling with_stages(const DequantMatmulSpec& spec, DequantTiling tiling, int percent) {
  tiling = with_all_stages(spec, tiling);
  while (tiling.stages > 0 && dequant_sm90_fills(spec, tiling) * 100 > percent) --tiling.stages;
  return tiling;
}

double dequant_sm90_fills(const DequantMatmulSpec& spec, const DequantTiling& tiling) {
  const u32 bytes = (dequant_sm90_shared_bytes(spec, tiling) + kDequantReserved) * static_cast<u32>(tiling.blocks);
  return bytes / static_cast<double>(kDequantSharedTotal);
}

u32 dequant_sm90_shared_bytes(const DequantMatmulSpec& spec, const DequantTiling& tiling) {
  return visit_bits(spec.weight, [&]<class W>() {
    return dequant_shared_bytes<W>(dequant_sm90_tiling(tiling), dequant_sm90_factors(spec));
  });
}

u32 dequant_sm90_launch_bytes(const DequantMatmulSpec& spec, const DequantTiling& tiling, u32 blocks) {
  const u32 most = kDequantSharedTotal / (blocks + 1) - kDequantReserved;  // with this much, one more block would fit
  return std::max(dequant_sm90_shared_bytes(spec, tiling), ceil_div(most + 1, kDequantSharedUnit) * kDequantSharedUnit);
}

}  // namespace ingot
