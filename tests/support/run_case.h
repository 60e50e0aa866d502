// Runs a case on a backend: makes its inputs, places its memory as the case says, and poisons its outputs.
#pragma once

#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "cases.h"
#include "ingot/runtime/cast/cast_tensors.h"
#include "ingot/runtime/context/backend.h"
#include "ingot/runtime/core/buffer.h"
#include "ingot/runtime/core/stream.h"
#include "support/guarded_matrix.h"
#include "support/random.h"

namespace ingot::test {

// Matrices by their names in the backend's argument structs; matrices that a spec does not have are missing.
using Matrices = std::map<std::string, GuardedMatrix>;
using SharedMatrices = std::map<std::string, std::shared_ptr<const GuardedMatrix>>;

// "inputs[2]"
inline std::string pointwise_input_name(std::size_t i) { return "inputs[" + std::to_string(i) + "]"; }

// Makes each input once and shares it between the specs that read it.
class InputMaker {
 public:
  SharedMatrices inputs(const Case& c);

 private:
  SharedMatrices inputs_of(const RelayoutSpec&, const Case& c);
  SharedMatrices inputs_of(const CastSpec& spec, const Case& c);
  // In the order of ElementwiseInputs.
  SharedMatrices inputs_of(const ElementwiseSpec& spec, const Case& c);

  // With these scale_inv some values saturate, some are flushed to zero, and some do neither. Every eighth code is a
  // zero. So the codes include combinations that no cast writes.
  SharedMatrices inputs_of(const CastStatsSpec& spec, const Case& c);

  void add_pointwise_inputs(const Pointwise& expression, Dtype dtype, const Case& c, SharedMatrices& made);
  // As input i of an expression.
  void add_pointwise_input(const PointwiseInput& input, std::size_t i, Dtype dtype, const Case& c,
                           SharedMatrices& made);

  // gamma and beta are ordinary numbers, whatever the input is.
  SharedMatrices inputs_of(const NormSpec& spec, const Case& c);

  // The statistics are ordinary numbers too, not those of the input.
  SharedMatrices inputs_of(const NormBackwardSpec& spec, const Case& c);

  void add_parameters(NormKind kind, Dtype dtype, bool affine, Case c, SharedMatrices& made);

  // The slots rotate through the formats; every third scale is a power of two.
  static SharedMatrices inputs_of(const AmaxHistorySpec&, const Case& c);

  SharedMatrices inputs_of(const AmaxScalesSpec&, const Case& c);

  template <class Spec>
  SharedMatrices inputs_of(const Spec& spec, const Case& c) {
    if constexpr (std::is_same_v<Spec, AmaxSpec> || std::is_same_v<Spec, ColumnSumSpec>) {
      return {{"input", matrix(spec.in, c.shape.rows, c.shape.cols, c, 1)}};
    } else {  // quantize_spec.h and dequant_spec.h have their own tests
      throw std::logic_error("there are no such cases: " + print(spec) + " " + name(c));
    }
  }

  SharedMatrices inputs_of(const GemmSpec& spec, const Case& c);

  std::shared_ptr<const GuardedMatrix> matrix(Dtype dtype, std::int64_t rows, std::int64_t cols, const Case& c,
                                              unsigned seed);

  // Positive scale_inv; powers of two if results must be exact.
  static std::shared_ptr<const GuardedMatrix> scale_inv(std::int64_t count, const Case& c, unsigned seed);

  ThreadPool pool_{0};
  std::map<std::string, std::shared_ptr<const GuardedMatrix>> kept_;
};

// scale_inv of groups in group order, from those in row order of an operand with `rows` rows and K = k.
GuardedMatrix by_group(const GuardedMatrix& scale_inv, ScaleGranularity scale, std::int64_t rows, std::int64_t k);

inline constexpr float kNormEps = 1e-5F;

// The slots before an update. The case's input gives their maxima; every fifth slot has no newest amax, and every tenth
// never had any. The scales come from an earlier update.
Matrices slots_before(const Case& c);

// Maxima of earlier steps: none, small and large ones.
GuardedMatrix earlier_amax(std::int64_t count);

// The outputs of a case before it runs: poison, except for maxima, which are only raised.
Matrices poisoned_outputs(const Case& c);

// The matrices of a case in a backend's memory.
class PlacedCase {
 public:
  PlacedCase(const Case& c, const SharedMatrices& inputs, Backend& backend, Stream& stream);

  void enqueue(Stream& stream);

  // For a GEMM: what enqueue() calls Backend::gemm() with.
  GemmWork gemm() const;

  // The current outputs, with the bytes around them.
  Matrices outputs(Stream& stream);

  void poison(Stream& stream) { poison_all_but({}, stream); }

  void poison_all_but(const std::set<std::string>& kept, Stream& stream);

  Tensor& tensor(const std::string& name) { return tensors_[name]; }

 private:
  void place(const std::string& name, const GuardedMatrix& matrix, Stream& stream);

  void place_by_group(const SharedMatrices& inputs, Stream& stream);

  // A default tensor if the case has no matrix of this name.
  Tensor of(const std::string& name) const;

  void enqueue_as(const AmaxSpec& spec, Stream& stream);
  void enqueue_as(const CastSpec& spec, Stream& stream);
  void enqueue_as(const GemmSpec& spec, Stream& stream);
  void enqueue_as(const ColumnSumSpec& spec, Stream& stream);
  void enqueue_as(const RelayoutSpec& spec, Stream& stream);
  void enqueue_as(const ElementwiseSpec& spec, Stream& stream);

  void enqueue_as(const CastStatsSpec& spec, Stream& stream);
  void enqueue_as(const NormSpec& spec, Stream& stream);
  void enqueue_as(const NormBackwardSpec& spec, Stream& stream);

  template <class Spec>
  void enqueue_as(const Spec& spec, Stream&) {
    throw std::logic_error("there are no such cases: " + print(spec));
  }
  void enqueue_as(const AmaxHistorySpec& spec, Stream& stream);
  void enqueue_as(const AmaxScalesSpec& spec, Stream& stream);

  Case case_;
  Backend* backend_;
  Matrices outputs_;
  std::map<std::string, Buffer> memory_;
  std::map<std::string, Tensor> tensors_;
};

Matrices run(const Case& c, const SharedMatrices& inputs, Backend& backend, Stream& stream);

// Reports bytes written outside any output; empty if there are none.
std::string damage(const Matrices& outputs);

}  // namespace ingot::test
