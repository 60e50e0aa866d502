#include "ingot/codegen/gemm/gemm_candidates.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace ingot {
namespace {

// The best guesses are measured, and every tiling whose estimate is not much slower than the first. For 556 of the 561
// GEMMs that the cost model was first fitted to, the fastest tiling was among them; for the other 5 it was up to 7 %
// faster.
constexpr std::size_t kBestGuesses = 6;
constexpr double kPlausible = 1.4;

GemmSpec with_kernel(GemmSpec spec, GemmKernel kernel) {
  spec.kernel = kernel;
  return spec;
}

GemmSpec with_tiling(GemmSpec spec, GemmKernel kernel, const GemmTiling& tiling) {
  spec.kernel = kernel;
  spec.tiling = tiling;
  return spec;
}

bool k_major(const GemmSpec& spec) { return spec.layout_a == Layout::k_major && spec.layout_b == Layout::k_major; }

// Is there nothing that kernel sm90 would have to stage, if rows start at multiples of 16 bytes?
bool sm90_reads(const GemmSpec& spec) { return !is_fp8(spec.a) || k_major(spec); }

bool cublaslt_may_take(const GemmSpec& spec, Target target) {
  if (has_group_factors(spec) && target != target_for(9, 0)) return false;
  return is_fp8(spec.a) ? is_ocp(spec.a) && is_ocp(spec.b) && k_major(spec) : spec.a == spec.b;
}

// It may have to stage its operands.
bool sm90_may_take(const GemmSpec& spec, Target target) { return sm90_multiplies(spec) && target == target_for(9, 0); }

bool mma_may_take(const GemmSpec& spec, Target target) { return spec.a != Dtype::f32 && target.major >= 8; }

// gemm_sm90 reads only rows of codes along k: FP8 operands stored otherwise are staged.
GemmSpec on_sm90(GemmSpec spec, const GemmTiling& tiling) {
  spec = with_tiling(spec, GemmKernel::sm90, tiling);
  if (!is_fp8(spec.a)) return spec;
  spec.staged_a = spec.staged_a || spec.layout_a == Layout::mn_major;
  spec.staged_b = spec.staged_b || spec.layout_b == Layout::mn_major;
  return spec;
}

// The spec for a named kernel, with everything chosen that it left open.
GemmSpec settled(const GemmCall& call, GemmKernel kernel, int multiprocessors) {
  if (kernel == GemmKernel::sm90) return on_sm90(call.spec, choose_sm90_tiling(call.spec, call.size, multiprocessors));
  if (kernel == GemmKernel::mma) {
    return with_tiling(call.spec, kernel, choose_mma_tiling(call.spec, call.size, multiprocessors));
  }
  return with_kernel(call.spec, kernel);
}

// The cost model's choice first.
std::vector<GemmSpec> tilings(const GemmCall& call, int multiprocessors) {
  std::vector<std::pair<double, GemmTiling>> timed;
  for (const GemmTiling& tiling : gemm_tilings(call.spec)) {
    timed.emplace_back(estimate_gemm(call.spec, call.size, tiling, multiprocessors), tiling);
  }
  std::ranges::stable_sort(timed, {}, &std::pair<double, GemmTiling>::first);
  std::vector<GemmSpec> specs;
  for (const auto& [us, tiling] : timed) {
    if (specs.size() >= kBestGuesses && us > kPlausible * timed.front().first) break;
    specs.push_back(on_sm90(call.spec, tiling));
  }
  return specs;
}

// For kernel sm90: adds variants of the spec that stage one or both operands, where staging is expected to pay.
void add_staged(std::vector<GemmSpec>& order, const GemmSpec& spec, const GemmCall& call, int multiprocessors) {
  for (const auto& [a, b] : {std::pair{true, false}, std::pair{false, true}, std::pair{true, true}}) {
    GemmSpec staged = spec;
    staged.staged_a = a;
    staged.staged_b = b;
    const bool needed = (spec.staged_a && !a) || (spec.staged_b && !b);
    if (needed || staged == spec || !prefers_staging(staged, call.size, multiprocessors)) continue;
    order.push_back(staged);
  }
}

}  // namespace

std::vector<GemmSpec> gemm_order(const GemmCall& call, const MatmulDevice& device, bool factors_as_read) {
  if (call.spec.kernel != GemmKernel::automatic) return {settled(call, call.spec.kernel, device.multiprocessors)};
  std::vector<GemmSpec> order;
  const auto add = [&](GemmKernel kernel) { order.push_back(settled(call, kernel, device.multiprocessors)); };
  if (cublaslt_may_take(call.spec, device.target)) add(GemmKernel::cublaslt);
  if (sm90_may_take(call.spec, device.target)) {
    const GemmSpec sm90 = settled(call, GemmKernel::sm90, device.multiprocessors);
    if (sm90_reads(call.spec) || prefers_staging(sm90, call.size, device.multiprocessors)) order.push_back(sm90);
    if (order.size() == 2 && device.compiles &&
        prefers_sm90(sm90, call.size, device.multiprocessors, factors_as_read)) {
      std::swap(order[0], order[1]);
    }
    if (is_fp8(call.spec.a)) add_staged(order, sm90, call, device.multiprocessors);
  }
  if (mma_may_take(call.spec, device.target)) add(GemmKernel::mma);
  add(GemmKernel::simt);
  return order;
}

std::vector<GemmSpec> gemm_candidates(const GemmCall& call, const MatmulDevice& device) {
  const GemmCall open{.spec = without_kernel(call.spec), .size = call.size};
  std::vector<GemmSpec> all{gemm_order(open, device).front()};
  const auto add = [&](const GemmSpec& spec) {
    if (spec != all.front()) all.push_back(spec);
  };
  const auto add_cublaslt = [&](int algorithm) {
    GemmSpec spec = with_kernel(open.spec, GemmKernel::cublaslt);
    spec.algorithm = algorithm;
    add(spec);
  };
  const bool cublaslt = cublaslt_may_take(open.spec, device.target);
  if (cublaslt) add_cublaslt(0);
  if (sm90_may_take(open.spec, device.target)) {
    for (const GemmSpec& spec : tilings(open, device.multiprocessors)) add(spec);
  }
  for (int i = 1; cublaslt && i < kCublasltAlgorithms; ++i) add_cublaslt(i);
  if (open.spec.a == Dtype::f32) {
    add(with_kernel(open.spec, GemmKernel::simt));
  } else {
    for (const GemmTiling& tiling : kMmaTilings) add(with_tiling(open.spec, GemmKernel::mma, tiling));
  }
  return all;
}

}  // namespace ingot
