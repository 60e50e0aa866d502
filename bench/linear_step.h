// Runs one training step of a layer on the GPU, and checks its results. StepTensors are the step's tensors: there are
// several copies, so that none is in the L2 when it is used, and all recipes use the same ones. RecipeSteps has the
// layers of one recipe, one for each copy.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ingot/nn/modules/delayed_scaling.h"
#include "ingot/nn/modules/norm_linear.h"
#include "ingot/runtime/measure/random_data.h"
#include "ingot/runtime/measure/replay.h"
#include "linear_cases.h"

namespace ingot::bench {

// The tensors of one step, in bf16: random input [M, K], weight [N, K] and grad_output [M, N], and the results.
class StepTensors {
 public:
  StepTensors(MeasuredGpu& gpu, RandomData& random, const LinearSize& size, std::uint64_t seed);

  OwnedTensor input, weight, grad_output;
  OwnedTensor output, grad_input, grad_weight;

  // Fills the results with bytes that no right result has.
  void poison(MeasuredGpu& gpu);
};

// As many copies of the tensors as it takes to find none of them in the L2 when it is used.
std::vector<std::unique_ptr<StepTensors>> make_copies(MeasuredGpu& gpu, RandomData& random, const LinearSize& size);

// The layers of one recipe, one for each copy of the tensors.
class RecipeSteps {
 public:
  // side, fused_products: as in LinearOptions.
  RecipeSteps(MeasuredGpu& gpu, const LinearBenchCase& c, const Recipe& recipe,
              const std::vector<std::unique_ptr<StepTensors>>& copies, Stream* side = nullptr,
              double fused_products = kFusedProducts);

  // Enqueues a whole step on copy i: casts the weight, runs forward and backward, and with delayed scales updates the
  // histories.
  void enqueue(int copy);
  RotatedCall call();
  // Float8Linear::saved_bytes() after the last step.
  std::size_t saved_bytes() const;

 private:
  struct Layer {
    std::unique_ptr<DelayedScaling> delayed;
    std::unique_ptr<Float8Linear> linear;
    std::unique_ptr<LayerNormLinear> norm_linear;
  };

  MeasuredGpu* gpu_;
  bool delayed_;
  const std::vector<std::unique_ptr<StepTensors>>* copies_;
  Float8Workspace workspace_;
  std::vector<Layer> layers_;
};

// Rows of a step's results on the host, spread over each result.
struct StepSample {
  std::vector<float> output;
  std::vector<float> grad_input;
  std::vector<float> grad_weight;
};
StepSample sample(MeasuredGpu& gpu, const StepTensors& tensors);

// Compares a few output elements of a bf16 step's sample with the formula in float64. Describes the first difference;
// empty if there is none.
std::string fault_of_baseline(MeasuredGpu& gpu, const LinearBenchCase& c, const StepTensors& tensors);
// Signal-to-noise ratios of another recipe's results, in dB, with bf16's results as the signal.
struct StepQuality {
  double output_db = 0;
  double grad_input_db = 0;
  double grad_weight_db = 0;
};
StepQuality quality(const StepSample& baseline, const StepSample& found);
// Names the result that is below 15 dB or NaN; empty if there is none.
std::string fault(const StepQuality& found);

}  // namespace ingot::bench
