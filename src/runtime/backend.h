// The operations of the library, once for each kind of device. Both implementations give the same bits for everything
// but a GEMM, whose order of summation is the hardware's.
//
// Every call checks its arguments, in the same way in both, enqueues on the stream and returns; the CPU one has
// finished when it returns. Inputs must stay alive until the stream has passed the call. Outputs may not overlap
// inputs, but for those that are said to. Errors: Error{invalid_spec, invalid_argument} before anything is enqueued;
// Error{cuda_failed, compile_failed, not_found, out_of_memory} from below.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "ingot/codegen/kernel_spec.h"
#include "ingot/runtime/cast/cast_tensors.h"
#include "ingot/runtime/dequant/dequant_tensors.h"
#include "ingot/runtime/gemm/gemm_tensors.h"
#include "ingot/runtime/norm/norm_tensors.h"
#include "ingot/runtime/quantize/quantize_tensors.h"
#include "ingot/runtime/tensor.h"

struct CUstream_st;  // the driver API's CUstream is a pointer to this

namespace ingot {

class LaunchHook;  // runtime/jit/launch_hook.h
class Stream;

class Backend {
 public:
  virtual ~Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;

  virtual Device device() const = 0;

  virtual void amax(const AmaxSpec& spec, const AmaxTensors& tensors, Stream& stream) = 0;
  virtual void cast(const CastSpec& spec, const CastTensors& tensors, Stream& stream) = 0;
  // The spec's `list` need not be set. No output may overlap anything else of the list. Allocates, and uploads on the
  // stream. Throws Error{invalid_spec, invalid_argument, out_of_memory}.
  virtual std::unique_ptr<CastList> make_cast_list(const CastSpec& spec, std::span<const CastTensors> tensors,
                                                   Stream& stream) = 0;
  virtual void gemm(const GemmSpec& spec, const GemmTensors& tensors, Stream& stream) = 0;
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
  // device where that is needed and never throws.
  virtual void* allocate(std::size_t bytes) = 0;
  virtual void release(void* data) noexcept = 0;
  // Ordered on the stream; the host side may be read or reused when the call returns.
  virtual void copy_from_host(void* device_data, const void* host_data, std::size_t bytes, Stream& stream) = 0;
  virtual void copy_to_host(void* host_data, const void* device_data, std::size_t bytes, Stream& stream) = 0;
  virtual void fill_zero(void* device_data, std::size_t bytes, Stream& stream) = 0;
  virtual void synchronize(Stream& stream) = 0;
  // True while the stream records a CUDA graph.
  virtual bool capturing(const Stream& stream) const = 0;

  // A stream of the device's own, for Stream's default; the CPU has none and gives null.
  virtual CUstream_st* create_stream() = 0;
  virtual void destroy_stream(CUstream_st* stream) noexcept = 0;

  // What Stream::wait_for() uses: `stream` goes on after what `other` has been given so far. A fence is for one thread
  // at a time, and may be used again at once. The CPU has none and gives null.
  virtual void* create_fence() = 0;
  virtual void destroy_fence(void* fence) noexcept = 0;
  virtual void wait(const Stream& stream, const Stream& other, void* fence) = 0;

  // Points in a stream's work, for who measures it: CUDA's events, or times of the CPU. microseconds_between() waits
  // for both, and both have been recorded. Errors: Error{cuda_failed}.
  virtual void* create_mark() = 0;
  virtual void destroy_mark(void* mark) noexcept = 0;
  virtual void record_mark(void* mark, const Stream& stream) = 0;
  virtual double microseconds_between(void* begin, void* end) = 0;
  // Who is told of every launch from now on, and outlives that; null: nobody. Not while another thread launches.
  virtual void set_launch_hook(LaunchHook* hook) = 0;

  // Kernels launched so far by this backend, cuBLASLt's calls included. The CPU's is 0.
  virtual std::int64_t launches() const = 0;

 protected:
  Backend() = default;
};

}  // namespace ingot
