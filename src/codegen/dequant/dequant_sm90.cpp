#include "ingot/codegen/dequant/dequant_sm90.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "ingot/codegen/types/template_types.h"
#include "ingot/runtime/util/count_of.h"
#include "ingot/runtime/util/error.h"

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

DequantSm90Tiling dequant_sm90_tiling(const DequantMatmulSpec& spec, const DequantTiling& t) {
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
          .stream_k = t.stream_k,
          .experts = spec.experts};
}

DequantFactors dequant_mma_scale_inv(const DequantMatmulSpec& spec) {
  return {.scale = template_granularity(spec.scale), .e8m0 = spec.scale_inv == Dtype::e8m0fnu};
}

DequantFactors dequant_sm90_factors(const DequantMatmulSpec& spec) {
  DequantFactors scale_inv = dequant_mma_scale_inv(spec);
  scale_inv.into_codes = scale_inv.e8m0 && spec.x == Dtype::bf16 && is_sub_byte(spec.weight);
  return scale_inv;
}

bool dequant_sm90_exists(const DequantMatmulSpec& spec, const DequantTiling& tiling) {
  if (!is_sound(tiling)) return false;
  return visit_bits(spec.weight, [&]<class W>() {
    return ingot::dequant_sm90_exists<W>(dequant_sm90_tiling(spec, tiling), dequant_sm90_factors(spec));
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
    return dequant_shared_bytes<W>(dequant_sm90_tiling(spec, tiling), dequant_sm90_factors(spec));
  });
}

u32 dequant_sm90_launch_bytes(const DequantMatmulSpec& spec, const DequantTiling& tiling, u32 blocks) {
  const u32 most = kDequantSharedTotal / (blocks + 1) - kDequantReserved;  // with this much, one more block would fit
  return std::max(dequant_sm90_shared_bytes(spec, tiling), ceil_div(most + 1, kDequantSharedUnit) * kDequantSharedUnit);
}

namespace {

std::string mma_fault(const DequantMatmulSpec& spec, const DequantTiling& t) {
  if (t.wgmma) return "instruction wgmma, but kernel mma has mma.sync only";
  if (t.tokens != 8 && t.tokens != 16 && t.tokens != 32 && t.tokens != 64) {
    return count_of(t.tokens, "token") + ", but kernel mma takes 8, 16, 32 or 64";
  }
  if (t.rows != 64 && t.rows != 128) return count_of(t.rows, "row") + ", but kernel mma takes 64 or 128";
  if (t.k_warps != 1 && t.k_warps != 2 && t.k_warps != 4) {
    return fmt::format("{} units along K, but kernel mma takes 1, 2 or 4", t.k_warps);
  }
  if (t.rows / 16 * t.k_warps > 16) {
    return fmt::format("{} rows and {} units along K, but a block of kernel mma has 16 warps of 16 rows at most",
                       t.rows, t.k_warps);
  }
  if (t.depth != 64 * t.k_warps) {
    return fmt::format("a depth of {}, but in kernel mma it is 64 for each unit along K: {}", t.depth, 64 * t.k_warps);
  }
  if (t.stages != 3) return count_of(t.stages, "stage") + ", but kernel mma has 3";
  if (t.waves != 1 || t.multicast != 1 || t.blocks != 1 || t.stream_k) {
    return "waves, multicast, blocks or stream-K, which kernel mma has not";
  }
  if (t.tokens == 64 && t.rows / 16 * t.k_warps > 8) {
    return fmt::format(
        "64 tokens, {} rows and {} units along K, but with 64 tokens a block has 8 warps at most: its "
        "registers hold no more sums",
        t.rows, t.k_warps);
  }
  if (spec.experts && t.split != 1) {
    return fmt::format("a split of {}, but blocks of kernel mma do not share the K of experts: take 1", t.split);
  }
  if (t.split < 1 || t.split > 64) return fmt::format("a split of {}, but it must be 1 to 64", t.split);
  return {};
}

// The rules are those of templates/dequant/dequant_sm90_tiling.cuh; those that a typing error may break have their own
// messages.
std::string sm90_fault(const DequantMatmulSpec& spec, const DequantTiling& t) {
  if (t.k_warps != 1 && (t.wgmma || (t.k_warps != 2 && t.k_warps != 4))) {
    return fmt::format("{} units along K, but kernel sm90 has 1, 2 or 4 with mma, and 1 with wgmma", t.k_warps);
  }
  if (t.waves < 1 || t.waves > 4 || t.rows < 1 || t.rows % (64 * t.waves) != 0 ||
      t.rows / (64 * t.waves) * t.k_warps > 4) {
    return fmt::format(
        "{} in {} and {} along K, but it must be 1 to 4 warpgroups of 64 rows, times 1 "
        "to 4 waves",
        count_of(t.rows, "row"), count_of(t.waves, "wave"), count_of(t.k_warps, "unit"));
  }
  if (t.stream_k && (t.split != 1 || t.multicast != 1 || t.k_warps != 1)) {
    return "stream-K, but that takes blocks and warps that share neither K nor x: split 1, no multicast, one unit "
           "along K";
  }
  if (t.stream_k && spec.experts) return "stream-K, but where tiles of experts are is known on the device only";
  if (dequant_sm90_exists(spec, t)) return {};
  DequantTiling fewest = t;
  fewest.stages = 2;
  if (t.stages > 2 && t.stages <= 32 && dequant_sm90_exists(spec, fewest)) {
    return fmt::format("{} stages, but shared memory has no room for that many: take {} or fewer", t.stages,
                       with_all_stages(spec, t).stages);
  }
  return fmt::format(
      "{}, which kernel sm90 cannot be made of with such scale_inv: its sums do not fit into registers, or "
      "it has no such tokens, depth, stages, split or cluster; leave the tiling out",
      print(DequantKernel::sm90, t));
}

}  // namespace

std::string dequant_tiling_fault(const DequantMatmulSpec& spec, const DequantTiling& tiling) {
  return spec.kernel == DequantKernel::mma ? mma_fault(spec, tiling) : sm90_fault(spec, tiling);
}

}  // namespace ingot
