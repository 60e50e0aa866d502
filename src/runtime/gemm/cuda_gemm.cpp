// gemm on a GPU: tries the kernels of the call's plan in order, and launches the first that supports the tensors. A
// spec that names its kernel has only that one.
#include <fmt/format.h>

#include <algorithm>

#include "ingot/codegen/gemm/gemm_sm90.h"
#include "ingot/runtime/error.h"
#include "ingot/runtime/gemm/cublaslt.h"
#include "ingot/runtime/gemm/cublaslt_factors.h"
#include "ingot/runtime/gemm/gemm_mma_rules.h"
#include "ingot/runtime/gemm/gemm_operations.h"
#include "ingot/runtime/gemm/gemm_pair_plans.h"
#include "ingot/runtime/gemm/gemm_params.h"
#include "ingot/runtime/gemm/gemm_plans.h"
#include "ingot/runtime/gemm/gemm_shape.h"
#include "ingot/runtime/gemm/gemm_sm90_rules.h"
#include "ingot/runtime/jit/launcher.h"
#include "ingot/runtime/stream.h"

#include "gemm/gemm_simt.cuh"

namespace ingot::cuda {
namespace {

void gemm_simt(const GemmSpec& spec, const GemmTensors& tensors, const MatmulSize& size, const Stream& stream,
               Launcher& launcher) {
  // An empty FP8 output still has a scale_inv to write.
  const i64 grid = std::max(i64{1}, GemmSimtLaunch::grid(size.m, size.n));
  launcher.launch(spec, Pass::main, grid, GemmSimtLaunch::kThreads, gemm_params(spec, tensors, size), stream);
}

const char* try_cublaslt(const GemmSpec& spec, const GemmTensors& tensors, const MatmulSize& size, Stream& stream,
                         Launcher& launcher, CublasLt* cublaslt) {
  if (cublaslt == nullptr) return "there is no cuBLASLt";
  if (const char* const reason = cublaslt->refusal(spec, tensors, size)) return reason;
  void* const workspace = stream.scratch(CublasLt::workspace_bytes(spec, tensors, size));
  if (launcher.hook() != nullptr) launcher.hook()->before(stream);
  if (!cublaslt->matmul(spec, tensors, size, workspace, stream.handle(), spec.algorithm)) {
    return "cuBLASLt has no algorithm with this number for this call";
  }
  launcher.count();
  if (launcher.hook() != nullptr) launcher.hook()->after(spec, Pass::main, stream);
  return nullptr;
}

// Requires a spec that names its kernel and tiling. Null if the call was enqueued, else why the kernel does not support
// it.
const char* try_kernel(const GemmSpec& spec, const GemmTensors& tensors, const MatmulSize& size, Stream& stream,
                       Launcher& launcher, CublasLt* cublaslt) {
  switch (spec.kernel) {
    case GemmKernel::automatic: return "no kernel is named";
    case GemmKernel::cublaslt: return try_cublaslt(spec, tensors, size, stream, launcher, cublaslt);
    case GemmKernel::sm90: {
      const char* reason = sm90_refusal(spec, tensors, size, launcher.target());
      if (reason == nullptr && !launcher.has_room(sm90_cluster_size(sm90_tiling(*spec.tiling)), stream)) {
        reason = "the stream's part of the GPU has no room for the tiling's clusters";
      }
      if (reason == nullptr) gemm_sm90(spec, tensors, size, stream, launcher);
      return reason;
    }
    case GemmKernel::mma: {
      const char* const reason = mma_refusal(spec, size, launcher.target());
      if (reason == nullptr) gemm_mma(spec, tensors, size, stream, launcher);
      return reason;
    }
    case GemmKernel::simt: gemm_simt(spec, tensors, size, stream, launcher); return nullptr;
  }
  return "unknown kernel";
}

}  // namespace

void gemm(const GemmSpec& spec, const GemmTensors& tensors, Stream& stream, Launcher& launcher, GemmPlans& plans,
          CublasLt* cublaslt) {
  const MatmulSize size = gemm_size(spec, tensors);
  if (size.m == 0 || size.n == 0) {
    if (!is_fp8(spec.out)) return;
    GemmSpec simt = without_kernel(spec);
    simt.kernel = GemmKernel::simt;
    return gemm_simt(simt, tensors, size, stream, launcher);
  }
  const char* reason = "";
  const bool factors_as_read = has_group_factors(spec) && cublaslt_factor_bytes(spec, tensors, size) == 0;
  for (const GemmSpec& named : plans.find(spec, size, factors_as_read)) {
    reason = try_kernel(named, tensors, size, stream, launcher, cublaslt);
    if (reason == nullptr) return;
  }
  throw Error(ErrorCode::invalid_argument, print(spec),
              fmt::format("{}; leave kernel out to have the library choose one", reason));
}

void gemm_pair(const GemmWork& first, const GemmWork& second, Stream& stream, Launcher& launcher, GemmPairPlans& pairs,
               GemmPlans& plans, CublasLt* cublaslt) {
  const GemmCall one{.spec = first.spec, .size = gemm_size(first.spec, first.tensors)};
  const GemmCall other{.spec = second.spec, .size = gemm_size(second.spec, second.tensors)};
  GemmPairPlans::Own own;
  const GemmPairSpec* const pair = pairs.find(one, other, own);
  const auto fits = [&](const GemmSpec& spec, const GemmTensors& tensors, const MatmulSize& size) {
    return sm90_refusal(spec, tensors, size, launcher.target()) == nullptr;
  };
  if (pair != nullptr && fits(pair->first, first.tensors, one.size) && fits(pair->second, second.tensors, other.size) &&
      launcher.may_launch(*pair, Pass::main, stream)) {
    return gemm_sm90_pair(*pair, first.tensors, second.tensors, stream, launcher);
  }
  gemm(first.spec, first.tensors, stream, launcher, plans, cublaslt);
  gemm(second.spec, second.tensors, stream, launcher, plans, cublaslt);
}

}  // namespace ingot::cuda
