// gemm on a GPU: tries the kernels of the call's plan in order, and launches the first that supports the tensors. A
// spec that names its kernel has only that one. relayout, and with it the staging of operands that gemm_sm90 cannot
// read as they are stored.
#include <fmt/format.h>
#include <algorithm>
#include "gemm/gemm_simt.cuh"
#include "gemm/relayout.cuh"
#include "ingot/codegen/gemm/gemm_sm90.h"
#include "ingot/runtime/core/stream.h"
#include "ingot/runtime/gemm/cublaslt.h"
#include "ingot/runtime/gemm/cublaslt_rules.h"
#include "ingot/runtime/gemm/gemm_operations.h"
#include "ingot/runtime/gemm/gemm_params.h"
#include "ingot/runtime/gemm/gemm_plans.h"
#include "ingot/runtime/gemm/gemm_rules.h"
#include "ingot/runtime/gemm/gemm_tensors.h"
#include "ingot/runtime/jit/launcher.h"
#include "ingot/runtime/util/error.h"

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
  const bool scale_inv_as_read = has_group_scale_inv(spec) && cublaslt_scale_inv_bytes(spec, tensors, size) == 0;
  for (const GemmSpec& named : plans.find(spec, size, scale_inv_as_read)) {
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

void gemm_mma(const GemmSpec& spec, const GemmTensors& tensors, const MatmulSize& size, const Stream& stream,
              Launcher& launcher) {
  const MmaTiling tiling{.m = static_cast<u32>(spec.tiling->m), .n = static_cast<u32>(spec.tiling->n)};
  launcher.launch(spec, Pass::main,
                  {.grid_x = static_cast<unsigned>(mma_blocks(tiling, size.m, size.n)),
                   .block = mma_threads(tiling),
                   .shared_bytes = mma_shared_bytes(tiling)},
                  gemm_mma_params(spec, tensors, size), stream);
}

namespace {

constexpr i64 kRowBytes = 64;  // staged rows start at multiples of this: TMA requires 16, and is slower below 64

Tensor staged_codes(void* data, const Tensor& codes, i64 rows, i64 k) {
  Tensor staged = matrix(data, codes.dtype, rows, k, codes.device);
  staged.row_stride = ceil_div(k, kRowBytes) * kRowBytes;
  return staged;
}

std::size_t bytes_of(i64 rows, i64 k) { return static_cast<std::size_t>(rows * ceil_div(k, kRowBytes) * kRowBytes); }

}  // namespace

void relayout(const RelayoutSpec& spec, const RelayoutTensors& tensors, const Stream& stream, Launcher& launcher) {
  const Tensor& input = tensors.input;
  if (input.rows == 0 || input.cols == 0) return;
  const i64 matrices = tensors.matrices;
  const i64 rows = input.rows / matrices;
  const i64 tiles = CastTilesLaunch::grid(rows, input.cols);
  const RelayoutParams params{.in = static_cast<const u8*>(input.data),
                              .rows = rows,
                              .cols = input.cols,
                              .in_stride = input.row_stride,
                              .out = static_cast<u8*>(tensors.output.data),
                              .out_stride = tensors.output.row_stride,
                              .in_step = rows * input.row_stride,
                              .out_step = tensors.output.rows / matrices * tensors.output.row_stride,
                              .tiles = static_cast<u32>(tiles)};
  launcher.launch(spec, Pass::main, matrices * tiles, CastTilesLaunch::kThreads, params, stream);
}

std::size_t staged_bytes(const GemmSpec& spec, const MatmulSize& size) {
  return (spec.staged_a ? bytes_of(size.m, size.k) : 0) + (spec.staged_b ? bytes_of(size.n, size.k) : 0);
}

GemmTensors stage(const GemmSpec& spec, const GemmTensors& tensors, const MatmulSize& size, void* memory,
                  const Stream& stream, Launcher& launcher) {
  GemmTensors staged = tensors;
  const auto bring = [&](Tensor& codes, Layout layout, i64 rows, std::size_t offset) {
    const Tensor target = staged_codes(static_cast<std::byte*>(memory) + offset, codes, rows, size.k);
    relayout({.transposed = layout == Layout::mn_major}, {.input = codes, .output = target}, stream, launcher);
    codes = target;
  };
  if (spec.staged_a) bring(staged.a, spec.layout_a, size.m, 0);
  if (spec.staged_b) bring(staged.b, spec.layout_b, size.n, spec.staged_a ? bytes_of(size.m, size.k) : 0);
  return staged;
}

}  // namespace ingot::cuda
