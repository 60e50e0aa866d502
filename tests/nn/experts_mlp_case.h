// The MLPs of a mixture of experts, run on any backend in poisoned memory, and float64's results of the same step
// without FP8.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ingot/nn/modules/experts_mlp.h"
#include "nn/function_case.h"
#include "nn/grouped_linear_case.h"
#include "nn/reference.h"

namespace ingot::test {

struct ExpertsMlpCase {
  LinearConfig config{};
  std::int64_t experts = 4, tokens = 0, choices = 2, features = 0, hidden = 0;
  Dtype dtype = Dtype::bf16;
  std::string activation = "silu(x) * up";
  Dtype grad_weight = Dtype::bf16;
  bool accumulate = false;
  bool lacks = false;  // other ranks have every third choice's expert
  bool grad_up_weight = true, grad_down_weight = true;
  bool fast_math = false;
  bool up_bias = false;
};

std::string describe(const ExpertsMlpCase& c);

class ExpertsMlpRun {
 public:
  ExpertsMlpRun(const ExpertsMlpCase& c, Backend& backend, Stream& stream);

  // Casts the weights, and runs both ways. known_amax: backward's cast of the weights takes the maxima of forward's.
  void enqueue(bool known_amax = true);
  // Outputs and gradients as they were before a step.
  void reset();
  // Fails for whatever is too far from float64's.
  void check(const std::string& what) const;
  // Output, then the gradients of input, router, up and down, and of the first layer's biases, if there are any.
  std::vector<Matrix> results() const;

  ExpertsMlpForwardTensors forward_tensors();
  ExpertsMlpBackwardTensors backward_tensors();
  ExpertsMlpInputGradientTensors input_gradient_tensors();
  ExpertsMlpWeightGradientTensors weight_gradient_tensors();

  const ExpertsMlpPlan plan;
  LinearSaved saved;
  ExpertsMlpGradients wants;
  ExpertScales scales;  // of `up`, then of `down`

 private:
  struct Rows {
    std::vector<std::int32_t> tokens, of_tokens, ends;
    Matrix weights;
  };
  Rows route();
  ExpertsRouting routing() const;
  std::vector<Matrix> expected() const;

  ExpertsMlpCase case_;
  Backend* backend_;
  Stream* stream_;
  std::vector<std::int64_t> chosen_;  // the expert of each choice; -1: none
  Matrix input_, router_, up_, down_, grad_output_, before_up_, before_down_, up_bias_;
  Rows rows_;
  DeviceMatrix input_memory_, weights_memory_, up_memory_, down_memory_, grad_output_memory_;
  DeviceMatrix output_, hidden_, grad_input_, grad_router_, grad_up_, grad_down_, up_amax_, down_amax_;
  DeviceMatrix up_bias_memory_, grad_up_bias_;
  Buffer tokens_, of_tokens_, ends_;
  PoisonedRegion up_codes_, down_codes_, saved_memory_, forward_scratch_, kept_input_, kept_up_, kept_down_,
      backward_scratch_, input_scratch_;
  Float8View up_view_{}, down_view_{};
};

}  // namespace ingot::test
