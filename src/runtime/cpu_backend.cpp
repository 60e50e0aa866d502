#include "ingot/runtime/cpu_backend.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "ingot/runtime/cast/cast_operations.h"
#include "ingot/runtime/check.h"
#include "ingot/runtime/cpu/thread_pool.h"
#include "ingot/runtime/dequant/dequant_operations.h"
#include "ingot/runtime/error.h"
#include "ingot/runtime/gemm/gemm_operations.h"
#include "ingot/runtime/gemm/gemm_tensors.h"
#include "ingot/runtime/jit/kernel.h"
#include "ingot/runtime/jit/recorder.h"
#include "ingot/runtime/norm/norm_operations.h"
#include "ingot/runtime/quantize/quantize_operations.h"
#include "ingot/runtime/stream.h"

namespace ingot {
namespace {

constexpr std::align_val_t kAlignment{256};

class CpuBackend final : public Backend {
 public:
  CpuBackend(int threads, Recorder* recorder) : pool_(threads), recorder_(recorder) {}

  Device device() const override { return {DeviceType::cpu, 0}; }

  void amax(const AmaxSpec& spec, const AmaxTensors& tensors, Stream& stream) override {
    run(spec, tensors, stream, cpu::amax);
  }

  void cast(const CastSpec& spec, const CastTensors& tensors, Stream& stream) override {
    run(spec, tensors, stream, cpu::cast);
  }

  // Not recorded: a list is one operation, which was recorded when it was made.
  void cast_of_list(const CastSpec& spec, const CastTensors& tensors, Stream& stream) {
    compute(spec, tensors, stream, cpu::cast);
  }

  std::unique_ptr<CastList> make_cast_list(const CastSpec& spec, std::span<const CastTensors> tensors,
                                           Stream& stream) override;

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

  void column_sum(const ColumnSumSpec& spec, const ColumnSumTensors& tensors, Stream& stream) override {
    run(spec, tensors, stream, cpu::column_sum);
  }

  void relayout(const RelayoutSpec& spec, const RelayoutTensors& tensors, Stream& stream) override {
    run(spec, tensors, stream, cpu::relayout);
  }

  void cast_stats(const CastStatsSpec& spec, const CastStatsTensors& tensors, Stream& stream) override {
    run(spec, tensors, stream, cpu::cast_stats);
  }

  void elementwise(const ElementwiseSpec& spec, const ElementwiseTensors& tensors, Stream& stream) override {
    run(spec, tensors, stream, cpu::elementwise);
  }

  void norm(const NormSpec& spec, const NormTensors& tensors, Stream& stream) override {
    run(spec, tensors, stream, cpu::norm);
    if (recorder_ != nullptr) recorder_->note(wide_norm(spec, tensors.input.cols));  // what a GPU may run for it
  }

  void norm_backward(const NormBackwardSpec& spec, const NormBackwardTensors& tensors, Stream& stream) override {
    run(spec, tensors, stream, cpu::norm_backward);
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
      note(of, dequant_size(checked));
      cpu::dequant_matmul(of, checked, pool);
    });
  }

  void* allocate(std::size_t bytes) override {
    if (bytes == 0) return nullptr;
    void* const data = bytes <= static_cast<std::size_t>(std::numeric_limits<std::ptrdiff_t>::max())
                           ? ::operator new(bytes, kAlignment, std::nothrow)
                           : nullptr;
    if (data == nullptr) {
      throw Error(ErrorCode::out_of_memory, "cpu memory",
                  "no room for " + std::to_string(bytes) + " bytes; release tensors or use a smaller batch");
    }
    return data;
  }

  void release(void* data) noexcept override { ::operator delete(data, kAlignment); }

  void copy_from_host(void* device_data, const void* host_data, std::size_t bytes, Stream& stream) override {
    check_stream(stream, *this);
    check_pointers("copy_from_host", device_data, host_data, bytes);
    if (bytes != 0) std::memcpy(device_data, host_data, bytes);
  }

  void copy_to_host(void* host_data, const void* device_data, std::size_t bytes, Stream& stream) override {
    check_stream(stream, *this);
    check_pointers("copy_to_host", host_data, device_data, bytes);
    if (bytes != 0) std::memcpy(host_data, device_data, bytes);
  }

  void fill_zero(void* device_data, std::size_t bytes, Stream& stream) override {
    check_stream(stream, *this);
    check_pointers("fill_zero", device_data, device_data, bytes);
    if (bytes != 0) std::memset(device_data, 0, bytes);
  }

