#include "ingot/nn/planning/layer_runs.h"

#include <algorithm>
#include <optional>

#include "ingot/codegen/types/target.h"
#include "ingot/nn/linear/grouped_linear.h"
#include "ingot/nn/modules/delayed_scaling.h"
#include "ingot/nn/modules/float8_linear.h"
#include "ingot/nn/modules/mlp.h"
#include "ingot/nn/modules/norm_linear.h"
#include "ingot/nn/planning/experts_runs.h"
#include "ingot/nn/planning/run_tensors.h"
#include "ingot/runtime/context/dry_run.h"

namespace ingot {
namespace {

template <class Layer>
ExpertsSize size_of(const Layer& layer) {
  return {.name = layer.name,
          .experts = layer.experts,
          .chosen = layer.chosen,
          .features = layer.in_features,
          .hidden = layer.out_features,
          .bias = layer.bias};
}

// ---- Training ------------------------------------------------------------------------------------------------------

// One layer with one recipe.
struct Trained {
  const TrainedLayer& layer;
  const LinearConfig& recipe;
  const TrainingRun& run;
  std::int64_t tokens;
};

// A forward pass, and one that keeps nothing with its recomputation.
template <class Layer, class Forward>
void run_forward(const TrainingRun& run, Layer& layer, Forward& forward, Stream& stream) {
  layer.forward(forward, stream);
  if (!run.recompute) return;
  forward.keep_for_backward = false;
  layer.forward(forward, stream);
  forward.keep_for_backward = true;
  layer.recompute(forward, stream);
}

// Layers start their delayed scales themselves; who calls their functions starts them from a tensor, such as `values`.
template <class Step>
void run_two_steps(DelayedScaling& delayed, const Tensor& values, Stream& stream, const Step& step) {
  if (delayed.size() > 0) delayed.start(0, values, stream);
  for (int i = 0; i < 2; ++i) {
    step();
    delayed.sync_amax_history(stream);
  }
}

// What every linear layer has. FP8 GEMMs write f32 with a bias of bf16 only.
struct LinearTensors {
  LinearTensors(const Trained& of, const RunResources& resources)
      : input(resources.zeros(of.run.dtype, of.tokens, of.layer.in_features)),
        weight(resources.zeros(of.run.dtype, of.layer.out_features, of.layer.in_features)),
        output(resources.zeros(of.run.dtype, of.tokens, of.layer.out_features)),
        grad_output(resources.zeros(of.run.dtype, of.tokens, of.layer.out_features)),
        grad_input(resources.zeros(of.run.dtype, of.tokens, of.layer.in_features)),
        grad_weight(resources.zeros(of.run.grad_weight, of.layer.out_features, of.layer.in_features)) {
    if (!of.layer.bias) return;
    const bool narrow = of.run.dtype == Dtype::f32 && is_float8(of.recipe.output);
    bias = resources.zeros(narrow ? Dtype::bf16 : of.run.dtype, 1, of.layer.out_features);
    grad_bias = resources.zeros(of.run.dtype, 1, of.layer.out_features);
  }

