#include "ingot/runtime/measure/dequant_measurer.h"

#include <algorithm>
#include <variant>

#include "ingot/codegen/generate.h"
#include "ingot/runtime/jit/kernel_cache.h"

namespace ingot {
namespace {

// As for GEMMs (gemm_measurer.cpp).
constexpr MeasureOptions kDequantReplay{.graph_us = 1500};

}  // namespace

CudaDequantMeasurer::CudaDequantMeasurer(MeasuredGpu& gpu, RandomData& random, const DequantMatmulSpec& spec,
                                         const MatmulSize& size)
    : gpu_(&gpu),
      operands_(
          random, [&gpu](void* to, unsigned char byte, std::size_t bytes) { gpu.fill(to, byte, bytes); }, spec, size) {}

void CudaDequantMeasurer::prepare(const MatmulSpec& candidate) {
  KernelCache& cache = gpu_->context().cache();
  const KernelSpec spec = kernel_spec(candidate);
  for (const Pass pass : passes(spec)) cache.compiled(generate(spec, pass), cache.target());
}

std::string CudaDequantMeasurer::check(const MatmulSpec& candidate) {
  operands_.poison();
  gpu_->backend().dequant_matmul(std::get<DequantMatmulSpec>(candidate), operands_.tensors(operands_.copies() - 1),
                                 gpu_->stream());
  return operands_.fault();
}

double CudaDequantMeasurer::measure(const MatmulSpec& candidate) {
  const auto found = std::ranges::find(replays_, candidate, [](const auto& entry) { return entry.first; });
  if (found != replays_.end()) return found->second->measure();
  const RotatedCall call{.copies = operands_.copies(), .enqueue = [&](int copy) {
                           gpu_->backend().dequant_matmul(std::get<DequantMatmulSpec>(candidate),
                                                          operands_.tensors(copy), gpu_->stream());
                         }};
  replays_.emplace_back(candidate, std::make_unique<Replay>(*gpu_, call, kDequantReplay));
  return replays_.back().second->measure();
}

}  // namespace ingot
