// batch_invariant: a row's result depends on the order of its sums, which the tiling fixes, except for its number of
// tokens. Everything else about the tiling is therefore chosen for kInvariantTokens tokens, whatever M is; of sm90's
// two instructions wgmma is taken, which has tiles for many tokens too.
#include "ingot/codegen/dequant/dequant_candidates.h"

#include <algorithm>
#include <utility>

#include "ingot/codegen/dequant/dequant_mma_candidates.h"
#include "ingot/codegen/dequant/dequant_sm90_candidates.h"
#include "ingot/codegen/dequant/dequant_tiling.h"

namespace ingot {
namespace {

constexpr std::int64_t kInvariantTokens = 16;
constexpr std::size_t kBestGuesses = 24;  // tilings of each kernel that are measured

bool runs_there(DequantKernel kernel, const DequantMatmulSpec& spec, const MatmulDevice& device) {
  if (kernel == DequantKernel::sm90) {
    return is_packed(spec.layout) && device.target == target_for(9, 0);
  }
  return device.target.major >= 8;
}

DequantMatmulSpec with(DequantMatmulSpec spec, const DequantTiling& tiling) {
  spec.tiling = tiling;
  return spec;
}

DequantTiling cheapest(const DequantMatmulSpec& spec, const MatmulSize& size, const MatmulDevice& device,
                       const std::vector<DequantTiling>& all) {
  const DequantTiling* best = nullptr;
  double least = 0;
  for (const DequantTiling& tiling : all) {
    const double us = estimate_dequant(spec, size, tiling, device);
    if (best != nullptr && us >= least) continue;
    best = &tiling;
    least = us;
  }
  return *best;
}

}  // namespace

std::vector<DequantTiling> dequant_tilings(const DequantMatmulSpec& spec, const MatmulSize& size,
                                           const MatmulDevice& device) {
  if (spec.tiling) return {*spec.tiling};
  const bool is_mma = spec.kernel == DequantKernel::mma;
  const auto offered = [&](const MatmulSize& sizes) {
    return is_mma ? dequant_mma_tilings(sizes) : dequant_sm90_tilings(spec, sizes, spec.batch_invariant);
  };
  if (!spec.batch_invariant) return offered(size);
  const MatmulSize fixed{.m = kInvariantTokens, .n = size.n, .k = size.k};
  const std::vector<DequantTiling> of_fixed = offered(fixed);
  if (of_fixed.empty()) return {};
  const DequantTiling chosen = cheapest(spec, fixed, device, of_fixed);
  const std::vector<DequantTiling> all =
      is_mma ? dequant_mma_tilings_like(chosen, size) : dequant_sm90_tilings_like(chosen, spec, size);
  return all.empty() ? std::vector{chosen} : all;
}

std::vector<DequantMatmulSpec> dequant_kernels(const DequantMatmulSpec& spec, const MatmulDevice& device) {
  if (spec.kernel != DequantKernel::automatic) return {spec};
  std::vector<DequantMatmulSpec> all;
  for (const DequantKernel kernel : {DequantKernel::sm90, DequantKernel::mma}) {
    if (!runs_there(kernel, spec, device)) continue;
    all.push_back(spec);
    all.back().kernel = kernel;
  }
  return all;
}

double estimate_dequant(const DequantMatmulSpec& spec, const MatmulSize& size, const DequantTiling& tiling,
                        const MatmulDevice& device) {
  return spec.kernel == DequantKernel::mma ? estimate_dequant_mma(spec, size, tiling, device.multiprocessors)
                                           : estimate_dequant_sm90(spec, size, tiling, device.multiprocessors);
}

std::vector<DequantMatmulSpec> dequant_order(const DequantMatmulSpec& spec, const MatmulSize& size,
                                             const MatmulDevice& device) {
  std::vector<DequantMatmulSpec> order;
  for (const DequantMatmulSpec& named : dequant_kernels(spec, device)) {
    const std::vector<DequantTiling> all = dequant_tilings(named, size, device);
    if (!all.empty()) order.push_back(with(named, cheapest(named, size, device, all)));
  }
  return order;
}

std::vector<DequantMatmulSpec> dequant_candidates(const DequantMatmulSpec& spec, const MatmulSize& size,
                                                  const MatmulDevice& device) {
  std::vector<DequantMatmulSpec> all;
  for (const DequantMatmulSpec& named : dequant_kernels(spec, device)) {
    std::vector<std::pair<double, DequantTiling>> timed;
    for (const DequantTiling& tiling : dequant_tilings(named, size, device)) {
      timed.emplace_back(estimate_dequant(named, size, tiling, device), tiling);
    }
    std::ranges::stable_sort(timed, {}, &std::pair<double, DequantTiling>::first);
    for (std::size_t i = 0; i < timed.size() && i < kBestGuesses; ++i) all.push_back(with(named, timed[i].second));
  }
  return all;
}

}  // namespace ingot
