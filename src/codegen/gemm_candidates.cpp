#include "ingot/codegen/gemm_candidates.h"

#include <algorithm>
#include <cstdint>
#include <utility>

namespace ingot {
namespace {

// The cost model errs by less than this.
constexpr double kPlausible = 1.4;

GemmSpec with_kernel(GemmSpec spec, GemmKernel kernel) {
  spec.kernel = kernel;
  return spec;
}

// The cost model's choice first.
std::vector<GemmSpec> tilings(const GemmCall& call, int multiprocessors) {
  std::vector<std::pair<double, GemmTiling>> timed;
  for (const GemmTiling& tiling : candidates(call.spec)) {
    timed.emplace_back(estimate(call.spec, call.size, tiling, multiprocessors), tiling);
  }
  std::ranges::stable_sort(timed, {}, &std::pair<double, GemmTiling>::first);
  std::vector<GemmSpec> specs;
  for (const auto& [us, tiling] : timed) {
    if (us > kPlausible * timed.front().first) break;
    specs.push_back(with_kernel(call.spec, GemmKernel::sm90));
    specs.back().tiling = tiling;
  }
  return specs;
}

}  // namespace

std::vector<GemmSpec> gemm_candidates(const GemmCall& call, Target target, int multiprocessors) {
  const GemmCall open{.spec = without_kernel(call.spec), .size = call.size};
  const bool fp8 = is_fp8(open.spec.a);
  const bool tensor_cores = !fp8 || (is_ocp(open.spec.a) && is_ocp(open.spec.b));
  std::vector<GemmSpec> all;
  const auto add_cublaslt = [&](int algorithm) {
    all.push_back(with_kernel(open.spec, GemmKernel::cublaslt));
    all.back().algorithm = algorithm;
  };
  const bool cublaslt = tensor_cores && !has_group_factors(open.spec);
  if (cublaslt) add_cublaslt(0);
  if (fp8 && tensor_cores && target == target_for(9, 0)) {
    for (const GemmSpec& spec : tilings(open, multiprocessors)) all.push_back(spec);
    if (cublaslt && prefers_sm90(open.spec, open.size)) std::swap(all[0], all[1]);
  }
  for (int i = 1; cublaslt && i < kCublasltAlgorithms; ++i) add_cublaslt(i);
  // Takes what the others refuse for its shape, its alignment or the GPU, which is not known here; it is soon given up
  // where they run.
  if (open.spec.a == Dtype::f32) {
    all.push_back(with_kernel(open.spec, GemmKernel::simt));
  } else {
    for (const GemmTiling& tiling : kMmaTilings) {
      all.push_back(with_kernel(open.spec, GemmKernel::mma));
      all.back().tiling = tiling;
    }
  }
  return all;
}

}  // namespace ingot
