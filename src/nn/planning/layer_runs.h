// Runs layers as a trainer or a decoder does, with their own tensors, which hold zeros. On a DryRun this finds out
// which kernels a model will need, before there is a model or a GPU:
//
//   DryRun dry(gpu_named("h200"));
//   run_training(dry.backend(), {.layers = training_layers(model), .recipes = {rowwise()}, .tokens = {8192}});
//
// Another backend runs the same steps, for comparison. A captured graph asks for no more than the steps before it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "ingot/api.h"
#include "ingot/codegen/types/dtype.h"
#include "ingot/nn/planning/known_models.h"
#include "ingot/nn/recipe/config.h"
#include "ingot/nn/weights/weight_only.h"
#include "ingot/runtime/context/backend.h"
#include "ingot/runtime/context/context.h"

namespace ingot {

// linear: Float8Linear. The others: RMSNormLinear, LayerNormLinear, GatedMlp, LayerNormMlp with gelu(x), GatedMlp after
// an RMSNorm, and the gated MLPs of a mixture of experts (experts_mlp.h).
enum class TrainedLayerKind : std::uint8_t {
  linear,
  rms_norm_linear,
  layer_norm_linear,
  gated_mlp,
  layer_norm_mlp,
  rms_norm_gated_mlp,
  experts
};

struct TrainedLayer {
  std::string name{};
  TrainedLayerKind kind = TrainedLayerKind::linear;
  std::int64_t in_features = 0;
  std::int64_t out_features = 0;  // of an MLP: its hidden features
  // Of an MLP: of both of its layers. Experts with biases are two grouped linear layers (grouped_linear.h): the program
  // adds each expert's to its rows, and applies the activation.
  bool bias = false;
  std::int64_t experts = 0;  // of the kind experts: how many there are, and how many each token has
  std::int64_t chosen = 0;
};

struct TrainingRun {
  std::vector<TrainedLayer> layers{};
  std::vector<LinearConfig> recipes{};
  std::vector<std::int64_t> tokens{};
  Dtype dtype = Dtype::bf16;
  Dtype grad_weight = Dtype::bf16;  // the run's dtype or f32
  bool recompute = false;           // also forward passes that keep nothing, and recomputation
};

// Two steps of each layer with each recipe and number of tokens: delayed scales begin in the first. Experts run with
// the recipes that they take (experts_take()): a forward pass alone, and one step for each way to have the weights'
// codes in backward, with and without fast accumulation of gradients and fast math; gradients of weights are also added
// to f32. Throws what the layers throw; for experts, on a GPU other than Hopper, what their GEMMs throw.
INGOT_API void run_training(Backend& backend, const TrainingRun& run);

struct DecodedLayer {
  std::string name{};
  std::int64_t in_features = 0;
  std::int64_t out_features = 0;
  bool f32_output = false;  // as of logits; otherwise the activations' dtype
  bool bias = false;
  // If not 0: the gated MLPs of so many experts, of which each token has `chosen`; out_features are those of an MLP's
  // hidden values. Two grouped products, by weights in the run's formats; and where the run has them by grouped GEMMs,
  // whose FP8 weights have a scale for each row and whose inputs are cast.
  std::int64_t experts = 0;
  std::int64_t chosen = 0;
  bool mxfp4 = false;  // of experts: also by weights in e2m1fn with MX scales, which their checkpoint has
};

struct DecodingRun {
  std::vector<DecodedLayer> layers{};
  std::vector<WeightOnlyOptions> weights{};  // each with activations in 16 bits
  std::vector<std::int64_t> tokens{};        // decoded at once
  Dtype dtype = Dtype::bf16;                 // of the activations: bf16 or f16
  bool high_precision = false;               // also with weights of the activations' dtype
  bool grouped_gemms = true;                 // of experts, which run on Hopper only
};

// Quantizes each layer's weight and runs the layer. Throws what WeightOnlyLinear throws.
INGOT_API void run_decoding(Backend& backend, const DecodingRun& run);

// A known model's layers. Its head writes f32 when it decodes.
INGOT_API std::vector<TrainedLayer> training_layers(const KnownModel& model);
INGOT_API std::vector<DecodedLayer> decoding_layers(const KnownModel& model);

// Everything that the first step would wait for, before the first step: kernels are compiled on all cores and loaded,
// and the plans of all matmuls are made.
//
//   prepare(context, {.layers = training_layers(model), .recipes = {rowwise()}, .tokens = {8192}},
//           {.progress = [](const PrepareProgress& now) { std::printf("%zu of %zu\n", now.done, now.total); }});
struct PrepareOptions {
  // Called on the calling thread, after each kernel. May throw: what it throws ends the preparation.
  std::function<void(const PrepareProgress&)> progress{};
  // Also runs each layer, on tensors that are released again, so that cuBLASLt's choices are made, too.
  // This needs memory for one layer at a time.
  bool run_layers = true;
};

// Lists the kernels by a dry run, compiles and loads those that are missing (Context::prepare()), then runs the layers.
// Does nothing on the CPU, which needs none of it. Throws what the layers throw, and Error{compile_failed, not_found,
// cuda_failed, out_of_memory}.
INGOT_API void prepare(Context& context, const TrainingRun& run, const PrepareOptions& options = {});
INGOT_API void prepare(Context& context, const DecodingRun& run, const PrepareOptions& options = {});

}  // namespace ingot
