// The backend of one GPU, on the CUDA driver API. An operation checks its arguments, makes the GPU's context current
// and hands over to its family (gemm/gemm_operations.h, cast/cast_operations.h, ...). Memory, streams, fences and
// timing events are the driver's.
//
// Memory comes from cuMemAlloc rather than a stream-ordered pool: it outlives streams, may be used on all of them, and
// is allocated in the first step only.
#include "ingot/runtime/cuda_backend.h"

#include <string>

#include "ingot/runtime/cast/cast_operations.h"
#include "ingot/runtime/check.h"
#include "ingot/runtime/cuda/capture_zeros.h"
#include "ingot/runtime/cuda/captured_graph.h"
#include "ingot/runtime/cuda/driver.h"
#include "ingot/runtime/dequant/dequant_operations.h"
#include "ingot/runtime/dequant/dequant_plans.h"
#include "ingot/runtime/error.h"
#include "ingot/runtime/gemm/gemm_operations.h"
#include "ingot/runtime/gemm/gemm_plans.h"
#include "ingot/runtime/jit/launcher.h"
#include "ingot/runtime/norm/norm_operations.h"
#include "ingot/runtime/quantize/quantize_operations.h"
#include "ingot/runtime/stream.h"

namespace ingot {
namespace {

CUdeviceptr address(const void* data) { return reinterpret_cast<CUdeviceptr>(data); }

class CudaBackend final : public Backend {
 public:
  CudaBackend(const Driver& driver, int device_index, KernelCache& cache, const MatmulServices& services)
      : device_{DeviceType::cuda, device_index},
        launcher_(driver, device_index, cache),
        cublaslt_(services.cublaslt),
        plans_(services, launcher_.target(), launcher_.multiprocessors()),
        pair_plans_(services, {.target = launcher_.target(), .multiprocessors = launcher_.multiprocessors()},
                    [&cache](const GemmPairSpec& pair) { return cache.can_get(pair); }),
        dequant_plans_(services, {.target = launcher_.target(), .multiprocessors = launcher_.multiprocessors()}),
        capture_zeros_(driver, device_index) {}

  Device device() const override { return device_; }

  void amax(const AmaxSpec& spec, const AmaxTensors& tensors, Stream& stream) override {
    run(spec, tensors, stream, cuda::amax);
  }

  void cast(const CastSpec& spec, const CastTensors& tensors, Stream& stream) override {
    run(spec, tensors, stream, cuda::cast);
  }

  std::unique_ptr<CastList> make_cast_list(const CastSpec& spec, std::span<const CastTensors> tensors,
                                           Stream& stream) override {
    check_list(spec, tensors, device_);
    const CurrentContext current = begin(stream);
    return cuda::make_cast_list(spec, tensors, stream, launcher_);
  }

  void gemm(const GemmSpec& spec, const GemmTensors& tensors, Stream& stream) override {
    run(spec, tensors, stream, cuda::gemm, plans_, cublaslt_);
  }

  void gemm_pair(const GemmWork& first, const GemmWork& second, Stream& stream) override {
    check(first, second, device_);
    const CurrentContext current = begin(stream);
    cuda::gemm_pair(first, second, stream, launcher_, pair_plans_, plans_, cublaslt_);
  }

  bool pairs(const GemmCall& first, const GemmCall& second) override {
    GemmPairPlans::Own own;
    return pair_plans_.find(first, second, own) != nullptr;
  }

  void column_sum(const ColumnSumSpec& spec, const ColumnSumTensors& tensors, Stream& stream) override {
    run(spec, tensors, stream, cuda::column_sum);
  }

  void relayout(const RelayoutSpec& spec, const RelayoutTensors& tensors, Stream& stream) override {
    run(spec, tensors, stream, cuda::relayout);
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
    run(spec, tensors, stream, cuda::dequant_matmul, dequant_plans_);
  }

  void* allocate(std::size_t bytes) override {
    if (bytes == 0) return nullptr;
    const CurrentContext current = launcher_.make_current();
    CUdeviceptr data = 0;
    const CUresult result = outside_of_captures([&] { return api().cuMemAlloc(&data, bytes); });
    if (result == CUDA_ERROR_OUT_OF_MEMORY) throw_out_of_memory(bytes);
    driver().check(result, "cuMemAlloc");
    return reinterpret_cast<void*>(data);
  }

  // cuMemFree waits for the work that may use the memory. Nothing can be done about a failure here: a broken context
  // reports it to the next call that can throw.
  void release(void* data) noexcept override {
    if (data == nullptr) return;
    try {
      const CurrentContext current = launcher_.make_current();
      static_cast<void>(outside_of_captures([&] { return api().cuMemFree(address(data)); }));
    } catch (const Error&) {
      return;
    }
  }

