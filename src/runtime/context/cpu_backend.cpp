#include "ingot/runtime/context/cpu_backend.h"

#include <memory>
#include <span>
#include <type_traits>
#include <vector>

#include "ingot/runtime/cast/cast_operations.h"
#include "ingot/runtime/context/expert_checks.h"
#include "ingot/runtime/core/stream.h"
#include "ingot/runtime/cpu/cpu_device.h"
#include "ingot/runtime/cpu/thread_pool.h"
#include "ingot/runtime/dequant/dequant_operations.h"
#include "ingot/runtime/gemm/gemm_operations.h"
#include "ingot/runtime/gemm/gemm_tensors.h"
#include "ingot/runtime/jit/kernel.h"
#include "ingot/runtime/jit/recorder.h"
#include "ingot/runtime/norm/norm_operations.h"
#include "ingot/runtime/quantize/quantize_operations.h"

namespace ingot {
namespace {

class CpuBackend final : public Backend {
 public:
  CpuBackend(int threads, Recorder* recorder) : Backend(make_cpu_device()), pool_(threads), recorder_(recorder) {}

  void amax(const AmaxSpec& spec, const AmaxTensors& tensors, Stream& stream) override {
    run(spec, tensors, stream, cpu::amax);
  }

  void cast(const CastSpec& spec, const CastTensors& tensors, Stream& stream) override {
    check_experts(spec, tensors, device_api(), stream);
    run(spec, tensors, stream, cpu::cast);
  }

  std::unique_ptr<AmaxList> make_amax_list(const AmaxSpec& spec, std::span<const AmaxTensors> tensors,
                                           Stream& stream) override {
    return make_list<AmaxList>(spec, tensors, stream, cpu::amax);
  }

  std::unique_ptr<CastList> make_cast_list(const CastSpec& spec, std::span<const CastTensors> tensors,
                                           Stream& stream) override {
    return make_list<CastList>(spec, tensors, stream, cpu::cast);
  }

  void gemm(const GemmSpec& spec, const GemmTensors& tensors, Stream& stream) override {
    run(spec, tensors, stream, [this](const auto& of, const auto& checked, ThreadPool& pool) {
      note(of, gemm_size(of, checked));
      cpu::gemm(of, checked, pool);
    });
  }

  void gemm_pair(const GemmWork& first, const GemmWork& second, Stream& stream) override {
    check(first, second, device());
    Backend::gemm_pair(first, second, stream);
  }

  void grouped_gemm(const GroupedGemmSpec& spec, const GroupedGemmTensors& tensors, Stream& stream) override {
    run(spec, tensors, stream, cpu::grouped_gemm);
  }

  void column_sum(const ColumnSumSpec& spec, const ColumnSumTensors& tensors, Stream& stream) override {
    check_experts(spec, tensors, device_api(), stream);
    run(spec, tensors, stream, cpu::column_sum);
  }

  void relayout(const RelayoutSpec& spec, const RelayoutTensors& tensors, Stream& stream) override {
    run(spec, tensors, stream, cpu::relayout);
  }

  void cast_stats(const CastStatsSpec& spec, const CastStatsTensors& tensors, Stream& stream) override {
    run(spec, tensors, stream, cpu::cast_stats);
  }

  void combine(const CombineSpec& spec, const CombineTensors& tensors, Stream& stream) override {
    check_experts(spec, tensors, device_api(), stream);
    run(spec, tensors, stream, cpu::combine);
  }

  void elementwise(const ElementwiseSpec& spec, const ElementwiseTensors& tensors, Stream& stream) override {
    run(spec, tensors, stream, cpu::elementwise);
  }

  void norm(const NormSpec& spec, const NormTensors& tensors, Stream& stream) override {
    run(spec, tensors, stream, cpu::norm);
    if (recorder_ != nullptr) recorder_->note(named_norm(spec, tensors.input.cols));  // what a GPU may run for it
  }

  void norm_backward(const NormBackwardSpec& spec, const NormBackwardTensors& tensors, Stream& stream) override {
    run(spec, tensors, stream, cpu::norm_backward);
  }

  void amax_scales(const AmaxScalesSpec& spec, const AmaxScalesTensors& tensors, Stream& stream) override {
    run(spec, tensors, stream, cpu::amax_scales);
  }

