#include "nn/counting_backend.h"

#include "ingot/runtime/gemm/gemm_tensors.h"

namespace ingot::test {

class CountingDevice final : public DeviceApi {
 public:
  CountingDevice(DeviceApi& inner, Counts& counts) : DeviceApi(inner.device()), inner_(&inner), counts_(&counts) {}

  void* allocate(std::size_t bytes) override {
    ++counts_->allocations;
    return inner_->allocate(bytes);
  }

  void release(void* data) noexcept override { inner_->release(data); }

  void copy_from_host(void* to, const void* from, std::size_t bytes, Stream& stream) override {
    counts_->waited = false;
    ++counts_->copies_from_host;
    inner_->copy_from_host(to, from, bytes, counts_->on(stream));
  }

  void copy_to_host(void* to, const void* from, std::size_t bytes, Stream& stream) override {
    ++counts_->copies_to_host;
    inner_->copy_to_host(to, from, bytes, counts_->on(stream));
  }

  void copy(void* to, const void* from, std::size_t bytes, Stream& stream) override {
    inner_->copy(to, from, bytes, counts_->on(stream));
  }

  void fill_zero(void* data, std::size_t bytes, Stream& stream) override {
    inner_->fill_zero(data, bytes, counts_->on(stream));
  }

  void fill(float* data, float value, std::size_t count, Stream& stream) override {
    inner_->fill(data, value, count, counts_->on(stream));
  }

  void synchronize(Stream& stream) override {
    counts_->waited = true;
    inner_->synchronize(counts_->on(stream));
  }

  void in_context(const Stream& stream, const std::function<void()>& call) const override {
    inner_->in_context(counts_->on(stream), call);
  }

  bool capturing(const Stream& stream) const override {
    ++counts_->capture_questions;
    return counts_->is_capturing || inner_->capturing(counts_->on(stream));
  }

  bool is_allocated(const void* data, std::size_t bytes) const override {
    return data != counts_->freed && inner_->is_allocated(data, bytes);
  }

  std::unique_ptr<CapturedWork> capture(Stream& stream, const std::function<void()>& work) override {
    return inner_->capture(counts_->on(stream), work);
  }

  CUstream_st* create_stream() override { return inner_->create_stream(); }

  void destroy_stream(CUstream_st* stream) noexcept override { inner_->destroy_stream(stream); }

  void* create_fence() override { return inner_->create_fence(); }

  void destroy_fence(void* fence) noexcept override { inner_->destroy_fence(fence); }

  void wait(const Stream& stream, const Stream& other, void*) override {
    counts_->waiting.push_back(&stream);
    counts_->awaited.push_back(&other);
  }

  void* create_timing_event() override { return inner_->create_timing_event(); }

  void destroy_timing_event(void* event) noexcept override { inner_->destroy_timing_event(event); }

  void record_timing_event(void* event, const Stream& stream) override {
    inner_->record_timing_event(event, counts_->on(stream));
  }

  double microseconds_between(void* begin, void* end) override { return inner_->microseconds_between(begin, end); }

 private:
  DeviceApi* inner_;
  Counts* counts_;
};

CountingBackend::CountingBackend(Backend& inner, Stream* inner_stream)
    : Counts(inner_stream), Backend(std::make_unique<CountingDevice>(inner, *this)), inner_(&inner) {}

void CountingBackend::amax(const AmaxSpec& spec, const AmaxTensors& tensors, Stream& stream) {
  note(print(spec), stream);
  inner_->amax(spec, tensors, on(stream));
}

void CountingBackend::cast(const CastSpec& spec, const CastTensors& tensors, Stream& stream) {
  note(print(spec), stream);
  CastTensors given = tensors;
  if (hides_maxima) given.known_amax = given.known_transposed_amax = {};
  inner_->cast(spec, given, on(stream));
  if (after_cast) after_cast(spec, tensors, on(stream));
}

// A list's runs are counted, and go to the inner backend's stream.
template <class List, class Spec>
class CountingBackend::Counted final : public List {
 public:
  Counted(CountingBackend& of, Spec spec, const std::function<std::unique_ptr<List>(Stream&)>& make)
      : of_(&of), spec_(std::move(spec)), own_(*of.inner_), list_(make(on_inner())) {
    spec_.list = true;
  }
  void run(Stream& to) override {
    of_->note(print(spec_), to);
    list_->run(on_inner());
  }

 private:
  Stream& on_inner() { return of_->on(own_); }

