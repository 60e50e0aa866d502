// A grouped linear layer, run on any backend in poisoned memory, and what float64 expects of it: each expert's GEMMs of
// operands that were quantized as a layer with all rows would quantize them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ingot/nn/linear/grouped_linear.h"
#include "ingot/nn/modules/delayed_scaling.h"
#include "nn/function_case.h"
#include "nn/reference.h"
#include "support/grouped_gemm_case.h"

namespace ingot::test {

struct GroupedLinearCase {
  LinearConfig config{};
  Ends ends{};
  std::int64_t rows = 0;  // at least the last end
  std::int64_t in = 0, out = 0;
  Dtype dtype = Dtype::bf16;
  Dtype grad_weight = Dtype::bf16;
  bool accumulate = false;
  bool gated = false;  // the input is `silu(x) * up`
  // If not 0, at most `rows`: input and grad_output are rows of so many tokens, with an index or, if `copied`, as
  // copies.
  std::int64_t tokens = 0;
  bool copied = false;
  bool keeps_amax = false;  // forward's cast of the weights leaves their maxima to backward's
  bool bias = false;
};

std::string describe(const GroupedLinearCase& c);

// The delayed scales of layers of experts; none for another config.
class ExpertScales {
 public:
  ExpertScales(const LinearConfig& config, int layers, std::int64_t experts, Backend& backend, Stream& stream);

  LinearScales of(int layer);
  // Of each layer's input, weight and grad_output, each expert's; 1 where none is made.
  std::vector<float> values() const;
  bool needs_start() const;

  DelayedScaling scaling;

 private:
  bool any_;
  int experts_;
  Stream* stream_;
  std::vector<PoisonedRegion> memory_{};
};

class GroupedLinearRun {
 public:
  GroupedLinearRun(const GroupedLinearCase& c, Backend& backend, Stream& stream);

  // Casts the weights unless backward alone needs their codes, and runs both ways.
  void enqueue(LayerObserver* observer = nullptr);
  // Likewise with codes by rows of the weights in both ways, as another call has cast them: of a plan whose backward
  // casts the weights again.
  void enqueue_codes();
  // Outputs and gradients as they were before a step.
  void reset();
  // Fails for whatever is outside its bounds.
  void check(const std::string& what) const;

  // output, grad_input and grad_weight; grad_bias, if there is a bias.
  std::vector<Matrix> results() const;

  GroupedLinearForwardTensors forward_tensors();
  GroupedLinearBackwardTensors backward_tensors();
  const Matrix& weight() const { return weight_; }
  Matrix grad_input() const { return grad_input_.read(*stream_); }

  const GroupedLinearPlan plan;
  LinearSaved saved;
  ExpertScales scales;

 private:
  // Of operand 0, 1 or 2, as ExpertScales has them: the cast of an expert's matrix alone.
  Cast cast_of_expert(Cast cast, std::int64_t operand, std::int64_t expert) const;
  std::optional<RowIndex> index_in(const Buffer& memory) const;
  void check_grad_bias(const std::string& what) const;

  GroupedLinearCase case_;
  Backend* backend_;
  Stream* stream_;
  bool gathers_;
  std::vector<std::int32_t> index_, grad_output_index_;
  Matrix of_input_, of_grad_output_;  // of the tokens, where they are gathered
  Matrix input_, up_, values_, weight_, grad_output_, before_, bias_;
  DeviceMatrix input_memory_, up_memory_, weight_memory_, grad_output_memory_, bias_memory_;
  DeviceMatrix output_, grad_input_, grad_weight_, grad_bias_;
  Buffer ends_, index_memory_, grad_output_index_memory_, amax_;
  PoisonedRegion codes_, saved_memory_, scratch_;
  Float8View views_{};
  std::vector<float> used_{};  // the delayed scales of the last step

  Tensor amax() const;
};

}  // namespace ingot::test
