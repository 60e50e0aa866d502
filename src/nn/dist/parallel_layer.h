// What a column-parallel and a row-parallel layer have in common: the plan of the rank's part, its scales, the weight's
// codes, the memory of a step, and the gathers over the ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "ingot/nn/dist/parallel_linear.h"
#include "ingot/nn/dist/parallel_scales.h"
#include "ingot/nn/linear/layer_call.h"
#include "ingot/nn/linear/linear_functions.h"
#include "ingot/nn/linear/memory_places.h"
#include "ingot/nn/modules/linear_owner.h"

namespace ingot {

// The scratch of one call: the linear layer's, from its begin on, and what the ranks exchange.
struct ParallelScratch {
  TensorPlace gathered{};  // of all ranks: codes, where the linear layer's place for them is not contiguous, or values
  TensorPlace partial{};   // what is summed over the ranks
  TensorPlace sum{};       // f32: the rank's part of the bias' gradient
  std::size_t bytes = 0;
};

// How the ranks' rows of a tensor come together.
enum class Gather : std::uint8_t { none, codes, values };

class ParallelLayer {
 public:
  // `part`: this rank's shape. `kind`: in messages.
  ParallelLayer(Backend& backend, Comm& comm, ParallelLinearOptions options, const char* kind, const LinearShape& part,
                const DividedTensors& divided);

  Backend& backend() const { return *backend_; }
  Comm& comm() const { return *comm_; }
  const LinearShape& shape() const { return options_.shape; }
  const LinearPlan& plan() const { return plan_; }
  // Are the tokens divided, and by more than one rank?
  bool divides_tokens() const { return options_.sequence_parallel && comm_->size() > 1; }
  // Throws Error{invalid_argument} where the ranks do not divide the tokens.
  std::int64_t tokens_of_a_rank(std::int64_t tokens) const;
  [[noreturn]] void refuse(const char* tensor, const std::string& message) const;
  // For what the ranks exchange: [rows, cols], contiguous.
  void check_exchanged(const char* name, const Tensor& tensor, Dtype dtype, std::int64_t rows, std::int64_t cols) const;

  LayerCall begin(Stream& stream) const { return {plan_.subject, stream}; }
  MemoryRegion scratch(LayerCall& call, std::size_t bytes) { return call.scratch_or(scratch_, *backend_, bytes); }

  // The scale of the next cast of a tensor, of which the rank has this part.
  LinearScale scale(LinearTensor tensor, const Tensor& part, Stream& stream) {
    return scales_.of(tensor, part, *comm_, stream);
  }

  // What a forward leaves for its backward.
  struct Kept {
    LinearSaved saved{};
    MemoryRegion more{};  // for values that backward reads again
    Tensor input{};
    Tensor weight{};
    LinearScale input_scale{};
  };
  Kept& kept() { return kept_; }
  void renew_kept(std::int64_t tokens, std::size_t more, Stream& stream);

  // The forward of the rank's part, and its backward. `all` has the call's own tensors and scratch, and the input's
  // scale; the rest is the layer's.
  void run_forward(LinearForwardTensors all, bool keeps, Stream& stream);
  void check_backward(LinearBackwardTensors all, Stream& stream) const;
  void run_backward(LinearBackwardTensors all, Stream& stream);

  // How a tensor crosses the wire whose codes may cross (gathered_codes.h), or may not.
  Gather gather_of(bool as_codes) const;
  // Where the gathered rows of a tensor go: `codes` is the linear layer's own place for codes.
  static void place(ParallelScratch& scratch, MemoryPlaces& places, Gather how, const LinearCast& cast, Dtype values,
                    const TensorPlace& codes, std::int64_t rows, std::int64_t cols);
  // Casts this rank's rows, gathers those of all ranks, and brings them, transposed ones and scale_inv to their places.
  void gather_codes(const LinearCast& cast, const LinearScale& scale, const Tensor& part, const Float8View& into,
                    const Tensor& gathered, Stream& stream);
  void gather_values(const Tensor& part, const Tensor& all, Stream& stream);

  void weight_changed() { weight_is_current_ = false; }
  SharedLayer shared() const;

 private:
  void cast_weight(const Tensor& weight, Stream& stream);

  Backend* backend_;
  Comm* comm_;
  ParallelLinearOptions options_;
  std::string kind_;
  LinearPlan plan_;
  ParallelScales scales_;
  Buffer scratch_;
  OwnerMemory saved_memory_;
  Kept kept_{};
  OwnerMemory weight_memory_;
  Float8View codes_{};
  LinearScale weight_scale_{};
  Tensor cast_weight_{};
  bool weight_is_current_ = false;
};

}  // namespace ingot