  CountingBackend* of_;
  Spec spec_;
  Stream own_;
  std::unique_ptr<List> list_;
};

std::unique_ptr<AmaxList> CountingBackend::make_amax_list(const AmaxSpec& spec, std::span<const AmaxTensors> tensors,
                                                          Stream&) {
  return std::make_unique<Counted<AmaxList, AmaxSpec>>(
      *this, spec, [&](Stream& on_inner) { return inner_->make_amax_list(spec, tensors, on_inner); });
}

std::unique_ptr<CastList> CountingBackend::make_cast_list(const CastSpec& spec, std::span<const CastTensors> tensors,
                                                          Stream&) {
  return std::make_unique<Counted<CastList, CastSpec>>(
      *this, spec, [&](Stream& on_inner) { return inner_->make_cast_list(spec, tensors, on_inner); });
}

void CountingBackend::gemm(const GemmSpec& spec, const GemmTensors& tensors, Stream& stream) {
  note(print(spec), stream);
  if (gemm_fails) throw Error(ErrorCode::cuda_failed, print(spec), "broken for the test");
  inner_->gemm(spec, tensors, on(stream));
}

void CountingBackend::gemm_pair(const GemmWork& first, const GemmWork& second, Stream& stream) {
  for (const GemmWork* const work : {&first, &second}) {
    note(print(work->spec), stream);
    if (gemm_fails) throw Error(ErrorCode::cuda_failed, print(work->spec), "broken for the test");
  }
  const auto call = [](const GemmWork& work) {
    return GemmCall{.spec = work.spec, .size = gemm_size(work.spec, work.tensors)};
  };
  paired.emplace_back(call(first), call(second));
  inner_->gemm_pair(first, second, on(stream));
}

bool CountingBackend::pairs(const GemmCall& first, const GemmCall& second) {
  if (pairs_gemms) asked.emplace_back(first, second);
  return pairs_gemms;
}

void CountingBackend::grouped_gemm(const GroupedGemmSpec& spec, const GroupedGemmTensors& tensors, Stream& stream) {
  note(print(spec), stream);
  if (before_grouped_gemm) before_grouped_gemm(tensors);
  inner_->grouped_gemm(spec, tensors, on(stream));
}

void CountingBackend::column_sum(const ColumnSumSpec& spec, const ColumnSumTensors& tensors, Stream& stream) {
  note(print(spec), stream);
  inner_->column_sum(spec, tensors, on(stream));
}

void CountingBackend::relayout(const RelayoutSpec& spec, const RelayoutTensors& tensors, Stream& stream) {
  note(print(spec), stream);
  inner_->relayout(spec, tensors, on(stream));
}

void CountingBackend::combine(const CombineSpec& spec, const CombineTensors& tensors, Stream& stream) {
  note(print(spec), stream);
  inner_->combine(spec, tensors, on(stream));
}

void CountingBackend::elementwise(const ElementwiseSpec& spec, const ElementwiseTensors& tensors, Stream& stream) {
  note(print(spec), stream);
  ElementwiseSpec passed = spec;
  ElementwiseTensors given = tensors;
  if (hides_maxima) passed.maxima = false;
  if (hides_maxima) given.row_amax = given.column_amax = {};
  inner_->elementwise(passed, given, on(stream));
}

void CountingBackend::cast_stats(const CastStatsSpec& spec, const CastStatsTensors& tensors, Stream& stream) {
  note(print(spec), stream);
  inner_->cast_stats(spec, tensors, on(stream));
}

void CountingBackend::norm(const NormSpec& spec, const NormTensors& tensors, Stream& stream) {
  note(print(spec), stream);
  inner_->norm(spec, tensors, on(stream));
}

void CountingBackend::norm_backward(const NormBackwardSpec& spec, const NormBackwardTensors& tensors, Stream& stream) {
  note(print(spec), stream);
  inner_->norm_backward(spec, tensors, on(stream));
}

void CountingBackend::amax_scales(const AmaxScalesSpec& spec, const AmaxScalesTensors& tensors, Stream& stream) {
  note(print(spec), stream);
  inner_->amax_scales(spec, tensors, on(stream));
}

void CountingBackend::amax_history(const AmaxHistorySpec& spec, const AmaxHistoryTensors& tensors, Stream& stream) {
  note(print(spec), stream);
  inner_->amax_history(spec, tensors, on(stream));
}

void CountingBackend::quantize_mx(const MxQuantizeSpec& spec, const MxQuantizeTensors& tensors, Stream& stream) {
  note(print(spec), stream);
  inner_->quantize_mx(spec, tensors, on(stream));
}

void CountingBackend::float_quantize(const FloatQuantizeSpec& spec, const FloatQuantizeTensors& tensors,
                                     Stream& stream) {
  note(print(spec), stream);
  inner_->float_quantize(spec, tensors, on(stream));
}

void CountingBackend::pack_weight(const PackWeightSpec& spec, const PackWeightTensors& tensors, Stream& stream) {
  note(print(spec), stream);
  inner_->pack_weight(spec, tensors, on(stream));
}

void CountingBackend::dequant_matmul(const DequantMatmulSpec& spec, const DequantMatmulTensors& tensors,
                                     Stream& stream) {
  note(print(spec), stream);
  constant_weight = tensors.constant_weight;
  inner_->dequant_matmul(spec, tensors, on(stream));
}

void CountingBackend::note(std::string call, const Stream& stream) {
  waited = false;
  calls.push_back(std::move(call));
  streams.push_back(&stream);
  if (before_call) before_call();
}

}  // namespace ingot::test
