// A backend that forwards every call to another backend, counts the calls, and fails on request.
//
// A CUDA backend accepts only its own streams: pass one as inner_stream, and all calls go there.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "ingot/runtime/backend.h"
#include "ingot/runtime/error.h"
#include "ingot/runtime/stream.h"

namespace ingot::test {

class CountingBackend final : public Backend {
 public:
  explicit CountingBackend(Backend& inner, Stream* inner_stream = nullptr)
      : inner_(&inner), inner_stream_(inner_stream) {}

  int allocations = 0;
  std::vector<std::string> calls;               // the specs, in order
  bool waited = true;                           // has synchronize() waited for all calls and copies from the host?
  bool constant_weight = false;                 // of the last dequant_matmul
  std::vector<const Stream*> streams;           // of each call
  std::vector<const Stream*> waiting, awaited;  // of each Stream::wait_for()
  bool gemm_fails = false;
  std::function<void(const CastSpec&, const CastTensors&, Stream&)> after_cast;

  Device device() const override { return inner_->device(); }
  void amax(const AmaxSpec& spec, const AmaxTensors& tensors, Stream& stream) override {
    note(print(spec), stream);
    inner_->amax(spec, tensors, on(stream));
  }
  void cast(const CastSpec& spec, const CastTensors& tensors, Stream& stream) override {
    note(print(spec), stream);
    inner_->cast(spec, tensors, on(stream));
    if (after_cast) after_cast(spec, tensors, on(stream));
  }
  std::unique_ptr<CastList> make_cast_list(const CastSpec& spec, std::span<const CastTensors> tensors,
                                           Stream& stream) override {
    return inner_->make_cast_list(spec, tensors, on(stream));
  }
  void gemm(const GemmSpec& spec, const GemmTensors& tensors, Stream& stream) override {
    note(print(spec), stream);
    if (gemm_fails) throw Error(ErrorCode::cuda_failed, print(spec), "broken for the test");
    inner_->gemm(spec, tensors, on(stream));
  }
  void column_sum(const ColumnSumSpec& spec, const ColumnSumTensors& tensors, Stream& stream) override {
    note(print(spec), stream);
    inner_->column_sum(spec, tensors, on(stream));
  }
  void relayout(const RelayoutSpec& spec, const RelayoutTensors& tensors, Stream& stream) override {
    note(print(spec), stream);
    inner_->relayout(spec, tensors, on(stream));
  }
  void elementwise(const ElementwiseSpec& spec, const ElementwiseTensors& tensors, Stream& stream) override {
    note(print(spec), stream);
    inner_->elementwise(spec, tensors, on(stream));
  }

  void cast_stats(const CastStatsSpec& spec, const CastStatsTensors& tensors, Stream& stream) override {
    note(print(spec), stream);
    inner_->cast_stats(spec, tensors, on(stream));
  }
  void norm(const NormSpec& spec, const NormTensors& tensors, Stream& stream) override {
    note(print(spec), stream);
    inner_->norm(spec, tensors, on(stream));
  }
  void norm_backward(const NormBackwardSpec& spec, const NormBackwardTensors& tensors, Stream& stream) override {
    note(print(spec), stream);
    inner_->norm_backward(spec, tensors, on(stream));
  }
  void amax_history(const AmaxHistorySpec& spec, const AmaxHistoryTensors& tensors, Stream& stream) override {
    note(print(spec), stream);
    inner_->amax_history(spec, tensors, on(stream));
  }
  void quantize_mx(const MxQuantizeSpec& spec, const MxQuantizeTensors& tensors, Stream& stream) override {
    note(print(spec), stream);
    inner_->quantize_mx(spec, tensors, on(stream));
  }
  void float_quantize(const FloatQuantizeSpec& spec, const FloatQuantizeTensors& tensors, Stream& stream) override {
    note(print(spec), stream);
    inner_->float_quantize(spec, tensors, on(stream));
  }
  void pack_weight(const PackWeightSpec& spec, const PackWeightTensors& tensors, Stream& stream) override {
    note(print(spec), stream);
    inner_->pack_weight(spec, tensors, on(stream));
  }
  void dequant_matmul(const DequantMatmulSpec& spec, const DequantMatmulTensors& tensors, Stream& stream) override {
    note(print(spec), stream);
    constant_weight = tensors.constant_weight;
    inner_->dequant_matmul(spec, tensors, on(stream));
  }
  void* allocate(std::size_t bytes) override {
    ++allocations;
    return inner_->allocate(bytes);
  }
  void release(void* data) noexcept override { inner_->release(data); }
  void copy_from_host(void* to, const void* from, std::size_t bytes, Stream& stream) override {
    waited = false;
    inner_->copy_from_host(to, from, bytes, on(stream));
  }
  void copy_to_host(void* to, const void* from, std::size_t bytes, Stream& stream) override {
    inner_->copy_to_host(to, from, bytes, on(stream));
  }
  void fill_zero(void* data, std::size_t bytes, Stream& stream) override { inner_->fill_zero(data, bytes, on(stream)); }
  void synchronize(Stream& stream) override {
    waited = true;
    inner_->synchronize(on(stream));
  }
  bool capturing(const Stream& stream) const override {
    return inner_->capturing(inner_stream_ != nullptr ? *inner_stream_ : stream);
  }
  CUstream_st* create_stream() override { return inner_->create_stream(); }
  void destroy_stream(CUstream_st* stream) noexcept override { inner_->destroy_stream(stream); }
  void* create_fence() override { return inner_->create_fence(); }
  void destroy_fence(void* fence) noexcept override { inner_->destroy_fence(fence); }
  // With an inner stream all streams are that one, and on the CPU there is nothing to wait for.
  void wait(const Stream& stream, const Stream& other, void*) override {
    waiting.push_back(&stream);
    awaited.push_back(&other);
  }
  void* create_mark() override { return inner_->create_mark(); }
  void destroy_mark(void* mark) noexcept override { inner_->destroy_mark(mark); }
  void record_mark(void* mark, const Stream& stream) override {
    inner_->record_mark(mark, inner_stream_ != nullptr ? *inner_stream_ : stream);
  }
  double microseconds_between(void* begin, void* end) override { return inner_->microseconds_between(begin, end); }
  void set_launch_hook(LaunchHook* hook) override { inner_->set_launch_hook(hook); }
  std::int64_t launches() const override { return inner_->launches(); }

 private:
  void note(std::string call, const Stream& stream) {
    waited = false;
    calls.push_back(std::move(call));
    streams.push_back(&stream);
  }
  Stream& on(Stream& stream) const { return inner_stream_ != nullptr ? *inner_stream_ : stream; }

  Backend* inner_;
  Stream* inner_stream_;
};

}  // namespace ingot::test
