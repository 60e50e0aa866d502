// A backend that only hands out memory and counts it. A test can tell it that its streams are capturing; it computes
// nothing.
#pragma once

#include <cstdlib>
#include <cstring>
#include <map>

#include "ingot/runtime/backend.h"
#include "ingot/runtime/error.h"

namespace ingot::test {

class FakeBackend final : public Backend {
 public:
  bool is_capturing = false;
  bool fill_fails = false;
  std::size_t largest = ~std::size_t{0};  // a larger allocation fails
  int allocations = 0;
  mutable int capture_questions = 0;
  int streams = 0;
  std::map<void*, std::size_t> live{};  // the current allocations

  FakeBackend() = default;

  Device device() const override;
  void amax(const AmaxSpec&, const AmaxTensors&, Stream&) override;
  void cast(const CastSpec&, const CastTensors&, Stream&) override;
  std::unique_ptr<CastList> make_cast_list(const CastSpec&, std::span<const CastTensors>, Stream&) override;
  void gemm(const GemmSpec&, const GemmTensors&, Stream&) override;
  void column_sum(const ColumnSumSpec&, const ColumnSumTensors&, Stream&) override;
  void relayout(const RelayoutSpec&, const RelayoutTensors&, Stream&) override;
  void elementwise(const ElementwiseSpec&, const ElementwiseTensors&, Stream&) override;
  void cast_stats(const CastStatsSpec&, const CastStatsTensors&, Stream&) override;
  void norm(const NormSpec&, const NormTensors&, Stream&) override;
  void norm_backward(const NormBackwardSpec&, const NormBackwardTensors&, Stream&) override;
  void amax_history(const AmaxHistorySpec&, const AmaxHistoryTensors&, Stream&) override;
  void quantize_mx(const MxQuantizeSpec&, const MxQuantizeTensors&, Stream&) override;
  void float_quantize(const FloatQuantizeSpec&, const FloatQuantizeTensors&, Stream&) override;
  void pack_weight(const PackWeightSpec&, const PackWeightTensors&, Stream&) override;
  void dequant_matmul(const DequantMatmulSpec&, const DequantMatmulTensors&, Stream&) override;

  void* allocate(std::size_t bytes) override;
  void release(void* data) noexcept override;
  void copy_from_host(void* to, const void* from, std::size_t bytes, Stream&) override;
  void copy_to_host(void* to, const void* from, std::size_t bytes, Stream&) override;
  void fill_zero(void* data, std::size_t bytes, Stream&) override;
  void fill(float* data, float value, std::size_t count, Stream&) override;
  void synchronize(Stream&) override;
  std::unique_ptr<CapturedWork> capture(Stream& stream, const std::function<void()>& work) override;
  bool capturing(const Stream&) const override;
  bool is_allocated(const void*, std::size_t) const override;
  // A handle is just a count of the streams made; nothing dereferences it.
  CUstream_st* create_stream() override;
  void destroy_stream(CUstream_st*) noexcept override;
  void* create_fence() override;
  void destroy_fence(void* /*fence*/) noexcept override;
  void wait(const Stream& /*stream*/, const Stream& /*other*/, void* /*fence*/) override;
  void* create_mark() override;
  void destroy_mark(void*) noexcept override;
  void record_mark(void*, const Stream&) override;
  double microseconds_between(void*, void*) override;
  void set_launch_hook(LaunchHook*) override;
  std::int64_t launches() const override;
};

}  // namespace ingot::test
