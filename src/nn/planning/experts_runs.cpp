#include "ingot/nn/planning/experts_runs.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ingot/nn/linear/grouped_linear.h"
#include "ingot/nn/modules/delayed_scaling.h"
#include "ingot/nn/modules/experts_mlp.h"

namespace ingot {
namespace {

// All zero: each row is the first token's, and no expert's. Kernels are the same whichever rows experts have.
class ZeroRouting {
 public:
  ZeroRouting(std::int64_t rows, std::int64_t experts, const RunResources& resources)
      : rows_(rows),
        experts_(experts),
        device_(resources.backend.device()),
        indices_(resources.zeros.bytes(static_cast<std::size_t>(std::max(rows, experts)) * sizeof(std::int32_t))),
        weights_(resources.zeros(Dtype::f32, 1, rows)) {}

  RowIndex index() const { return {.data = data(), .rows = rows_, .device = device_}; }
  ExpertEnds ends() const { return {.data = data(), .experts = experts_, .device = device_}; }
  ExpertsRouting routing() const { return {.tokens = index(), .rows = index(), .weights = weights_, .ends = ends()}; }

 private:
  const std::int32_t* data() const { return static_cast<const std::int32_t*>(indices_.view().data); }

  std::int64_t rows_, experts_;
  Device device_;
  OwnedTensor indices_, weights_;
};

// The scales of a layer of all experts that start with its data; none of a config whose scales are dynamic. What runs
// with scales of earlier steps launches no other kernel.
class StartingScales {
 public:
  StartingScales(const GroupedLinearPlan& plan, const RunResources& resources)
      : scaling_(resources.backend), experts_(static_cast<int>(plan.experts)), stream_(&resources.stream) {
    if (!plan.is_delayed()) return;
    const std::size_t bytes = kStartingScaleBytes * static_cast<std::size_t>(experts_);
    for (const std::optional<Cast>* const cast : plan.rows.scaling.all()) {
      scaling_.add_experts(std::to_string(memory_.size()), (*cast)->dtype, experts_);
      memory_.push_back(resources.zeros.bytes(bytes));
    }
  }

  LinearScales all() { return {.input = scale(0), .weight = scale(1), .grad_output = scale(2)}; }

 private:
  LinearScale scale(std::size_t tensor) {
    if (memory_.empty()) return {};
    return scaling_.scale_of_experts(static_cast<int>(tensor) * experts_, experts_, region_of(memory_[tensor]),
                                     *stream_);
  }

  DelayedScaling scaling_;
  int experts_;
  Stream* stream_;
  std::vector<OwnedTensor> memory_{};
};

// The weights of a layer of all experts, and their codes.
class ExpertWeights {
 public:
  ExpertWeights(const GroupedLinearPlan& plan, Dtype dtype, const RunResources& resources)
      : plan_(&plan),
        resources_(&resources),
        values_(resources.zeros(dtype, plan.experts * plan.rows.shape.out_features, plan.rows.shape.in_features)),
        codes_(resources.zeros.bytes(plan.weight_memory().bytes)),
        amax_(resources.zeros(Dtype::f32, 1, std::max<std::int64_t>(plan.weight_amax_count(), 1))) {}

  const Tensor& values() const { return values_; }
  // Of forward's cast, for backward's; none if backward casts nothing that it would look for maxima of.
  Tensor amax() const { return plan_->weight_amax_count() > 0 ? amax_.view() : Tensor{}; }
  Float8View cast(bool finds_amax, const LinearScale& scale) const {
    return cast_expert_weights(
        *plan_, resources_->backend,
        {.weight = values_, .into = region_of(codes_), .amax = finds_amax ? amax() : Tensor{}, .scale = scale},
        {resources_->stream});
  }

