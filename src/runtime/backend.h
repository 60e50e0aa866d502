// The library's operations, as an interface with one implementation for each kind of device. Both give the same bits
// for everything but GEMMs, whose order of summation is the hardware's.
//
// Every call checks its arguments, enqueues its work on the stream and returns; on the CPU the work is done by then.
// Inputs must stay alive until the stream has passed the call. Outputs may not overlap inputs unless the tensors'
// comment allows it. Errors: Error{invalid_spec, invalid_argument} before anything is enqueued; Error{cuda_failed,
// compile_failed, not_found, out_of_memory} from the layers below.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "ingot/api.h"
#include "ingot/codegen/kernel_spec.h"
#include "ingot/codegen/matmul.h"
#include "ingot/runtime/cast/cast_tensors.h"
#include "ingot/runtime/dequant/dequant_tensors.h"
#include "ingot/runtime/gemm/gemm_tensors.h"
#include "ingot/runtime/norm/norm_tensors.h"
#include "ingot/runtime/quantize/quantize_tensors.h"
#include "ingot/runtime/tensor.h"

struct CUstream_st;  // the driver API's CUstream is a pointer to this

namespace ingot {

class LaunchHook;  // runtime/jit/kernel.h
class Stream;

// Work that a stream has captured: what Graph (runtime/graph.h) owns.
class INGOT_API CapturedWork {
 public:
  virtual ~CapturedWork() = default;
  CapturedWork(const CapturedWork&) = delete;
  CapturedWork& operator=(const CapturedWork&) = delete;

  // Makes it ready to replay, once.
  virtual void instantiate() = 0;
  virtual void replay(Stream& stream) = 0;
  // Replays what `other` holds from now on, if that has the same shape; otherwise returns false and is as it was.
  virtual bool take(CapturedWork& other) = 0;

 protected:
  CapturedWork() = default;
};

// Threads: any number of them may call one backend at the same time, each with its own stream; kernels are then
// compiled once, and the callers that need one wait for it. A Stream is for one thread at a time, and so is what keeps
// its results in order by one: CastList, Graph, a fence, a timing event. Tensors are plain values; that work which
// reads and writes the same memory runs in order is the caller's business, by one stream or by Stream::wait_for().
// Memory (allocate(), release()) is for any thread, and what one thread allocates another may release. Only
// set_launch_hook() may not run during launches.
class INGOT_API Backend {
 public:
  virtual ~Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;

  virtual Device device() const = 0;

  virtual void amax(const AmaxSpec& spec, const AmaxTensors& tensors, Stream& stream) = 0;
  virtual void cast(const CastSpec& spec, const CastTensors& tensors, Stream& stream) = 0;
  // The spec's `list` need not be set. No output may overlap any other tensor of the list. Allocates device memory and
  // uploads the parameters on the stream. Throws Error{invalid_spec, invalid_argument, out_of_memory}.
  virtual std::unique_ptr<CastList> make_cast_list(const CastSpec& spec, std::span<const CastTensors> tensors,
                                                   Stream& stream) = 0;
  virtual void gemm(const GemmSpec& spec, const GemmTensors& tensors, Stream& stream) = 0;
  // Two GEMMs that need nothing of each other, such as those of a layer's two gradients. Where both are small, one
  // launch computes both (gemm_candidates.h); otherwise they run as gemm() runs them, in this order. The outputs of
  // one may not overlap any tensor of the other.
  virtual void gemm_pair(const GemmWork& first, const GemmWork& second, Stream& stream) {
    gemm(first.spec, first.tensors, stream);
    gemm(second.spec, second.tensors, stream);
  }
  // Does gemm_pair() compute these in one launch, if their tensors fit it?
  virtual bool pairs(const GemmCall& /*first*/, const GemmCall& /*second*/) { return false; }
  virtual void column_sum(const ColumnSumSpec& spec, const ColumnSumTensors& tensors, Stream& stream) = 0;
  virtual void relayout(const RelayoutSpec& spec, const RelayoutTensors& tensors, Stream& stream) = 0;
  virtual void elementwise(const ElementwiseSpec& spec, const ElementwiseTensors& tensors, Stream& stream) = 0;
  virtual void cast_stats(const CastStatsSpec& spec, const CastStatsTensors& tensors, Stream& stream) = 0;
  virtual void norm(const NormSpec& spec, const NormTensors& tensors, Stream& stream) = 0;
  virtual void norm_backward(const NormBackwardSpec& spec, const NormBackwardTensors& tensors, Stream& stream) = 0;
  virtual void amax_history(const AmaxHistorySpec& spec, const AmaxHistoryTensors& tensors, Stream& stream) = 0;
  virtual void quantize_mx(const MxQuantizeSpec& spec, const MxQuantizeTensors& tensors, Stream& stream) = 0;
  virtual void float_quantize(const FloatQuantizeSpec& spec, const FloatQuantizeTensors& tensors, Stream& stream) = 0;
  virtual void pack_weight(const PackWeightSpec& spec, const PackWeightTensors& tensors, Stream& stream) = 0;
  virtual void dequant_matmul(const DequantMatmulSpec& spec, const DequantMatmulTensors& tensors, Stream& stream) = 0;

