// Linear layers whose weight the ranks of a Comm divide (tensor parallelism), over the functions of linear_functions.h.
// ranks = comm.size(), K = in_features, N = out_features of the whole layer, M = tokens of all ranks.
//
//                          weight       input                          output
//   ColumnParallelLinear   [N/ranks, K] [M, K], or [M/ranks, K]        [M, N/ranks]
//   RowParallelLinear      [N, K/ranks] [M, K/ranks]                   [M, N], or [M/ranks, N]
//
// The second forms are those of sequence parallelism, in which ranks also divide the tokens in front of a
// column-parallel layer and behind a row-parallel one. docs/distributed.md says what crosses the wire, and which
// results have the bits of one rank that has the whole layer.
//
//   ColumnParallelLinear up(context.backend(), comm, {.name = "up", .config = tensorwise(), .shape = {K, N},
//                                                     .sequence_parallel = true});
//   up.forward({.input = x, .weight = w, .output = y}, stream);
//   up.backward({.grad_output = gy, .grad_input = gx, .grad_weight = gw}, stream);
#pragma once

#include <memory>
#include <string>

#include "ingot/api.h"
#include "ingot/nn/linear/linear_plan.h"
#include "ingot/nn/modules/float8_linear.h"
#include "ingot/nn/recipe/config.h"
#include "ingot/runtime/context/backend.h"
#include "ingot/runtime/core/stream.h"
#include "ingot/runtime/dist/comm.h"

namespace ingot {

class DelayedScaling;
class ParallelLayer;

struct ParallelLinearOptions {
  std::string name = "linear";  // in messages, in a handshake, and for the slots of delayed scales
  LinearConfig config{};
  LinearShape shape{};  // of the whole layer
  LinearDtypes dtypes{};
  bool sequence_parallel = false;
  // The model's, required if the config has delayed scales. Before each sync_amax_history():
  // comm.all_reduce_max(delayed.amaxes(), stream).
  DelayedScaling* delayed = nullptr;
};

// Both layers own memory as Float8Linear does (float8_linear.h): what forward() keeps for backward(), the weight's
// codes, scratch. Tensors are LinearForward's and LinearBackward's, of this rank, without a prologue or epilogue. Every
// rank makes the same calls. Move-only; the backend, the Comm and the DelayedScaling must outlive them. A step that has
// run once may be captured into a graph, on all ranks.
//
// Throw Error{invalid_argument} where the ranks do not divide what they should, and for tensors that do not fit.
class INGOT_API ColumnParallelLinear {
 public:
  ColumnParallelLinear(Backend& backend, Comm& comm, ParallelLinearOptions options);
  ~ColumnParallelLinear();
  ColumnParallelLinear(ColumnParallelLinear&&) noexcept;
  ColumnParallelLinear& operator=(ColumnParallelLinear&&) noexcept;

  // bias: of this rank's N/ranks outputs.
  void forward(const LinearForward& tensors, Stream& stream);
  void backward(const LinearBackward& tensors, Stream& stream);
  void weight_changed();
  // For Comm::handshake().
  SharedLayer shared() const;

 private:
  std::unique_ptr<ParallelLayer> layer_;
};

class INGOT_API RowParallelLinear {
 public:
  RowParallelLinear(Backend& backend, Comm& comm, ParallelLinearOptions options);
  ~RowParallelLinear();
  RowParallelLinear(RowParallelLinear&&) noexcept;
  RowParallelLinear& operator=(RowParallelLinear&&) noexcept;

  // bias: of all N outputs, the same on every rank, of the output's dtype; it is added after the sum over the ranks.
  void forward(const LinearForward& tensors, Stream& stream);
  // grad_bias is that of all ranks' tokens, on every rank.
  void backward(const LinearBackward& tensors, Stream& stream);
  void weight_changed();
  SharedLayer shared() const;

 private:
  std::unique_ptr<ParallelLayer> layer_;
};

}  // namespace ingot