 private:
  const GroupedLinearPlan* plan_;
  const RunResources* resources_;
  OwnedTensor values_, codes_, amax_;
};

// The gradients of weights: of the run's dtype, and added to f32.
template <class Compute>
void for_each_gradient(const TrainedExperts& of, const Compute& compute) {
  compute(of.grad_weight, false);
  compute(Dtype::f32, true);
}

// Each expert's bias, or its gradient; without elements if there is none.
OwnedTensor bias_of(const GroupedLinearPlan& plan, Dtype dtype, const RunResources& resources) {
  return resources.zeros(dtype, plan.bias ? plan.experts : 0, plan.rows.shape.out_features);
}
OwnedTensor bias_of(const GroupedLinearPlan& plan, const RunResources& resources) {
  return bias_of(plan, plan.bias_dtype(), resources);
}
Tensor view_of_bias(const GroupedLinearPlan& plan, const OwnedTensor& bias) {
  return plan.bias ? bias.view() : Tensor{};
}

OwnedTensor gradient_of(const GroupedLinearPlan& plan, Dtype dtype, const RunResources& resources) {
  return resources.zeros(dtype, plan.experts * plan.rows.shape.out_features, plan.rows.shape.in_features);
}

// ---- the fused MLPs ------------------------------------------------------------------------------------------------

class MlpRun {
 public:
  MlpRun(const TrainedExperts& of, ExpertsMlpPlan plan, const RunResources& resources)
      : of_(of),
        resources_(resources),
        plan_(std::move(plan)),
        rows_(of.tokens * of.size.chosen),
        routing_(rows_, of.size.experts, resources),
        up_(plan_.up, of.dtype, resources),
        down_(plan_.down, of.dtype, resources),
        up_starts_(plan_.up, resources),
        down_starts_(plan_.down, resources),
        input_(resources.zeros(of.dtype, of.tokens, of.size.features)),
        output_(resources.zeros(of.dtype, of.tokens, of.size.features)),
        up_bias_(bias_of(plan_.up, resources)),
        hidden_(resources.zeros(of.dtype, rows_, plan_.hidden_columns())),
        saved_memory_(resources.zeros.bytes(plan_.saved_memory(rows_).bytes)),
        saved_{.memory = region_of(saved_memory_)} {}

  void infer() { forward(nullptr, false); }
  // knows_amax: backward's casts of the weights take the maxima that forward's found.
  void train(bool knows_amax) {
    forward(&saved_, knows_amax);
    const ExpertsMlpGradients wants{.up_bias = plan_.up.bias};
    const ExpertsMlpKeptMemory keeps = plan_.kept_memory(rows_, wants);
    const OwnedTensor kept_input = resources_.zeros.bytes(keeps.input_bytes);
    const OwnedTensor kept_up = resources_.zeros.bytes(keeps.up_bytes);
    const OwnedTensor kept_down = resources_.zeros.bytes(keeps.down_bytes);
    const auto weight = [&](const ExpertWeights& of, const Float8View& codes,
                            const LinearScales& scales) -> ExpertsBackwardWeight {
      return {.weight = of.values(),
              .weight_amax = knows_amax ? of.amax() : Tensor{},
              .codes = codes,
              .scale = scales.weight};
    };
    const LinearScales of_up = up_starts_.all();
    const LinearScales of_down = down_starts_.all();
    backward({.saved = &saved_,
              .hidden = hidden_,
              .routing = routing_.routing(),
              .wants = wants,
              .grad_output = {},
              .down = weight(down_, down_codes_, of_down),
              .up_scales = of_up,
              .down_scales = of_down,
              .kept_input = region_of(kept_input),
              .kept_up = region_of(kept_up),
              .kept_down = region_of(kept_down)});
    input_gradient({.saved = &saved_,
                    .rows = routing_.index(),
                    .ends = routing_.ends(),
                    .wants = wants,
                    .kept_input = region_of(kept_input),
                    .kept_up = region_of(kept_up),
                    .up = weight(up_, up_codes_, of_up),
                    .grad_input = {}});
    for_each_gradient(of_, [&](Dtype dtype, bool accumulate) {
      const OwnedTensor grad_up = gradient_of(plan_.up, dtype, resources_);
      const OwnedTensor grad_down = gradient_of(plan_.down, dtype, resources_);
      experts_mlp_weight_gradients(plan_, resources_.backend,
                                   {.saved = &saved_,
                                    .ends = routing_.ends(),
                                    .wants = wants,
                                    .kept_up = region_of(kept_up),
                                    .kept_down = region_of(kept_down),
                                    .grad_up = grad_up,
                                    .grad_down = grad_down,
                                    .accumulate_up = accumulate,
                                    .accumulate_down = accumulate},
                                   {resources_.stream});
    });
  }