  void amax_history(const AmaxHistorySpec& spec, const AmaxHistoryTensors& tensors, Stream& stream) override {
    run(spec, tensors, stream, cpu::amax_history);
  }

  void quantize_mx(const MxQuantizeSpec& spec, const MxQuantizeTensors& tensors, Stream& stream) override {
    run(spec, tensors, stream, cpu::quantize_mx);
  }

  void float_quantize(const FloatQuantizeSpec& spec, const FloatQuantizeTensors& tensors, Stream& stream) override {
    run(spec, tensors, stream, cpu::float_quantize);
  }

  void pack_weight(const PackWeightSpec& spec, const PackWeightTensors& tensors, Stream& stream) override {
    run(spec, tensors, stream, cpu::pack_weight);
  }

  void dequant_matmul(const DequantMatmulSpec& spec, const DequantMatmulTensors& tensors, Stream& stream) override {
    run(spec, tensors, stream, [this](const auto& of, const auto& checked, ThreadPool& pool) {
      note(of, planned_size(of, checked));
      cpu::dequant_matmul(of, checked, pool);
    });
  }

 private:
  // Every operation: operation(spec, tensors, pool). A kernel that only a matmul's size decides is not noted here.
  template <class Spec, class Tensors, class Operation>
  void run(const Spec& spec, const Tensors& tensors, Stream& stream, const Operation& operation) {
    compute(spec, tensors, stream, operation);
    if (recorder_ != nullptr && !is_matmul<Spec>) recorder_->note(spec);
  }

  template <class Spec, class Tensors, class Operation>
  void compute(const Spec& spec, const Tensors& tensors, Stream& stream, const Operation& operation) {
    check_stream(stream, *this);
    check(spec, tensors, device());
    compute_checked(spec, tensors, stream, operation);
  }

  template <class Spec, class Tensors, class Operation>
  void compute_checked(const Spec& spec, const Tensors& tensors, Stream& stream, const Operation& operation) {
    LaunchHook* const hook = device_api().launch_hook();
    if (hook != nullptr) hook->before(stream);
    operation(spec, tensors, pool_);
    if (hook != nullptr) hook->after(spec, Pass::main, stream);
  }

  // One after the other. A list is one operation: it is recorded when it is made, and not when it runs.
  template <class List, class Spec, class Tensors, class Operation>
  class CpuList final : public List {
   public:
    CpuList(CpuBackend& backend, const Spec& spec, std::span<const Tensors> tensors, const Operation& operation)
        : backend_(&backend), spec_(spec), tensors_(tensors.begin(), tensors.end()), operation_(operation) {
      spec_.list = false;
    }

    void run(Stream& stream) override {
      check_stream(stream, *backend_);
      for (const Tensors& tensors : tensors_) backend_->compute_checked(spec_, tensors, stream, operation_);
    }

   private:
    CpuBackend* backend_;
    Spec spec_;
    std::vector<Tensors> tensors_;
    Operation operation_;
  };

  template <class List, class Spec, class Tensors, class Operation>
  std::unique_ptr<List> make_list(const Spec& spec, std::span<const Tensors> tensors, Stream& stream,
                                  const Operation& operation) {
    check_stream(stream, *this);
    check_list(spec, tensors, device());
    if (recorder_ != nullptr) {
      Spec of_list = spec;
      of_list.list = true;
      recorder_->note(of_list);
    }
    return std::make_unique<CpuList<List, Spec, Tensors, Operation*>>(*this, spec, tensors, &operation);
  }

  template <class Spec>
  static constexpr bool is_matmul = std::is_same_v<Spec, GemmSpec> || std::is_same_v<Spec, DequantMatmulSpec> ||
                                    std::is_same_v<Spec, GroupedGemmSpec>;

  template <class Spec>
  void note(const Spec& spec, const MatmulSize& size) {
    if (recorder_ != nullptr) recorder_->note(spec, size);
  }

  ThreadPool pool_;
  Recorder* recorder_;
};

}  // namespace

std::unique_ptr<Backend> make_cpu_backend(int threads, Recorder* recorder) {
  return std::make_unique<CpuBackend>(threads, recorder);
}

}  // namespace ingot
