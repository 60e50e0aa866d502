// batch_invariant: a row's result depends on the order of its sums, which is decided by the tiling but for its tokens.
// What is otherwise free is then decided for kInvariantTokens tokens, whatever M is; of sm90's two instructions it is
// wgmma's, which has tiles for many tokens too.
#include "ingot/codegen/dequant/dequant_candidates.h"

#include <algorithm>
#include <utility>

#include "ingot/codegen/dequant/dequant_mma_candidates.h"
#include "ingot/codegen/dequant/dequant_sm90_candidates.h"
#include "ingot/codegen/dequant/dequant_tiling.h"

namespace ingot {
namespace {

constexpr std::int64_t kInvariantTokens = 16;
constexpr std::size_t kBestGuesses = 24;  // of a kernel, that are measured

bool runs_there(DequantKernel kernel, const DequantMatmulSpec& spec, const MatmulDevice& place) {
  if (kernel == DequantKernel::sm90) {
    return is_packed(spec.layout) && place.target == target_for(9, 0);
  }
  return place.target.major >= 8;
}

DequantMatmulSpec with(DequantMatmulSpec spec, const DequantTiling& tiling) {
  spec.tiling = tiling;
  return spec;
}

DequantTiling cheapest(const DequantMatmulSpec& spec, const MatmulSize& size, const MatmulDevice& place,
                       const std::vector<DequantTiling>& all) {
  const DequantTiling* best = nullptr;
  double least = 0;
  for (const DequantTiling& tiling : all) {
    const double us = estimate_dequant(spec, size, tiling, place);
    if (best != nullptr && us >= least) continue;
    best = &tiling;
    least = us;
  }
  return *best;
}

}  // namespace

std::vector<DequantTiling> dequant_tilings(const DequantMatmulSpec& spec, const MatmulSize& size,
                                           const MatmulDevice& place) {
  if (spec.tiling) return {*spec.tiling};
  const bool is_mma = spec.kernel == DequantKernel::mma;
  const auto offered = [&](const MatmulSize& sizes) {
    return is_mma ? dequant_mma_tilings(sizes) : dequant_sm90_tilings(spec, sizes, spec.batch_invariant);
  };
  if (!spec.batch_invariant) return offered(size);
  const MatmulSize fixed{.m = kInvariantTokens, .n = size.n, .k = size.k};
  const std::vector<DequantTiling> of_fixed = offered(fixed);
  if (of_fixed.empty()) return {};
  const DequantTiling chosen = cheapest(spec, fixed, place, of_fixed);
  const std::vector<DequantTiling> all =
      is_mma ? dequant_mma_tilings_like(chosen, size) : dequant_sm90_tilings_like(chosen, spec, size);
  return all.empty() ? std::vector{chosen} : all;
}

std::vector<DequantMatmulSpec> dequant_kernels(const DequantMatmulSpec& spec, const MatmulDevice& place) {
  if (spec.kernel != DequantKernel::automatic) return {spec};
  std::vector<DequantMatmulSpec> all;
  for (const DequantKernel kernel : {DequantKernel::sm90, DequantKernel::mma}) {
    if (!runs_there(kernel, spec, place)) continue;
    all.push_back(spec);
    all.back().kernel = kernel;
  }
  return all;
}

double estimate_dequant(const DequantMatmulSpec& spec, const MatmulSize& size, const DequantTiling& tiling,
                        const MatmulDevice& place) {
  return spec.kernel == DequantKernel::mma ? estimate_dequant_mma(spec, size, tiling, place.multiprocessors)
                                           : estimate_dequant_sm90(spec, size, tiling, place.multiprocessors);
}

std::vector<DequantMatmulSpec> dequant_order(const DequantMatmulSpec& spec, const MatmulSize& size,
                                             const MatmulDevice& place) {
  std::vector<DequantMatmulSpec> order;
  for (const DequantMatmulSpec& named : dequant_kernels(spec, place)) {
    const std::vector<DequantTiling> all = dequant_tilings(named, size, place);
    if (!all.empty()) order.push_back(with(named, cheapest(named, size, place, all)));
  }
  return order;
}

std::vector<DequantMatmulSpec> dequant_candidates(const DequantMatmulSpec& spec, const MatmulSize& size,
                                                  const MatmulDevice& place) {
  std::vector<DequantMatmulSpec> all;
  for (const DequantMatmulSpec& named : dequant_kernels(spec, place)) {
    std::vector<std::pair<double, DequantTiling>> timed;
    for (const DequantTiling& tiling : dequant_tilings(named, size, place)) {
      timed.emplace_back(estimate_dequant(named, size, tiling, place), tiling);
    }
    std::ranges::stable_sort(timed, {}, &std::pair<double, DequantTiling>::first);
    for (std::size_t i = 0; i < timed.size() && i < kBestGuesses; ++i) all.push_back(with(named, timed[i].second));
  }
  return all;
}

}  // namespace ingot