 private:
  void forward(LinearSaved* saved, bool finds_amax) {
    const LinearScales of_up = up_starts_.all();
    const LinearScales of_down = down_starts_.all();
    up_codes_ = up_.cast(finds_amax, of_up.weight);
    down_codes_ = down_.cast(finds_amax, of_down.weight);
    const LinearPass pass = saved != nullptr ? LinearPass::training : LinearPass::inference;
    const OwnedTensor scratch = resources_.zeros.bytes(plan_.forward_scratch(rows_, pass).bytes);
    experts_mlp_forward(plan_, resources_.backend,
                        {.input = input_,
                         .routing = routing_.routing(),
                         .up_bias = view_of_bias(plan_.up, up_bias_),
                         .output = output_,
                         .up_codes = up_codes_,
                         .down_codes = down_codes_,
                         .up_scales = of_up,
                         .down_scales = of_down,
                         .saved = saved,
                         .hidden = hidden_,
                         .scratch = region_of(scratch)},
                        {resources_.stream});
  }

  void backward(ExpertsMlpBackwardTensors tensors) {
    const OwnedTensor grad_output = resources_.zeros(of_.dtype, of_.tokens, of_.size.features);
    const OwnedTensor grad_router = resources_.zeros(Dtype::f32, 1, rows_);
    const OwnedTensor grad_up_bias = bias_of(plan_.up, resources_);
    const OwnedTensor scratch = resources_.zeros.bytes(plan_.backward_scratch(rows_, tensors.wants).bytes);
    tensors.grad_output = grad_output;
    tensors.grad_router = grad_router;
    tensors.grad_up_bias = view_of_bias(plan_.up, grad_up_bias);
    tensors.scratch = region_of(scratch);
    experts_mlp_backward(plan_, resources_.backend, tensors, {resources_.stream});
  }

  void input_gradient(ExpertsMlpInputGradientTensors tensors) {
    const OwnedTensor grad_input = resources_.zeros(of_.dtype, of_.tokens, of_.size.features);
    const OwnedTensor scratch = resources_.zeros.bytes(plan_.input_gradient_scratch(rows_).bytes);
    tensors.grad_input = grad_input;
    tensors.scratch = region_of(scratch);
    experts_mlp_input_gradient(plan_, resources_.backend, tensors, {resources_.stream});
  }