  // Memory. allocate() aligns to 256 bytes and throws Error{out_of_memory}; 0 bytes gives null. release() waits for the
  // device if it must, and never throws.
  virtual void* allocate(std::size_t bytes) = 0;
  virtual void release(void* data) noexcept = 0;
  // Ordered on the stream. When the call returns, the host's memory may be read or reused.
  virtual void copy_from_host(void* device_data, const void* host_data, std::size_t bytes, Stream& stream) = 0;
  virtual void copy_to_host(void* host_data, const void* device_data, std::size_t bytes, Stream& stream) = 0;
  virtual void fill_zero(void* device_data, std::size_t bytes, Stream& stream) = 0;
  // Sets `count` f32 elements to this value. Unlike a copy from the host it may be captured.
  virtual void fill(float* device_data, float value, std::size_t count, Stream& stream) = 0;
  virtual void synchronize(Stream& stream) = 0;
  // True while the stream records a CUDA graph.
  virtual bool capturing(const Stream& stream) const = 0;
  // Which capture that is, of all of the process; 0 if the stream records none.
  virtual std::uint64_t capture_number(const Stream& stream) const { return capturing(stream) ? 1 : 0; }
  // For Stream::zeros(), while someone else captures the stream: memory for the graph that holds zeros whenever it is
  // replayed, if all operations restore them. Null where there is none.
  virtual void* zeros_of_capture(const Stream& /*stream*/, std::size_t /*bytes*/) { return nullptr; }
  // They may not hold any more: the capture clears them, and later operations of it are given others.
  virtual void spoil_zeros_of_capture(const Stream& /*stream*/) noexcept {}
  // False if these bytes are known to belong to no allocation, such as freed memory. The CPU knows of none. What an
  // allocator holds back for later, as PyTorch's does, is still allocated.
  virtual bool is_allocated(const void* device_data, std::size_t bytes) const = 0;

  // Do layers look for what a host cannot see: memory that changed between forward and backward, or was freed? Set by
  // ContextOptions::check_memory; docs/stateless_layers.md says what is checked. Not to be called while others run.
  bool checks_memory() const { return checks_memory_; }
  void set_checks_memory(bool checks) { checks_memory_ = checks; }

  // For Graph: what `work` enqueues on the stream, recorded and not run. Throws Error{invalid_argument} on the CPU.
  virtual std::unique_ptr<CapturedWork> capture(Stream& stream, const std::function<void()>& work) = 0;

  // A new stream of the device, for Stream's default constructor; null on the CPU, which has none.
  virtual CUstream_st* create_stream() = 0;
  virtual void destroy_stream(CUstream_st* stream) noexcept = 0;

  // For Stream::wait_for(): `stream` continues after all work enqueued on `other` so far. One thread at a time may use
  // a fence, and may reuse it at once. Null on the CPU, which has none.
  virtual void* create_fence() = 0;
  virtual void destroy_fence(void* fence) noexcept = 0;
  virtual void wait(const Stream& stream, const Stream& other, void* fence) = 0;

  // Timing events on a stream ("marks"): CUDA events, or the CPU's clock. microseconds_between() takes two recorded
  // events and waits for both. Throws Error{cuda_failed}.
  virtual void* create_mark() = 0;
  virtual void destroy_mark(void* mark) noexcept = 0;
  virtual void record_mark(void* mark, const Stream& stream) = 0;
  virtual double microseconds_between(void* begin, void* end) = 0;
  // Calls `hook` at every launch from now on, until another hook or null replaces it; until then it must stay alive. Do
  // not call this while another thread launches.
  virtual void set_launch_hook(LaunchHook* hook) = 0;

  // Kernels that this backend has launched so far, including cuBLASLt's. 0 on the CPU.
  virtual std::int64_t launches() const = 0;

 protected:
  Backend() = default;

 private:
  bool checks_memory_ = false;
};

}  // namespace ingot
