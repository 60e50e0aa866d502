#include <fmt/format.h>

#include <algorithm>

#include "ingot/codegen/candidates.h"
#include "ingot/runtime/check.h"
#include "ingot/runtime/cuda/cublaslt.h"
#include "ingot/runtime/cuda/cuda_backend.h"
#include "ingot/runtime/cuda/gemm_epilogue.h"
#include "ingot/runtime/cuda/gemm_mma_rules.h"
#include "ingot/runtime/cuda/gemm_sm90_rules.h"
#include "ingot/runtime/cuda/gemm_strides.h"
#include "ingot/runtime/cuda/operations.h"
#include "ingot/runtime/error.h"
#include "ingot/runtime/gemm_choices.h"
#include "ingot/runtime/gemm_manifest.h"

#include "gemm_simt.cuh"

namespace ingot::cuda {
namespace {

void launch_simt(const GemmSpec& spec, const GemmTensors& tensors, const GemmShape& shape, const Stream& stream,
                 Launcher& launcher) {
  const GemmStrides a = gemm_strides(tensors.a, spec.layout_a);
  const GemmStrides b = gemm_strides(tensors.b, spec.layout_b);
  const GemmSimtParams params{.a = tensors.a.data,
                              .b = tensors.b.data,
                              .factor_a = static_cast<const float*>(tensors.factor_a.data),
                              .factor_b = static_cast<const float*>(tensors.factor_b.data),
                              .bias = tensors.bias.data,
                              .out = tensors.out.data,
                              .m = shape.m,
                              .n = shape.n,
                              .k = shape.k,
                              .a_stride_m = a.outer,
                              .a_stride_k = a.k,
                              .b_stride_n = b.outer,
                              .b_stride_k = b.k,
                              .out_stride = tensors.out.row_stride,
                              .factor_a_stride = spec.scale_a == kRowwise ? 1 : 0,
                              .factor_b_stride = spec.scale_b == kRowwise ? 1 : 0,
                              .groups = has_group_factors(spec) ? ceil_div(i64{shape.k}, i64{kGemmSimtGroup}) : 0,
                              .factor_b_rows = spec.scale_b == kBlocks ? kBlocks.rows : 1,
                              .epilogue = epilogue_params(tensors)};
  // Without elements there is still an FP8 output's factor to write.
  const i64 grid = std::max(i64{1}, GemmSimtLaunch::grid(shape.m, shape.n));
  GemmSpec chosen = without_kernel(spec);
  chosen.kernel = GemmKernel::simt;
  launcher.launch(chosen, Pass::main, grid, GemmSimtLaunch::kThreads, params, stream);
}

// True where it has taken the call.
bool try_cublaslt(const GemmSpec& spec, const GemmTensors& tensors, const GemmShape& shape, Stream& stream,
                  Launcher& launcher, CublasLt* cublaslt) {
  if (cublaslt == nullptr || !cublaslt->supports(spec, tensors, shape)) return false;
  void* const workspace = stream.scratch(CublasLt::kWorkspaceBytes);
  if (!cublaslt->matmul(spec, tensors, shape, workspace, stream.handle(), spec.algorithm)) return false;
  launcher.count();
  return true;
}

// The kernel that tuning has found for this call, where that takes it: tensors may lie differently than those that were
// measured. True where it has.
bool try_chosen(const GemmSpec& spec, const GemmTensors& tensors, const GemmShape& shape, Stream& stream,
                Launcher& launcher, const GemmServices& services) {
  if (services.choices == nullptr) return false;
  const GemmSpec* const chosen =
      services.choices->find({.spec = spec, .size = {.m = shape.m, .n = shape.n, .k = shape.k}});
  if (chosen == nullptr) return false;
  switch (chosen->kernel) {
    case GemmKernel::cublaslt: return try_cublaslt(*chosen, tensors, shape, stream, launcher, services.cublaslt);
    case GemmKernel::sm90:
      if (sm90_refusal(*chosen, tensors, shape, launcher.target()) != nullptr) return false;
      gemm_sm90(*chosen, tensors, shape, stream, launcher);
      return true;
    case GemmKernel::mma:
      if (mma_refusal(*chosen, shape, launcher.target()) != nullptr) return false;
      gemm_mma(*chosen, tensors, shape, stream, launcher);
      return true;
    case GemmKernel::simt: launch_simt(*chosen, tensors, shape, stream, launcher); return true;
    case GemmKernel::automatic: return false;
  }
  return false;
}

[[noreturn]] void refuse(const GemmSpec& spec, const char* reason) {
  throw Error(ErrorCode::invalid_argument, print(spec),
              fmt::format("{}; leave kernel out to have the library choose one", reason));
}

}  // namespace

void gemm(const GemmSpec& spec, const GemmTensors& tensors, Stream& stream, Launcher& launcher,
          const GemmServices& services) {
  const GemmShape shape = gemm_shape(spec, tensors);
  if (shape.m == 0 || shape.n == 0) {
    if (is_fp8(spec.out)) launch_simt(spec, tensors, shape, stream, launcher);
    return;
  }
  CublasLt* const cublaslt = services.cublaslt;
  if (services.manifest != nullptr && shape.k != 0) {
    services.manifest->note(spec, {.m = shape.m, .n = shape.n, .k = shape.k});
  }
  switch (spec.kernel) {
    case GemmKernel::automatic: {
      if (try_chosen(spec, tensors, shape, stream, launcher, services)) return;
      const bool sm90 = sm90_refusal(spec, tensors, shape, launcher.target()) == nullptr;
      if (sm90 && services.compiles && prefers_sm90(spec, {.m = shape.m, .n = shape.n, .k = shape.k})) {
        return gemm_sm90(spec, tensors, shape, stream, launcher);
      }
      if (try_cublaslt(spec, tensors, shape, stream, launcher, cublaslt)) return;
      if (sm90) return gemm_sm90(spec, tensors, shape, stream, launcher);
      if (mma_refusal(spec, shape, launcher.target()) == nullptr) {
        return gemm_mma(spec, tensors, shape, stream, launcher);
      }
      return launch_simt(spec, tensors, shape, stream, launcher);
    }
    case GemmKernel::cublaslt: {
      if (try_cublaslt(spec, tensors, shape, stream, launcher, cublaslt)) return;
      refuse(spec, cublaslt == nullptr ? "there is no cuBLASLt" : cublaslt->why_not(spec, tensors, shape));
    }
    case GemmKernel::sm90: {
      if (const char* reason = sm90_refusal(spec, tensors, shape, launcher.target())) refuse(spec, reason);
      return gemm_sm90(spec, tensors, shape, stream, launcher);
    }
    case GemmKernel::mma: {
      if (const char* reason = mma_refusal(spec, shape, launcher.target())) refuse(spec, reason);
      return gemm_mma(spec, tensors, shape, stream, launcher);
    }
    case GemmKernel::simt: return launch_simt(spec, tensors, shape, stream, launcher);
  }
}

}  // namespace ingot::cuda