  const TrainedExperts& of_;
  const RunResources& resources_;
  ExpertsMlpPlan plan_;
  std::int64_t rows_;
  ZeroRouting routing_;
  ExpertWeights up_, down_;
  StartingScales up_starts_, down_starts_;
  OwnedTensor input_, output_, up_bias_, hidden_, saved_memory_;
  LinearSaved saved_;
  Float8View up_codes_{}, down_codes_{};
};

void train_mlp(const TrainedExperts& of, const LinearConfig& config, bool fast_math, const RunResources& resources) {
  const ExpertsSize& size = of.size;
  MlpRun run(of,
             experts_mlp_plan({.name = size.name,
                               .config = config,
                               .experts = size.experts,
                               .shape = {.features = size.features, .hidden = size.hidden},
                               .up_bias = size.bias,
                               .dtypes = {.input = of.dtype},
                               .activation = size.bias ? clamped_swiglu(1.702, 7) : ExpertsMlpPlanOptions{}.activation,
                               .fast_math = fast_math}),
             resources);
  run.infer();
  run.train(true);
  run.train(false);
}

// ---- two grouped layers --------------------------------------------------------------------------------------------

// A weight [out_features, in_features] of each expert.
std::array<LinearShape, 2> gate_up_and_down(const ExpertsSize& size, bool bias) {
  return {LinearShape{.in_features = size.features, .out_features = 2 * size.hidden, .bias = bias},
          LinearShape{.in_features = size.hidden, .out_features = size.features, .bias = bias}};
}

void train_layer(const TrainedExperts& of, const GroupedLinearPlan& plan, const RunResources& resources) {
  const auto [in, out, bias] = plan.rows.shape;
  const std::int64_t rows = of.tokens * of.size.chosen;
  const ZeroRouting routing(rows, plan.experts, resources);
  const ExpertWeights weights(plan, of.dtype, resources);
  StartingScales starts(plan, resources);
  const OwnedTensor input = resources.zeros(of.dtype, rows, in);
  const OwnedTensor output = resources.zeros(of.dtype, rows, out);
  const OwnedTensor grad_input = resources.zeros(of.dtype, rows, in);
  const OwnedTensor experts_bias = bias_of(plan, resources);
  const OwnedTensor grad_bias = bias_of(plan, resources);
  const OwnedTensor grad_bias32 = bias_of(plan, Dtype::f32, resources);
  const OwnedTensor saved_memory = resources.zeros.bytes(plan.saved_memory(rows).bytes);
  LinearSaved saved{.memory = region_of(saved_memory)};
  for (const bool knows_amax : {false, true}) {
    const LinearScales scales = starts.all();
    const Float8View codes = weights.cast(knows_amax, scales.weight);
    for (LinearSaved* const keeps : {static_cast<LinearSaved*>(nullptr), &saved}) {
      const LinearPass pass = keeps != nullptr ? LinearPass::training : LinearPass::inference;
      const OwnedTensor scratch = resources.zeros.bytes(plan.forward_scratch(rows, pass));
      grouped_linear_forward(plan, resources.backend,
                             {.input = input,
                              .ends = routing.ends(),
                              .bias = view_of_bias(plan, experts_bias),
                              .output = output,
                              .codes = codes,
                              .scales = scales,
                              .saved = keeps,
                              .scratch = region_of(scratch)},
                             {resources.stream});
    }
    for_each_gradient(of, [&](Dtype dtype, bool accumulate) {
      const OwnedTensor grad_weight = gradient_of(plan, dtype, resources);
      GroupedLinearBackwardTensors backward{.saved = &saved, .ends = routing.ends(), .grad_output = output};
      backward.grad_input = grad_input;
      backward.grad_weight = grad_weight;
      backward.grad_bias = view_of_bias(plan, accumulate ? grad_bias32 : grad_bias);
      backward.accumulate = accumulate;
      backward.scales = scales;
      backward.weight = weights.values();
      if (knows_amax) backward.weight_amax = weights.amax();
      backward.codes = codes;
      const OwnedTensor scratch = resources.zeros.bytes(grouped_linear_backward_scratch(plan, backward));
      backward.scratch = region_of(scratch);
      grouped_linear_backward(plan, resources.backend, backward, {resources.stream});
    });
  }
}

void train_layers(const TrainedExperts& of, const LinearConfig& config, const RunResources& resources) {
  for (const LinearShape& shape : gate_up_and_down(of.size, true)) {
    train_layer(of,
                grouped_linear_plan({.name = of.size.name,
                                     .config = config,
                                     .experts = of.size.experts,
                                     .shape = shape,
                                     .dtypes = {.input = of.dtype}}),
                resources);
  }
}

}  // namespace

void train_experts(const TrainedExperts& of, const RunResources& resources) {
  for (const OtherCodes weight : {OtherCodes::together, OtherCodes::again}) {
    for (const bool fast : {false, true}) {
      LinearConfig config = of.config;
      config.weight = weight;
      // Those of groups are summed separately.
      const bool whole = config.output.a->granularity != kRowGroups;
      if (fast && whole) config.grad_input.fast_accumulation = config.grad_weight.fast_accumulation = true;
      train_mlp(of, config, fast, resources);
      if (of.size.bias) train_layers(of, config, resources);  // another activation's, or an exported program's
    }
  }
}

// ---- decoding ------------------------------------------------------------------------------------------------------

void decode_experts(const ExpertsSize& size, Dtype dtype, std::span<const std::int64_t> tokens,
                    const RunResources& resources) {
  const auto [backend, stream, zeros] = resources;
  const CastSpec cast{.in = dtype, .out = Dtype::e4m3fn, .scale = kRowwise};
  for (const LinearShape& shape : gate_up_and_down(size, false)) {
    const std::int64_t k = shape.in_features;
    const std::int64_t n = size.experts * shape.out_features;
    const OwnedTensor weight = zeros(dtype, n, k);
    const OwnedTensor weight_codes = zeros(cast.out, n, k);
    const OwnedTensor weight_scale_inv = zeros(Dtype::f32, 1, n);
    backend.cast(cast, {.input = weight, .codes = weight_codes, .scale_inv = weight_scale_inv}, stream);
    for (const std::int64_t count : tokens) {
      const std::int64_t rows = count * size.chosen;
      const ZeroRouting routing(rows, size.experts, resources);
      const OwnedTensor input = zeros(dtype, rows, k);
      const OwnedTensor codes = zeros(cast.out, rows, k);
      const OwnedTensor scale_inv = zeros(Dtype::f32, 1, rows);
      const OwnedTensor output = zeros(dtype, rows, shape.out_features);
      backend.cast(cast, {.input = input, .codes = codes, .scale_inv = scale_inv}, stream);
      backend.grouped_gemm({.gemm = {.a = cast.out,
                                     .b = cast.out,
                                     .out = dtype,
                                     .scale_a = kRowwise,
                                     .scale_b = kRowwise,
                                     .fast_accumulation = true}},
                           {.a = codes,
                            .b = weight_codes,
                            .ends = routing.ends(),
                            .scale_inv_a = scale_inv,
                            .scale_inv_b = weight_scale_inv,
                            .out = output},
                           stream);
    }
  }
}

// Each expert's weight is cast and packed as one layer's is: which kernels do so does not depend on their number.
void decode_experts(const ExpertsSize& size, const WeightOnlyOptions& format, Dtype dtype,
                    std::span<const std::int64_t> tokens, const RunResources& resources) {
  const auto& [backend, stream, zeros] = resources;
  WeightOnlyOptions wanted = format;
  if (dtype == Dtype::f16) wanted.layout = layout_of_bits(format.dtype, WeightLayout::packed_f16);
  for (const LinearShape& shape : gate_up_and_down(size, size.bias)) {
    const auto [k, n, bias] = shape;
    const WeightOnlyLinear one = WeightOnlyLinear::quantize(backend, zeros(dtype, n, k), wanted, stream);
    const WeightOnlyOptions& made = one.options();
    const DequantMatmulSpec spec{.x = dtype,
                                 .weight = made.dtype,
                                 .out = dtype,
                                 .scale = made.scale,
                                 .scale_inv = made.mx ? Dtype::e8m0fnu : Dtype::f32,
                                 .layout = made.layout,
                                 .bias = bias,
                                 .experts = true};
    const OwnedTensor weight = zeros(Dtype::u8, 1, size.experts * packed_weight_bytes(made.dtype, n, k));
    const OwnedTensor scale_inv = zeros(spec.scale_inv, 1, size.experts * scale_count(made.scale, n, k));
    const OwnedTensor biases = zeros(dtype, 1, bias ? size.experts * n : 0);
    for (const std::int64_t count : tokens) {
      const std::int64_t rows = count * size.chosen;
      const ZeroRouting routing(rows, size.experts, resources);
      const OwnedTensor x = zeros(dtype, rows, k);
      const OwnedTensor out = zeros(dtype, rows, n);
      backend.dequant_matmul(spec,
                             {.x = x,
                              .weight = weight,
                              .scale_inv = scale_inv,
                              .bias = bias ? biases.view() : Tensor{},
                              .out = out,
                              .ends = routing.ends()},
                             stream);
    }
  }
}

}  // namespace ingot
