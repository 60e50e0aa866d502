// The library's operations, as an interface with one implementation for each kind of device. Both give the same bits
// for everything but GEMMs, whose order of summation is the hardware's. The device itself is a DeviceApi
// (runtime/core/device_api.h).
//
// Every call checks its arguments, enqueues its work on the stream and returns; on the CPU the work is done by then.
// Inputs must stay alive until the stream has passed the call. Outputs may not overlap inputs unless the tensors'
// comment allows it. Errors: Error{invalid_spec, invalid_argument} before anything is enqueued; Error{cuda_failed,
// compile_failed, not_found, out_of_memory} from the layers below.
#pragma once

#include <memory>
#include <span>
#include <utility>

#include "ingot/api.h"
#include "ingot/codegen/kernel_spec.h"
#include "ingot/codegen/matmul.h"
#include "ingot/runtime/cast/cast_tensors.h"
#include "ingot/runtime/core/device_api.h"
#include "ingot/runtime/dequant/dequant_tensors.h"
#include "ingot/runtime/gemm/gemm_tensors.h"
#include "ingot/runtime/norm/norm_tensors.h"
#include "ingot/runtime/quantize/quantize_tensors.h"

namespace ingot {

class Stream;

// Threads: any number of them may call one backend at the same time, each with its own stream; kernels are then
// compiled once, and the callers that need one wait for it. A Stream is for one thread at a time, and so is what keeps
// its results in order by one: CastList, AmaxList, Graph. Tensors are plain values; that work which reads and writes
// the same memory runs in order is the caller's business, by one stream or by Stream::wait_for().
class INGOT_API Backend {
 public:
  virtual ~Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;

  // Where it computes: the memory, the streams and the events of all calls. It lives as long as the backend, and a
  // backend stands for it where something is made there: Stream(backend), Buffer(backend, bytes).
  DeviceApi& device_api() const { return *device_api_; }
  operator DeviceApi&() const { return *device_api_; }  // NOLINT(google-explicit-constructor)
  Device device() const { return device_api_->device(); }

  virtual void amax(const AmaxSpec& spec, const AmaxTensors& tensors, Stream& stream) = 0;
  // The spec's `list` need not be set. No maxima may overlap any other tensor of the list. Allocates device memory and
  // uploads the parameters on the stream. Throws Error{invalid_spec, invalid_argument, out_of_memory}.
  virtual std::unique_ptr<AmaxList> make_amax_list(const AmaxSpec& spec, std::span<const AmaxTensors> tensors,
                                                   Stream& stream) = 0;
  // One matrix, with spec.gathered rows of it by an index; or, with spec.stacked, any number of one size, each with its
  // own scales.
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
  // A GEMM for each expert, whose rows are one after the other. Which rows an expert has is read on the device, when
  // the work runs: a captured graph takes other ends, or counts, in each replay.
  virtual void grouped_gemm(const GroupedGemmSpec& spec, const GroupedGemmTensors& tensors, Stream& stream) = 0;
  virtual void column_sum(const ColumnSumSpec& spec, const ColumnSumTensors& tensors, Stream& stream) = 0;
  virtual void relayout(const RelayoutSpec& spec, const RelayoutTensors& tensors, Stream& stream) = 0;
  virtual void combine(const CombineSpec& spec, const CombineTensors& tensors, Stream& stream) = 0;
  virtual void elementwise(const ElementwiseSpec& spec, const ElementwiseTensors& tensors, Stream& stream) = 0;
  virtual void cast_stats(const CastStatsSpec& spec, const CastStatsTensors& tensors, Stream& stream) = 0;
  virtual void norm(const NormSpec& spec, const NormTensors& tensors, Stream& stream) = 0;
  virtual void norm_backward(const NormBackwardSpec& spec, const NormBackwardTensors& tensors, Stream& stream) = 0;
  virtual void amax_scales(const AmaxScalesSpec& spec, const AmaxScalesTensors& tensors, Stream& stream) = 0;
  virtual void amax_history(const AmaxHistorySpec& spec, const AmaxHistoryTensors& tensors, Stream& stream) = 0;
  virtual void quantize_mx(const MxQuantizeSpec& spec, const MxQuantizeTensors& tensors, Stream& stream) = 0;
  virtual void float_quantize(const FloatQuantizeSpec& spec, const FloatQuantizeTensors& tensors, Stream& stream) = 0;
  virtual void pack_weight(const PackWeightSpec& spec, const PackWeightTensors& tensors, Stream& stream) = 0;
  virtual void dequant_matmul(const DequantMatmulSpec& spec, const DequantMatmulTensors& tensors, Stream& stream) = 0;

 protected:
  explicit Backend(std::unique_ptr<DeviceApi> device_api) : device_api_(std::move(device_api)) {}

 private:
  std::unique_ptr<DeviceApi> device_api_;
};

}  // namespace ingot