  void copy_from_host(void* device_data, const void* host_data, std::size_t bytes, Stream& stream) override {
    check_pointers("copy_from_host", device_data, host_data, bytes);
    const CurrentContext current = begin(stream);
    if (bytes == 0) return;
    check_not_capturing("copy_from_host", stream);
    driver().check(api().cuMemcpyHtoDAsync(address(device_data), host_data, bytes, stream.handle()),
                   "cuMemcpyHtoDAsync");
    synchronize(stream);
  }

  void copy_to_host(void* host_data, const void* device_data, std::size_t bytes, Stream& stream) override {
    check_pointers("copy_to_host", host_data, device_data, bytes);
    const CurrentContext current = begin(stream);
    if (bytes == 0) return;
    check_not_capturing("copy_to_host", stream);
    driver().check(api().cuMemcpyDtoHAsync(host_data, address(device_data), bytes, stream.handle()),
                   "cuMemcpyDtoHAsync");
    synchronize(stream);
  }

  void fill_zero(void* device_data, std::size_t bytes, Stream& stream) override {
    check_pointers("fill_zero", device_data, device_data, bytes);
    const CurrentContext current = begin(stream);
    if (bytes != 0) launcher_.fill_zero(device_data, bytes, stream);
  }

  void fill(float* device_data, float value, std::size_t count, Stream& stream) override {
    check_pointers("fill", device_data, device_data, count * sizeof(float));
    const CurrentContext current = begin(stream);
    if (count != 0) launcher_.fill(device_data, value, static_cast<std::int64_t>(count), stream);
  }

  void synchronize(Stream& stream) override {
    const CurrentContext current = begin(stream);
    driver().check(outside_of_captures([&] { return api().cuStreamSynchronize(stream.handle()); }),
                   "cuStreamSynchronize");
  }

  bool capturing(const Stream& stream) const override {
    const CurrentContext current = launcher_.make_current(stream);
    return launcher_.capturing(stream);
  }

  std::uint64_t capture_number(const Stream& stream) const override {
    const CurrentContext current = launcher_.make_current(stream);
    return capture_zeros_.capture_number(stream.handle());
  }

  void* zeros_of_capture(const Stream& stream, std::size_t bytes) override {
    const CurrentContext current = launcher_.make_current();
    return capture_zeros_.of(stream.handle(), bytes);
  }

  void spoil_zeros_of_capture(const Stream& stream) noexcept override {
    try {
      const CurrentContext current = launcher_.make_current();
      capture_zeros_.spoil(stream.handle());
    } catch (const Error&) {
      return;
    }
  }

  bool is_allocated(const void* device_data, std::size_t bytes) const override {
    if (bytes == 0) return true;
    const CurrentContext current = launcher_.make_current();
    return byte_is_allocated(address(device_data)) && byte_is_allocated(address(device_data) + bytes - 1);
  }

  std::unique_ptr<CapturedWork> capture(Stream& stream, const std::function<void()>& work) override {
    const CurrentContext current = begin(stream);
    return capture_graph(driver(), device_.index, stream, work);
  }

  CUstream_st* create_stream() override {
    const CurrentContext current = launcher_.make_current();
    CUstream stream = nullptr;
    driver().check(outside_of_captures([&] { return api().cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING); }),
                   "cuStreamCreate");
    return stream;
  }

  void destroy_stream(CUstream_st* stream) noexcept override {
    if (stream == nullptr) return;
    try {
      const CurrentContext current = launcher_.make_current();
      static_cast<void>(api().cuStreamDestroy(stream));
    } catch (const Error&) {
      return;
    }
  }

  void* create_fence() override { return create_event(CU_EVENT_DISABLE_TIMING); }
  void destroy_fence(void* fence) noexcept override { destroy_event(fence); }
  void wait(const Stream& stream, const Stream& other, void* fence) override {
    check_stream(other, *this);
    check_stream(stream, *this);
    const CurrentContext current = launcher_.make_current(other.handle() == nullptr ? other : stream);
    if (current.is_callers() && other.handle() == nullptr) return wait_in_callers(stream, other);
    wait_by(static_cast<CUevent>(fence), stream, other);
  }

  void* create_mark() override { return create_event(CU_EVENT_DEFAULT); }
  void destroy_mark(void* mark) noexcept override { destroy_event(mark); }

  void record_mark(void* mark, const Stream& stream) override {
    const CurrentContext current = begin(stream);
    driver().check(api().cuEventRecord(static_cast<CUevent>(mark), stream.handle()), "cuEventRecord");
  }

  double microseconds_between(void* begin, void* end) override {
    const CurrentContext current = launcher_.make_current();
    float milliseconds = 0;
    for (void* const mark : {begin, end}) {
      driver().check(api().cuEventSynchronize(static_cast<CUevent>(mark)), "cuEventSynchronize");
    }
    driver().check(api().cuEventElapsedTime(&milliseconds, static_cast<CUevent>(begin), static_cast<CUevent>(end)),
                   "cuEventElapsedTime");
    return 1e3 * static_cast<double>(milliseconds);
  }