  void fill(float* device_data, float value, std::size_t count, Stream& stream) override {
    check_stream(stream, *this);
    check_pointers("fill", device_data, device_data, count * sizeof(float));
    std::fill_n(device_data, count, value);
  }

  void synchronize(Stream& /*stream*/) override {}
  bool capturing(const Stream& /*stream*/) const override { return false; }
  bool is_allocated(const void* /*device_data*/, std::size_t /*bytes*/) const override { return true; }
  std::unique_ptr<CapturedWork> capture(Stream& stream, const std::function<void()>& /*work*/) override {
    check_stream(stream, *this);
    throw Error(ErrorCode::invalid_argument, "graph",
                "the CPU backend runs work at once, so there is nothing to capture; call the work again instead of "
                "replaying it, or make the context on a GPU");
  }
  CUstream_st* create_stream() override { return nullptr; }
  void destroy_stream(CUstream_st* /*stream*/) noexcept override {}
  std::int64_t launches() const override { return 0; }

  // Work has been done when a call returns.
  void* create_fence() override { return nullptr; }
  void destroy_fence(void* /*fence*/) noexcept override {}
  void wait(const Stream& stream, const Stream& other, void* /*fence*/) override {
    check_stream(stream, *this);
    check_stream(other, *this);
  }

  void* create_mark() override { return new Clock::time_point; }
  void destroy_mark(void* mark) noexcept override { delete static_cast<Clock::time_point*>(mark); }
  void record_mark(void* mark, const Stream& stream) override {
    check_stream(stream, *this);
    *static_cast<Clock::time_point*>(mark) = Clock::now();
  }
  double microseconds_between(void* begin, void* end) override {
    return std::chrono::duration<double, std::micro>(*static_cast<Clock::time_point*>(end) -
                                                     *static_cast<Clock::time_point*>(begin))
        .count();
  }
  void set_launch_hook(LaunchHook* hook) override { hook_ = hook; }

 private:
  using Clock = std::chrono::steady_clock;

  // Every operation: operation(spec, tensors, pool).
  template <class Spec, class Tensors, class Operation>
  void run(const Spec& spec, const Tensors& tensors, Stream& stream, const Operation& operation) {
    compute(spec, tensors, stream, operation);
    if (recorder_ != nullptr && !is_matmul<Spec>) recorder_->note(spec);
  }

  template <class Spec, class Tensors, class Operation>
  void compute(const Spec& spec, const Tensors& tensors, Stream& stream, const Operation& operation) {
    check_stream(stream, *this);
    check(spec, tensors, device());
    if (hook_ != nullptr) hook_->before(stream);
    operation(spec, tensors, pool_);
    if (hook_ != nullptr) hook_->after(spec, Pass::main, stream);
  }

  template <class Spec>
  static constexpr bool is_matmul = std::is_same_v<Spec, GemmSpec> || std::is_same_v<Spec, DequantMatmulSpec>;

  template <class Spec>
  void note(const Spec& spec, const MatmulSize& size) {
    if (recorder_ != nullptr) recorder_->note(spec, size);
  }

  ThreadPool pool_;
  Recorder* recorder_;
  LaunchHook* hook_ = nullptr;
};

// One cast after the other.
class CpuCastList final : public CastList {
 public:
  CpuCastList(CpuBackend& backend, const CastSpec& spec, std::span<const CastTensors> tensors)
      : backend_(&backend), spec_(spec), tensors_(tensors.begin(), tensors.end()) {
    spec_.list = false;
  }

  void run(Stream& stream) override {
    check_stream(stream, *backend_);
    for (const CastTensors& tensors : tensors_) backend_->cast_of_list(spec_, tensors, stream);
  }

 private:
  CpuBackend* backend_;
  CastSpec spec_;
  std::vector<CastTensors> tensors_;
};

std::unique_ptr<CastList> CpuBackend::make_cast_list(const CastSpec& spec, std::span<const CastTensors> tensors,
                                                     Stream& stream) {
  check_stream(stream, *this);
  check_list(spec, tensors, device());
  if (recorder_ != nullptr) {
    CastSpec of_list = spec;
    of_list.list = true;
    recorder_->note(of_list);
  }
  return std::make_unique<CpuCastList>(*this, spec, tensors);
}

}  // namespace

std::unique_ptr<Backend> make_cpu_backend(int threads, Recorder* recorder) {
  return std::make_unique<CpuBackend>(threads, recorder);
}

}  // namespace ingot
