// A backend that forwards every call to another backend, counts the calls, and fails on request.
//
// A CUDA backend accepts only its own streams: pass one as inner_stream, and all calls go there.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "ingot/runtime/context/backend.h"
#include "ingot/runtime/core/stream.h"
#include "ingot/runtime/util/error.h"

namespace ingot::test {

// What a CountingBackend and its device have counted, and what a test tells them.
struct Counts {
  int allocations = 0;
  int copies_from_host = 0, copies_to_host = 0;
  const void* freed = nullptr;  // what begins here is_allocated() no more
  bool is_capturing = false;
  mutable int capture_questions = 0;
  std::vector<std::string> calls;               // the specs, in order
  bool waited = true;                           // has synchronize() waited for all calls and copies from the host?
  bool constant_weight = false;                 // of the last dequant_matmul
  std::vector<const Stream*> streams;           // of each call
  std::vector<const Stream*> waiting, awaited;  // of each Stream::wait_for()
  bool gemm_fails = false;
  bool hides_maxima = false;  // casts are given no known maxima, and elementwise need not find any
  bool pairs_gemms = false;   // what pairs() says
  std::vector<std::pair<GemmCall, GemmCall>> asked;   // of pairs() that said so
  std::vector<std::pair<GemmCall, GemmCall>> paired;  // by gemm_pair()
  std::function<void()> before_call;                  // of each operation, once it is counted
  std::function<void(const CastSpec&, const CastTensors&, Stream&)> after_cast;
  std::function<void(const GroupedGemmTensors&)> before_grouped_gemm;
  Stream* all_to;  // if not null: where all calls go

  explicit Counts(Stream* to) : all_to(to) {}
  Stream& on(Stream& stream) const { return all_to != nullptr ? *all_to : stream; }
  const Stream& on(const Stream& stream) const { return all_to != nullptr ? *all_to : stream; }
};

class CountingBackend final : public Counts, public Backend {
 public:
  explicit CountingBackend(Backend& inner, Stream* inner_stream = nullptr);

  void amax(const AmaxSpec& spec, const AmaxTensors& tensors, Stream& stream) override;
  std::unique_ptr<AmaxList> make_amax_list(const AmaxSpec& spec, std::span<const AmaxTensors> tensors,
                                           Stream& stream) override;
  void cast(const CastSpec& spec, const CastTensors& tensors, Stream& stream) override;
  std::unique_ptr<CastList> make_cast_list(const CastSpec& spec, std::span<const CastTensors> tensors,
                                           Stream& stream) override;
  void gemm(const GemmSpec& spec, const GemmTensors& tensors, Stream& stream) override;
  // Counted as two calls of gemm().
  void gemm_pair(const GemmWork& first, const GemmWork& second, Stream& stream) override;
  bool pairs(const GemmCall& first, const GemmCall& second) override;
  void grouped_gemm(const GroupedGemmSpec& spec, const GroupedGemmTensors& tensors, Stream& stream) override;
  void column_sum(const ColumnSumSpec& spec, const ColumnSumTensors& tensors, Stream& stream) override;
  void relayout(const RelayoutSpec& spec, const RelayoutTensors& tensors, Stream& stream) override;
  void combine(const CombineSpec& spec, const CombineTensors& tensors, Stream& stream) override;
  void elementwise(const ElementwiseSpec& spec, const ElementwiseTensors& tensors, Stream& stream) override;

  void cast_stats(const CastStatsSpec& spec, const CastStatsTensors& tensors, Stream& stream) override;
  void norm(const NormSpec& spec, const NormTensors& tensors, Stream& stream) override;
  void norm_backward(const NormBackwardSpec& spec, const NormBackwardTensors& tensors, Stream& stream) override;
  void amax_scales(const AmaxScalesSpec& spec, const AmaxScalesTensors& tensors, Stream& stream) override;
  void amax_history(const AmaxHistorySpec& spec, const AmaxHistoryTensors& tensors, Stream& stream) override;
  void quantize_mx(const MxQuantizeSpec& spec, const MxQuantizeTensors& tensors, Stream& stream) override;
  void float_quantize(const FloatQuantizeSpec& spec, const FloatQuantizeTensors& tensors, Stream& stream) override;
  void pack_weight(const PackWeightSpec& spec, const PackWeightTensors& tensors, Stream& stream) override;
  void dequant_matmul(const DequantMatmulSpec& spec, const DequantMatmulTensors& tensors, Stream& stream) override;

 private:
  template <class List, class Spec>
  class Counted;

  void note(std::string call, const Stream& stream);

  Backend* inner_;
};

}  // namespace ingot::test
