#include "support/fake_backend.h"

#include <algorithm>

namespace ingot::test {

Device FakeBackend::device() const { return {DeviceType::cuda, 2}; }

void FakeBackend::amax(const AmaxSpec&, const AmaxTensors&, Stream&) {}

void FakeBackend::cast(const CastSpec&, const CastTensors&, Stream&) {}

std::unique_ptr<CastList> FakeBackend::make_cast_list(const CastSpec&, std::span<const CastTensors>, Stream&) {
  return nullptr;
}

void FakeBackend::gemm(const GemmSpec&, const GemmTensors&, Stream&) {}

void FakeBackend::column_sum(const ColumnSumSpec&, const ColumnSumTensors&, Stream&) {}

void FakeBackend::relayout(const RelayoutSpec&, const RelayoutTensors&, Stream&) {}

void FakeBackend::elementwise(const ElementwiseSpec&, const ElementwiseTensors&, Stream&) {}

void FakeBackend::cast_stats(const CastStatsSpec&, const CastStatsTensors&, Stream&) {}

void FakeBackend::norm(const NormSpec&, const NormTensors&, Stream&) {}

void FakeBackend::norm_backward(const NormBackwardSpec&, const NormBackwardTensors&, Stream&) {}

void FakeBackend::amax_history(const AmaxHistorySpec&, const AmaxHistoryTensors&, Stream&) {}

void FakeBackend::quantize_mx(const MxQuantizeSpec&, const MxQuantizeTensors&, Stream&) {}

void FakeBackend::float_quantize(const FloatQuantizeSpec&, const FloatQuantizeTensors&, Stream&) {}

void FakeBackend::pack_weight(const PackWeightSpec&, const PackWeightTensors&, Stream&) {}

void FakeBackend::dequant_matmul(const DequantMatmulSpec&, const DequantMatmulTensors&, Stream&) {}

void* FakeBackend::allocate(std::size_t bytes) {
  if (bytes == 0) return nullptr;
  if (bytes > largest) throw Error(ErrorCode::out_of_memory, "fake", "is full");
  ++allocations;
  void* data = std::malloc(bytes);
  live[data] = bytes;
  return data;
}

void FakeBackend::release(void* data) noexcept {
  live.erase(data);
  std::free(data);
}

void FakeBackend::copy_from_host(void* to, const void* from, std::size_t bytes, Stream&) {
  std::memcpy(to, from, bytes);
}

void FakeBackend::copy_to_host(void* to, const void* from, std::size_t bytes, Stream&) { std::memcpy(to, from, bytes); }

void FakeBackend::fill_zero(void* data, std::size_t bytes, Stream&) {
  if (fill_fails) throw Error(ErrorCode::cuda_failed, "fake", "cannot fill");
  std::memset(data, 0, bytes);
}

void FakeBackend::fill(float* data, float value, std::size_t count, Stream&) { std::fill_n(data, count, value); }

void FakeBackend::synchronize(Stream&) {}

bool FakeBackend::is_allocated(const void*, std::size_t) const { return true; }

bool FakeBackend::capturing(const Stream&) const {
  ++capture_questions;
  return is_capturing;
}

std::unique_ptr<CapturedWork> FakeBackend::capture(Stream&, const std::function<void()>&) { return nullptr; }

CUstream_st* FakeBackend::create_stream() {
  return reinterpret_cast<CUstream_st*>(static_cast<std::uintptr_t>(++streams));
}

void FakeBackend::destroy_stream(CUstream_st*) noexcept { --streams; }

void* FakeBackend::create_fence() { return nullptr; }

void FakeBackend::destroy_fence(void* /*fence*/) noexcept {}

void FakeBackend::wait(const Stream& /*stream*/, const Stream& /*other*/, void* /*fence*/) {}

void* FakeBackend::create_mark() { return nullptr; }

void FakeBackend::destroy_mark(void*) noexcept {}

void FakeBackend::record_mark(void*, const Stream&) {}

double FakeBackend::microseconds_between(void*, void*) { return 0; }

void FakeBackend::set_launch_hook(LaunchHook*) {}

std::int64_t FakeBackend::launches() const { return 0; }

}  // namespace ingot::test
