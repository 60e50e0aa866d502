// The backend of one GPU, on the CUDA driver API. An operation checks its arguments, makes the GPU's context current
// and hands over to its family (gemm/gemm_operations.h, cast/cast_operations.h, ...).
#include "ingot/runtime/context/cuda_backend.h"

#include "ingot/runtime/cast/cast_operations.h"
#include "ingot/runtime/context/expert_checks.h"
#include "ingot/runtime/core/stream.h"
#include "ingot/runtime/cuda/cuda_device.h"
#include "ingot/runtime/dequant/dequant_operations.h"
#include "ingot/runtime/dequant/dequant_plans.h"
#include "ingot/runtime/gemm/gemm_operations.h"
#include "ingot/runtime/gemm/gemm_plans.h"
#include "ingot/runtime/jit/launcher.h"
#include "ingot/runtime/norm/norm_operations.h"
#include "ingot/runtime/quantize/quantize_operations.h"

namespace ingot {
namespace {

class CudaBackend final : public Backend {
 public:
  CudaBackend(const Driver& driver, int device_index, KernelCache& cache, const MatmulServices& services)
      : Backend(std::make_unique<CudaDevice>(driver, device_index)),
        launcher_(static_cast<CudaDevice&>(device_api()), cache),
        cublaslt_(services.cublaslt),
        plans_(services, launcher_.target(), launcher_.multiprocessors()),
        pair_plans_(services, {.target = launcher_.target(), .multiprocessors = launcher_.multiprocessors()},
                    [&cache](const GemmPairSpec& pair) { return cache.can_get(pair); }),
        dequant_plans_(services, {.target = launcher_.target(), .multiprocessors = launcher_.multiprocessors()}) {}

  void amax(const AmaxSpec& spec, const AmaxTensors& tensors, Stream& stream) override {
    run(spec, tensors, stream, cuda::amax);
  }

  std::unique_ptr<AmaxList> make_amax_list(const AmaxSpec& spec, std::span<const AmaxTensors> tensors,
                                           Stream& stream) override {
    check_list(spec, tensors, device());
    const CurrentContext current = launcher_.device().begin(stream);
    return cuda::make_amax_list(spec, tensors, stream, launcher_);
  }

  void cast(const CastSpec& spec, const CastTensors& tensors, Stream& stream) override {
    check_experts(spec, tensors, device_api(), stream);
    run(spec, tensors, stream, cuda::cast);
  }

  std::unique_ptr<CastList> make_cast_list(const CastSpec& spec, std::span<const CastTensors> tensors,
                                           Stream& stream) override {
    check_list(spec, tensors, device());
    const CurrentContext current = launcher_.device().begin(stream);
    return cuda::make_cast_list(spec, tensors, stream, launcher_);
  }

  void gemm(const GemmSpec& spec, const GemmTensors& tensors, Stream& stream) override {
    run(spec, tensors, stream, cuda::gemm, plans_, cublaslt_);
  }

  void gemm_pair(const GemmWork& first, const GemmWork& second, Stream& stream) override {
    check(first, second, device());
    const CurrentContext current = launcher_.device().begin(stream);
    cuda::gemm_pair(first, second, stream, launcher_, pair_plans_, plans_, cublaslt_);
  }

  bool pairs(const GemmCall& first, const GemmCall& second) override {
    GemmPairPlans::Own own;
    return pair_plans_.find(first, second, own) != nullptr;
  }

  void grouped_gemm(const GroupedGemmSpec& spec, const GroupedGemmTensors& tensors, Stream& stream) override {
    check_experts(spec, tensors, device_api(), stream);
    run(spec, tensors, stream, cuda::grouped_gemm);
  }

  void column_sum(const ColumnSumSpec& spec, const ColumnSumTensors& tensors, Stream& stream) override {
    check_experts(spec, tensors, device_api(), stream);
    run(spec, tensors, stream, cuda::column_sum);
  }

  void relayout(const RelayoutSpec& spec, const RelayoutTensors& tensors, Stream& stream) override {
    run(spec, tensors, stream, cuda::relayout);
  }

  void combine(const CombineSpec& spec, const CombineTensors& tensors, Stream& stream) override {
    check_experts(spec, tensors, device_api(), stream);
    run(spec, tensors, stream, cuda::combine);
  }

  void elementwise(const ElementwiseSpec& spec, const ElementwiseTensors& tensors, Stream& stream) override {
    run(spec, tensors, stream, cuda::elementwise);
  }

  void cast_stats(const CastStatsSpec& spec, const CastStatsTensors& tensors, Stream& stream) override {
    run(spec, tensors, stream, cuda::cast_stats);
  }

  void norm(const NormSpec& spec, const NormTensors& tensors, Stream& stream) override {
    run(spec, tensors, stream, cuda::norm);
  }

  void norm_backward(const NormBackwardSpec& spec, const NormBackwardTensors& tensors, Stream& stream) override {
    run(spec, tensors, stream, cuda::norm_backward);
  }

  void amax_scales(const AmaxScalesSpec& spec, const AmaxScalesTensors& tensors, Stream& stream) override {
    run(spec, tensors, stream, cuda::amax_scales);
  }

  void amax_history(const AmaxHistorySpec& spec, const AmaxHistoryTensors& tensors, Stream& stream) override {
    run(spec, tensors, stream, cuda::amax_history);
  }

  void quantize_mx(const MxQuantizeSpec& spec, const MxQuantizeTensors& tensors, Stream& stream) override {
    run(spec, tensors, stream, cuda::quantize_mx);
  }

  void float_quantize(const FloatQuantizeSpec& spec, const FloatQuantizeTensors& tensors, Stream& stream) override {
    run(spec, tensors, stream, cuda::float_quantize);
  }

  void pack_weight(const PackWeightSpec& spec, const PackWeightTensors& tensors, Stream& stream) override {
    run(spec, tensors, stream, cuda::pack_weight);
  }

  void dequant_matmul(const DequantMatmulSpec& spec, const DequantMatmulTensors& tensors, Stream& stream) override {
    check_experts(spec, tensors, device_api(), stream);
    run(spec, tensors, stream, cuda::dequant_matmul, dequant_plans_);
  }

 private:
  // Every operation: operation(spec, tensors, stream, launcher, services...), with the context current.
  template <class Spec, class Tensors, class Operation, class... Services>
  void run(const Spec& spec, const Tensors& tensors, Stream& stream, const Operation& operation,
           Services&... services) {
    check(spec, tensors, device());
    const CurrentContext current = launcher_.device().begin(stream);
    operation(spec, tensors, stream, launcher_, services...);
  }

  Launcher launcher_;
  CublasLt* cublaslt_;
  GemmPlans plans_;
  GemmPairPlans pair_plans_;
  DequantPlans dequant_plans_;
};

}  // namespace

std::unique_ptr<Backend> make_cuda_backend(const Driver& driver, int device_index, KernelCache& cache,
                                           const MatmulServices& services) {
  return std::make_unique<CudaBackend>(driver, device_index, cache, services);
}

}  // namespace ingot