  void set_launch_hook(LaunchHook* hook) override { launcher_.set_hook(hook); }

  std::int64_t launches() const override { return launcher_.launches(); }

 private:
  const Driver& driver() const { return launcher_.driver(); }
  const Driver::Api& api() const { return driver().api(); }

  void wait_by(CUevent event, const Stream& stream, const Stream& other) const {
    driver().check(api().cuEventRecord(event, other.handle()), "cuEventRecord");
    const CUresult result = api().cuStreamWaitEvent(stream.handle(), event, CU_EVENT_WAIT_DEFAULT);
    if (result == CUDA_ERROR_STREAM_CAPTURE_ISOLATION || result == CUDA_ERROR_STREAM_CAPTURE_MERGE) {
      throw Error(
          ErrorCode::invalid_argument, "Stream::wait_for",
          "the stream is capturing a graph, and the other one takes no part in that capture; let the other wait "
          "for this one first, which makes it join");
    }
    driver().check(result, "cuStreamWaitEvent");
  }

  // An event is recorded in the context that it was made in. The driver keeps it until it is no longer needed.
  void wait_in_callers(const Stream& stream, const Stream& other) const {
    CUevent event = nullptr;
    driver().check(api().cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
    const std::unique_ptr<CUevent_st, decltype(api().cuEventDestroy)> destroyed(event, api().cuEventDestroy);
    wait_by(event, stream, other);
  }

  // The driver knows of each byte whether it is memory of any kind. Parts of one tensor may be separate allocations
  // that were mapped side by side.
  bool byte_is_allocated(CUdeviceptr byte) const {
    CUmemorytype type{};
    const CUresult result = api().cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, byte);
    if (result == CUDA_ERROR_INVALID_VALUE) return false;
    driver().check(result, "cuPointerGetAttribute");
    return true;
  }

  void* create_event(unsigned flags) {
    const CurrentContext current = launcher_.make_current();
    CUevent event = nullptr;
    driver().check(api().cuEventCreate(&event, flags), "cuEventCreate");
    return event;
  }
  void destroy_event(void* event) noexcept {
    if (event == nullptr) return;
    try {
      const CurrentContext current = launcher_.make_current();
      static_cast<void>(api().cuEventDestroy(static_cast<CUevent>(event)));
    } catch (const Error&) {
      return;
    }
  }

  // Every operation: operation(spec, tensors, stream, launcher, services...), with the context current.
  template <class Spec, class Tensors, class Operation, class... Services>
  void run(const Spec& spec, const Tensors& tensors, Stream& stream, const Operation& operation,
           Services&... services) {
    check(spec, tensors, device_);
    const CurrentContext current = begin(stream);
    operation(spec, tensors, stream, launcher_, services...);
  }

  // Every call on a stream starts here. The context is current as long as the result lives.
  [[nodiscard]] CurrentContext begin(const Stream& stream) const {
    check_stream(stream, *this);
    return launcher_.make_current(stream);
  }

  // The host side may be reused when a copy returns, so a copy waits; a graph would read that memory later instead.
  void check_not_capturing(const char* operation, const Stream& stream) const {
    if (launcher_.capturing(stream)) {
      throw Error(ErrorCode::invalid_argument, operation,
                  "copies between host and device wait for the stream, which cannot be done while it is capturing a "
                  "graph; copy before or after the capture");
    }
  }

  // Memory is no part of what a stream captures, so a capture, of this thread or in the mode global of another, need
  // not forbid these calls or be broken off by them.
  template <class Call>
  CUresult outside_of_captures(const Call& call) const {
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    driver().check(api().cuThreadExchangeStreamCaptureMode(&mode), "cuThreadExchangeStreamCaptureMode");
    const CUresult result = call();
    driver().check(api().cuThreadExchangeStreamCaptureMode(&mode), "cuThreadExchangeStreamCaptureMode");
    return result;
  }

  [[noreturn]] void throw_out_of_memory(std::size_t bytes) const {
    std::size_t free = 0;
    std::size_t total = 0;
    driver().check(api().cuMemGetInfo(&free, &total), "cuMemGetInfo");
    throw Error(ErrorCode::out_of_memory, print(device_) + " memory",
                "no room for " + std::to_string(bytes) + " bytes: " + std::to_string(free) + " of " +
                    std::to_string(total) + " are free; release tensors or use a smaller batch");
  }

  Device device_;
  Launcher launcher_;
  CublasLt* cublaslt_;
  GemmPlans plans_;
  GemmPairPlans pair_plans_;
  DequantPlans dequant_plans_;
  CaptureZeros capture_zeros_;
};

}  // namespace

std::unique_ptr<Backend> make_cuda_backend(const Driver& driver, int device_index, KernelCache& cache,
                                           const MatmulServices& services) {
  return std::make_unique<CudaBackend>(driver, device_index, cache, services);
}

}  // namespace ingot
