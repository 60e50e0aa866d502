#include "ingot/runtime/measure/gpu_measurer.h"

#include <algorithm>

#include "ingot/codegen/generate.h"
#include "ingot/runtime/jit/kernel_cache.h"

namespace ingot {
namespace {

// One replay: long enough for events to resolve small differences, short enough for many rounds.
constexpr MeasureOptions kMatmulReplay{.graph_us = 1500};

}  // namespace

GpuMeasurer::GpuMeasurer(MeasuredGpu& gpu, RandomData& random, const MatmulSpec& spec, const MatmulSize& size)
    : gpu_(&gpu), operands_(operands_of(gpu, random, spec, size)) {}

GpuMeasurer::Operands GpuMeasurer::operands_of(MeasuredGpu& gpu, RandomData& random, const MatmulSpec& spec,
                                               const MatmulSize& size) {
  const auto fill = [&gpu](void* to, unsigned char byte, std::size_t bytes) { gpu.fill(to, byte, bytes); };
  if (const auto* const gemm = std::get_if<GemmSpec>(&spec)) return GemmOperands(random, fill, {*gemm, size});
  return DequantOperands(random, fill, std::get<DequantMatmulSpec>(spec), size);
}

int GpuMeasurer::copies() const {
  return std::visit([](const auto& operands) { return operands.copies(); }, operands_);
}

void GpuMeasurer::enqueue(const MatmulSpec& candidate, int copy) {
  if (const auto* const gemm = std::get_if<GemmSpec>(&candidate)) {
    gpu_->backend().gemm(*gemm, std::get<GemmOperands>(operands_).tensors(copy), gpu_->stream());
  } else {
    gpu_->backend().dequant_matmul(std::get<DequantMatmulSpec>(candidate),
                                   std::get<DequantOperands>(operands_).tensors(copy), gpu_->stream());
  }
}

void GpuMeasurer::prepare(const MatmulSpec& candidate) {
  const auto* const gemm = std::get_if<GemmSpec>(&candidate);
  if (gemm != nullptr && gemm->kernel == GemmKernel::cublaslt) return;
  KernelCache& cache = gpu_->context().cache();
  const KernelSpec spec = kernel_spec(candidate);
  for (const Pass pass : passes(spec)) cache.compiled(generate(spec, pass), cache.target());
}

std::string GpuMeasurer::check(const MatmulSpec& candidate) {
  std::visit([](auto& operands) { operands.poison(); }, operands_);
  enqueue(candidate, copies() - 1);
  return std::visit([](auto& operands) { return operands.fault(); }, operands_);
}

double GpuMeasurer::measure(const MatmulSpec& candidate) {
  const auto found = std::ranges::find(replays_, candidate, [](const auto& entry) { return entry.first; });
  if (found != replays_.end()) return found->second->measure();
  const RotatedCall call{.copies = copies(), .enqueue = [&](int copy) { enqueue(candidate, copy); }};
  replays_.emplace_back(candidate, std::make_unique<Replay>(*gpu_, call, kMatmulReplay));
  return replays_.back().second->measure();
}

}  // namespace ingot
