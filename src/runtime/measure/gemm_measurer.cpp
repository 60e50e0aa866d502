#include "ingot/runtime/measure/gemm_measurer.h"

#include <algorithm>

#include "ingot/codegen/generate.h"
#include "ingot/runtime/jit/kernel_cache.h"

namespace ingot {
namespace {

// One replay: long enough for events to resolve small differences, short enough for many rounds.
constexpr MeasureOptions kGemmReplay{.graph_us = 1500};

}  // namespace

CudaGemmMeasurer::CudaGemmMeasurer(MeasuredGpu& gpu, RandomData& random, const GemmCall& call)
    : gpu_(&gpu),
      operands_(
          random, [&gpu](void* to, unsigned char byte, std::size_t bytes) { gpu.fill(to, byte, bytes); }, call) {}

void CudaGemmMeasurer::prepare(const MatmulSpec& candidate) {
  const auto& spec = std::get<GemmSpec>(candidate);
  if (spec.kernel == GemmKernel::cublaslt) return;
  KernelCache& cache = gpu_->context().cache();
  for (const Pass pass : passes(spec)) cache.compiled(generate(spec, pass), cache.target());
}

std::string CudaGemmMeasurer::check(const MatmulSpec& candidate) {
  operands_.poison();
  gpu_->backend().gemm(std::get<GemmSpec>(candidate), operands_.tensors(operands_.copies() - 1), gpu_->stream());
  return operands_.fault();
}

double CudaGemmMeasurer::measure(const MatmulSpec& candidate) {
  const auto found = std::ranges::find(replays_, candidate, [](const auto& entry) { return entry.first; });
  if (found != replays_.end()) return found->second->measure();
  const RotatedCall call{.copies = operands_.copies(), .enqueue = [&](int copy) {
                           gpu_->backend().gemm(std::get<GemmSpec>(candidate), operands_.tensors(copy), gpu_->stream());
                         }};
  replays_.emplace_back(candidate, std::make_unique<Replay>(*gpu_, call, kGemmReplay));
  return replays_.back().second->measure();
}

}  // namespace ingot