  OwnedTensor input, weight, output, grad_output, grad_input, grad_weight;
  OwnedTensor bias{}, grad_bias{};
};

LinearShape shape_of(const TrainedLayer& layer) {
  return {.in_features = layer.in_features, .out_features = layer.out_features, .bias = layer.bias};
}

void train_linear(const Trained& of, const RunResources& resources) {
  DelayedScaling delayed(resources.backend);
  Float8Linear layer(resources.backend, shape_of(of.layer), of.recipe, {.name = of.layer.name, .delayed = &delayed});
  const LinearTensors t(of, resources);
  const auto step = [&] {
    layer.weight_changed();
    LinearForward forward{.input = t.input, .weight = t.weight, .bias = t.bias, .output = t.output};
    run_forward(of.run, layer, forward, resources.stream);
    layer.backward({.grad_output = t.grad_output,
                    .grad_input = t.grad_input,
                    .grad_weight = t.grad_weight,
                    .grad_bias = t.grad_bias},
                   resources.stream);
  };
  run_two_steps(delayed, t.input, resources.stream, step);
}

void train_norm_linear(NormKind kind, const Trained& of, const RunResources& resources) {
  DelayedScaling delayed(resources.backend);
  NormLinear layer(kind, resources.backend, {.linear = shape_of(of.layer)}, of.recipe,
                   {.name = of.layer.name, .delayed = &delayed});
  const LinearTensors t(of, resources);
  const auto row = [&] { return resources.zeros(of.run.dtype, 1, of.layer.in_features); };
  const bool has_beta = kind == NormKind::layer;
  const OwnedTensor gamma = row();
  const OwnedTensor grad_gamma = row();
  const OwnedTensor beta = has_beta ? row() : OwnedTensor();
  const OwnedTensor grad_beta = has_beta ? row() : OwnedTensor();
  const auto step = [&] {
    layer.weight_changed();
    NormLinearForward forward{
        .input = t.input, .gamma = gamma, .beta = beta, .weight = t.weight, .bias = t.bias, .output = t.output};
    run_forward(of.run, layer, forward, resources.stream);
    layer.backward({.grad_output = t.grad_output,
                    .grad_input = t.grad_input,
                    .grad_gamma = grad_gamma,
                    .grad_beta = grad_beta,
                    .grad_weight = t.grad_weight,
                    .grad_bias = t.grad_bias},
                   resources.stream);
  };
  run_two_steps(delayed, t.input, resources.stream, step);
}

struct TrainedMlp {
  const char* activation;
  std::optional<NormOptions> norm{};
};

// The layer's out_features are its hidden ones.
void train_mlp(const TrainedMlp& kind, const Trained& of, const RunResources& resources) {
  const std::int64_t features = of.layer.in_features;
  const std::int64_t hidden = of.layer.out_features;
  DelayedScaling delayed(resources.backend);
  Mlp layer(resources.backend, {.features = features, .hidden = hidden, .bias = of.layer.bias}, of.recipe,
            {.name = of.layer.name, .activation = kind.activation, .norm = kind.norm, .delayed = &delayed});
  TrainedLayer up = of.layer;
  up.out_features = parse_pointwise(kind.activation).inputs().empty() ? hidden : 2 * hidden;
  const TrainedLayer down{
      .name = of.layer.name, .in_features = hidden, .out_features = features, .bias = of.layer.bias};
  const LinearTensors first({.layer = up, .recipe = of.recipe, .run = of.run, .tokens = of.tokens}, resources);
  const LinearTensors second({.layer = down, .recipe = of.recipe, .run = of.run, .tokens = of.tokens}, resources);
  const auto row = [&](bool there) { return there ? resources.zeros(of.run.dtype, 1, features) : OwnedTensor(); };
  const bool has_beta = kind.norm && kind.norm->kind == NormKind::layer;
  const OwnedTensor gamma = row(kind.norm.has_value());
  const OwnedTensor grad_gamma = row(kind.norm.has_value());
  const OwnedTensor beta = row(has_beta);
  const OwnedTensor grad_beta = row(has_beta);
  const auto step = [&] {
    layer.weights_changed();
    MlpForward forward{.input = first.input,
                       .gamma = gamma,
                       .beta = beta,
                       .up_weight = first.weight,
                       .up_bias = first.bias,
                       .down_weight = second.weight,
                       .down_bias = second.bias,
                       .output = second.output};
    run_forward(of.run, layer, forward, resources.stream);
    layer.backward({.grad_output = second.grad_output,
                    .grad_input = first.grad_input,
                    .grad_gamma = grad_gamma,
                    .grad_beta = grad_beta,
                    .grad_up_weight = first.grad_weight,
                    .grad_up_bias = first.grad_bias,
                    .grad_down_weight = second.grad_weight,
                    .grad_down_bias = second.grad_bias},
                   resources.stream);
  };
  run_two_steps(delayed, first.input, resources.stream, step);
}

void train(const Trained& of, const RunResources& resources) {
  switch (of.layer.kind) {
    case TrainedLayerKind::linear: return train_linear(of, resources);
    case TrainedLayerKind::rms_norm_linear: return train_norm_linear(NormKind::rms, of, resources);
    case TrainedLayerKind::layer_norm_linear: return train_norm_linear(NormKind::layer, of, resources);
    case TrainedLayerKind::gated_mlp: return train_mlp({.activation = "silu(x) * up"}, of, resources);
    case TrainedLayerKind::layer_norm_mlp:
      return train_mlp({.activation = "gelu(x)", .norm = NormOptions{.kind = NormKind::layer}}, of, resources);
    case TrainedLayerKind::rms_norm_gated_mlp:
      return train_mlp({.activation = "silu(x) * up", .norm = NormOptions{.kind = NormKind::rms}}, of, resources);
    case TrainedLayerKind::experts:
      if (!experts_take(of.recipe)) return;
      return train_experts({.size = size_of(of.layer),
                            .config = of.recipe,
                            .dtype = of.run.dtype,
                            .grad_weight = of.run.grad_weight,
                            .tokens = of.tokens},
                           resources);
  }
}

// ---- Decoding ------------------------------------------------------------------------------------------------------

void decode_in_each_format(const DecodingRun& run, const DecodedLayer& layer, const RunResources& resources) {
  const ExpertsSize size = size_of(layer);
  if (run.grouped_gemms) decode_experts(size, run.dtype, run.tokens, resources);
  std::vector<WeightOnlyOptions> formats = run.weights;
  const auto is_mxfp4 = [](const WeightOnlyOptions& format) { return format.dtype == Dtype::e2m1fn && format.mx; };
  if (layer.mxfp4 && std::ranges::none_of(formats, is_mxfp4)) formats.push_back({.dtype = Dtype::e2m1fn, .mx = true});
  for (const WeightOnlyOptions& format : formats) decode_experts(size, format, run.dtype, run.tokens, resources);
}

// Calls multiply(x, y, bias) for each number of tokens.
template <class Multiply>
void decode(const DecodingRun& run, const DecodedLayer& layer, const RunResources& resources,
            const Multiply& multiply) {
  const OwnedTensor bias = layer.bias ? resources.zeros(run.dtype, 1, layer.out_features) : OwnedTensor();
  for (const std::int64_t tokens : run.tokens) {
    const OwnedTensor x = resources.zeros(run.dtype, tokens, layer.in_features);
    const OwnedTensor y = resources.zeros(layer.f32_output ? Dtype::f32 : run.dtype, tokens, layer.out_features);
    multiply(x.view(), y.view(), bias.view());
  }
}

}  // namespace

void run_training(Backend& backend, const TrainingRun& run) {
  Stream stream(backend);
  const RunResources resources{.backend = backend, .stream = stream, .zeros = Zeros(backend, stream)};
  for (const LinearConfig& recipe : run.recipes) {
    for (const TrainedLayer& layer : run.layers) {
      for (const std::int64_t tokens : run.tokens) {
        train({.layer = layer, .recipe = recipe, .run = run, .tokens = tokens}, resources);
      }
    }
  }
}

void run_decoding(Backend& backend, const DecodingRun& run) {
  Stream stream(backend);
  const RunResources resources{.backend = backend, .stream = stream, .zeros = Zeros(backend, stream)};
  for (const DecodedLayer& layer : run.layers) {
    if (layer.experts > 0) {
      decode_in_each_format(run, layer, resources);
      continue;
    }
    const OwnedTensor weight = resources.zeros(run.dtype, layer.out_features, layer.in_features);
    for (const WeightOnlyOptions& options : run.weights) {
      const auto quantized = WeightOnlyLinear::quantize(backend, weight, options, stream);
      decode(run, layer, resources, [&](const Tensor& x, const Tensor& y, const Tensor& bias) {
        quantized.forward(x, y, stream, {.bias = bias});
      });
    }
    if (!run.high_precision) continue;
    decode(run, layer, resources, [&](const Tensor& x, const Tensor& y, const Tensor& bias) {
      backend.gemm({.a = run.dtype, .b = run.dtype, .out = y.dtype, .bias = layer.bias},
                   {.a = x, .b = weight, .bias = bias, .out = y}, stream);
    });
  }
}

std::vector<TrainedLayer> training_layers(const KnownModel& model) {
  std::vector<TrainedLayer> layers;
  for (const ModelLayer& layer : layers_of(model)) {
    layers.push_back(
        {.name = layer.name, .in_features = layer.in_features, .out_features = layer.out_features, .bias = layer.bias});
  }
  const ModelExperts& experts = model.experts;
  if (experts.count == 0) return layers;
  layers.push_back({.name = "experts",
                    .kind = TrainedLayerKind::experts,
                    .in_features = model.hidden,
                    .out_features = experts.intermediate,
                    .bias = experts.bias,
                    .experts = experts.count,
                    .chosen = experts.chosen});
  return layers;
}

std::vector<DecodedLayer> decoding_layers(const KnownModel& model) {
  std::vector<DecodedLayer> layers;
  for (const TrainedLayer& layer : training_layers(model)) {
    layers.push_back({.name = layer.name,
                      .in_features = layer.in_features,
                      .out_features = layer.out_features,
                      .f32_output = layer.name == "lm_head",
                      .bias = layer.bias,
                      .experts = layer.experts,
                      .chosen = layer.chosen,
                      .mxfp4 = layer.experts > 0 && model.experts.mxfp4});
  }
  return layers;
}

namespace {

// `run_on(backend)` runs the layers.
template <class RunOn>
void prepare_by(Context& context, const PrepareOptions& options, const RunOn& run_on) {
  if (context.device().type == DeviceType::cpu) return;
  // What layers ask for depends on the target alone, and which kernels follow from it is worked out for this GPU.
  if (const Gpu* const alike = gpu_of_target(context.cache().target())) {
    DryRun dry(*alike);
    run_on(dry.backend());
    context.prepare(dry.recording(), options.progress);
  }
  if (options.run_layers) run_on(context.backend());
}

}  // namespace

void prepare(Context& context, const TrainingRun& run, const PrepareOptions& options) {
  prepare_by(context, options, [&](Backend& backend) { run_training(backend, run); });
}

void prepare(Context& context, const DecodingRun& run, const PrepareOptions& options) {
  prepare_by(context, options, [&](Backend& backend) { run_decoding(backend, run); });
}

}  // namespace ingot
