// A layer's step on the GPU: tensors that all recipes share, and a layer for each recipe and copy of the tensors.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ingot/nn/delayed_scaling.h"
#include "ingot/nn/norm_linear.h"
#include "ingot/runtime/measure/random_data.h"
#include "ingot/runtime/measure/replay.h"
#include "linear_cases.h"

namespace ingot::bench {

// One step's tensors, bf16: random input [M, K], weight [N, K] and grad_output [M, N]; results.
class StepTensors {
 public:
  StepTensors(Gpu& gpu, RandomData& random, const LinearSize& size, std::uint64_t seed);

  OwnedTensor input, weight, grad_output;
  OwnedTensor output, grad_input, grad_weight;

  // Bytes that no right result consists of.
  void poison(Gpu& gpu);
};

// Copies of the tensors, so many that none is in the L2 when its turn comes.
std::vector<std::unique_ptr<StepTensors>> make_copies(Gpu& gpu, RandomData& random, const LinearSize& size);

// One recipe's layers, one for each copy.
class RecipeSteps {
 public:
  // side: LinearOptions has it; null for none.
  RecipeSteps(Gpu& gpu, const LinearBenchCase& c, const Recipe& recipe,
              const std::vector<std::unique_ptr<StepTensors>>& copies, Stream* side = nullptr);

  // The whole step on copy i: the weight is cast, forward, backward; with delayed scales, the update of the histories.
  void enqueue(int copy);
  RotatedCall call();
  // Of the last step.
  std::size_t saved_bytes() const;

 private:
  struct Layer {
    std::unique_ptr<DelayedScaling> delayed;
    std::unique_ptr<Float8Linear> linear;
    std::unique_ptr<LayerNormLinear> norm_linear;
  };

  Gpu* gpu_;
  bool delayed_;
  const std::vector<std::unique_ptr<StepTensors>>* copies_;
  Float8Workspace workspace_;
  NormWorkspace norm_workspace_;
  std::vector<Layer> layers_;
};

// Rows of a step's results on the host, spread over each of them.
struct StepSample {
  std::vector<float> output;
  std::vector<float> grad_input;
  std::vector<float> grad_weight;
};
StepSample sample(Gpu& gpu, const StepTensors& tensors);

// What of a sample of bf16's step is not what the formula gives in float64, at a few elements of the output; empty if
// nothing is.
std::string fault_of_baseline(Gpu& gpu, const LinearBenchCase& c, const StepTensors& tensors);
// Signal to noise of another recipe's results, bf16's taken for the signal.
struct StepQuality {
  double output_db = 0;
  double grad_input_db = 0;
  double grad_weight_db = 0;
};
StepQuality quality(const StepSample& baseline, const StepSample& found);
// What of it is below 15 dB; NaN is.
std::string fault(const StepQuality& found);

}  // namespace ingot::bench
