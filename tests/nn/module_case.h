// Modules of several parts (a norm and its layer, MLPs) with tensors of the test's own, run by their functions in
// poisoned memory.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ingot/nn/modules/delayed_scaling.h"
#include "ingot/nn/modules/gated_mlp.h"
#include "ingot/nn/modules/mlp.h"
#include "ingot/nn/modules/norm_linear.h"
#include "nn/function_case.h"

namespace ingot::test {

inline constexpr CaseShape kShape{9, 33, 24};
inline constexpr LinearShape kLinear{kShape.in_features, kShape.out_features, true};
inline constexpr MlpShape kMlp{.features = 33, .hidden = 24, .bias = true};

using Bytes = std::vector<std::uint8_t>;

// What each linear layer within a module has for itself in a run by functions.
struct Part {
  // slot: the part's first in `delayed`, in the order in which its owner added them; becomes the next part's.
  Part(const LinearPlan& plan, int& slot, const DelayedScaling& delayed, Backend& backend, Stream& stream)
      : weight(plan.weight_memory().bytes, backend, stream),
        constants(kLinearConstantBytes, backend, stream),
        codes(weight_codes(plan, weight, backend.device())),
        scales(linear_constants(plan, backend, constants, stream)) {
    const auto take = [&](LinearScale& scale, const std::optional<Cast>& first, const std::optional<Cast>& second) {
      const std::optional<Cast>& cast = first ? first : second;
      if (!cast || cast->scaling != Scaling::delayed) return;
      scale = {.scale = delayed.scale(slot), .amax = delayed.amax(slot)};
      ++slot;
    };
    const LinearConfig& config = plan.config;
    take(scales.input, config.output.a, config.grad_weight.b);
    take(scales.weight, config.output.b, config.grad_input.b);
    take(scales.grad_output, config.grad_input.a, config.grad_weight.a);
  }
  PoisonedRegion weight, constants;
  Float8View codes;
  LinearScales scales;
};

// Memory of exactly the bytes that a plan tells, and a stamp.
template <class Plan>
struct Saved {
  Saved(const Plan& plan, std::int64_t tokens, Backend& backend, Stream& stream)
      : memory(plan.saved_memory(tokens).bytes, backend, stream), saved{.memory = memory} {}
  PoisonedRegion memory;
  LinearSaved saved;
};

// ---- a norm and its layer --------------------------------------------------------------------------------

struct NormCase {
  NormCase(const LinearConfig& config, const NormOptions& norm, Dtype dtype, unsigned seed, Backend& on, Stream& stream)
      : has_gamma(norm.affine),
        has_beta(norm.affine && norm.kind == NormKind::layer),
        linear(make_inputs(kShape, dtype, bias_dtype_of(config, dtype), seed), dtype, bias_dtype_of(config, dtype), on,
               stream),
        gamma(Random(seed + 50).normal(1, kShape.in_features, dtype), dtype, on, stream),
        beta(Random(seed + 60).normal(1, kShape.in_features, dtype), dtype, on, stream),
        grad_gamma(DeviceMatrix::poisoned(1, kShape.in_features, Dtype::f32, on, stream)),
        grad_beta(DeviceMatrix::poisoned(1, kShape.in_features, Dtype::f32, on, stream)) {}

  NormLinearForward forward() const {
    NormLinearForward made{
        .input = linear.input, .weight = linear.weight, .bias = linear.bias, .output = linear.output};
    if (has_gamma) made.gamma = gamma;
    if (has_beta) made.beta = beta;
    return made;
  }
  NormLinearBackward backward() const {
    NormLinearBackward made{.grad_output = linear.grad_output,
                            .grad_input = linear.grad_input,
                            .grad_weight = linear.grad_weight,
                            .grad_bias = linear.grad_bias};
    if (has_gamma) made.grad_gamma = grad_gamma;
    if (has_beta) made.grad_beta = grad_beta;
    return made;
  }
  std::vector<Tensor> result_tensors() const {
    return {linear.output, linear.grad_input, linear.grad_weight, linear.grad_bias, grad_gamma, grad_beta};
  }
  Bytes result_bytes(Stream& stream) const {
    Bytes all = linear.result_bytes(stream);
    for (const DeviceMatrix* more : {&grad_gamma, &grad_beta}) {
      const Bytes bytes = more->bytes(stream);
      all.insert(all.end(), bytes.begin(), bytes.end());
    }
    return all;
  }

  bool has_gamma, has_beta;
  LinearCase linear;
  DeviceMatrix gamma, beta, grad_gamma, grad_beta;
};

struct NormFunctions {
  NormFunctions(const NormLinearPlanOptions& options, const DelayedScaling& delayed, Backend& on, Stream& stream)
      : plan(norm_linear_plan(options)), part(plan.linear, slot, delayed, on, stream), backend(&on) {}

  NormLinearForwardTensors tensors(const NormLinearForward& of, LinearSaved* saved, const MemoryRegion& scratch) const {
    return {.input = of.input,
            .gamma = of.gamma,
            .beta = of.beta,
            .weight = of.weight,
            .bias = of.bias,
            .output = of.output,
            .epilogue_inputs = of.epilogue_inputs,
            .codes = part.codes,
            .weight_into = casts && plan.linear.weight.any ? std::optional<MemoryRegion>(part.weight) : std::nullopt,
            .scales = part.scales,
            .saved = saved,
            .scratch = scratch};
  }
  NormLinearBackwardTensors tensors(const NormLinearBackward& t, const NormLinearForward& of, const LinearSaved& saved,
                                    const MemoryRegion& scratch) const {
    return {.saved = &saved,
            .grad_output = t.grad_output,
            .grad_input = t.grad_input,
            .grad_gamma = t.grad_gamma,
            .grad_beta = t.grad_beta,
            .grad_weight = t.grad_weight,
            .grad_bias = t.grad_bias,
            .accumulate = t.accumulate,
            .input = of.input,
            .gamma = of.gamma,
            .beta = of.beta,
            .weight = of.weight,
            .output = of.output,
            .epilogue_inputs = of.epilogue_inputs,
            .codes = part.codes,
            .scales = part.scales,
            .scratch = scratch};
  }
  void forward(const NormLinearForward& of, LinearSaved* saved, Stream& stream) const {
    const LinearPass pass = saved != nullptr ? LinearPass::training : LinearPass::inference;
    const PoisonedRegion scratch(plan.forward_scratch(of.input.rows, pass).bytes, *backend, stream);
    norm_linear_forward(plan, *backend, tensors(of, saved, scratch), {.stream = stream});
  }
  void recompute(const NormLinearForward& of, LinearSaved& saved, Stream& stream) const {
    const PoisonedRegion scratch(plan.forward_scratch(of.input.rows, LinearPass::recompute).bytes, *backend, stream);
    norm_linear_recompute(plan, *backend, tensors(of, &saved, scratch), {.stream = stream});
  }
  void backward(const NormLinearBackward& t, const NormLinearForward& of, const LinearSaved& saved,
                Stream& stream) const {
    const LinearGradients wants{.input = t.grad_input.data != nullptr,
                                .weight = t.grad_weight.data != nullptr,
                                .bias = t.grad_bias.data != nullptr};
    const PoisonedRegion scratch(plan.backward_scratch(saved.tokens, wants).bytes, *backend, stream);
    norm_linear_backward(plan, *backend, tensors(t, of, saved, scratch), {.stream = stream});
  }

  bool casts = true;  // the weight, in every forward
  NormLinearPlan plan;
  int slot = 0;
  Part part;
  Backend* backend;
};

inline constexpr NormOptions kNorms[] = {{.kind = NormKind::layer},
                                         {.kind = NormKind::layer, .affine = false, .eps = 1e-4F},
                                         {.kind = NormKind::rms},
                                         {.kind = NormKind::rms, .affine = false},
                                         {.kind = NormKind::layer, .zero_centred = true},
                                         {.kind = NormKind::rms, .zero_centred = true}};

inline std::string print(const NormOptions& norm) {
  return std::string(norm.kind == NormKind::layer ? "layer" : "rms") + (norm.affine ? " affine" : "") +
         (norm.zero_centred ? " zero-centred" : "");
}

inline NormLinearShape shape_of(const NormOptions& norm) {
  return {.linear = kLinear, .affine = norm.affine, .eps = norm.eps, .zero_centred = norm.zero_centred};
}

// ---- MLPs ----------------------------------------------------------------------------------------------------------

struct MlpKind {
  const char* activation;
  std::optional<NormOptions> norm;
};
inline const MlpKind kMlps[] = {{"gelu(x)", std::nullopt},
                                {"silu(x) * up", std::nullopt},
                                {"gelu(x)", NormOptions{.kind = NormKind::layer}},
                                {"silu(x) * up", NormOptions{.kind = NormKind::rms, .zero_centred = true}}};

struct MlpCase {
  MlpCase(const LinearConfig& config, const MlpKind& kind, Dtype dtype, unsigned seed, Backend& on, Stream& stream)
      : norm(kind.norm) {
    const bool gated = std::string(kind.activation).find("up") != std::string::npos;
    const std::int64_t columns = gated ? 2 * kMlp.hidden : kMlp.hidden;
    const Dtype bias = bias_dtype_of(config, dtype);
    Random random(seed);
    const auto make = [&](const Matrix& m, Dtype of) { return DeviceMatrix(m, of, on, stream); };
    const auto empty = [&](std::int64_t rows, std::int64_t cols, Dtype of) {
      results.push_back(DeviceMatrix::poisoned(rows, cols, of, on, stream));
    };
    inputs.push_back(make(random.normal(kShape.tokens, kMlp.features, dtype), dtype));
    inputs.push_back(make(random.weight(columns, kMlp.features, dtype), dtype));
    inputs.push_back(make(random.normal(1, columns, bias), bias));
    inputs.push_back(make(random.weight(kMlp.features, kMlp.hidden, dtype), dtype));
    inputs.push_back(make(random.normal(1, kMlp.features, bias), bias));
    inputs.push_back(make(random.normal(1, kMlp.features, dtype), dtype));
    inputs.push_back(make(random.normal(1, kMlp.features, dtype), dtype));
    inputs.push_back(make(random.normal(kShape.tokens, kMlp.features, dtype), dtype));
    empty(kShape.tokens, kMlp.features, dtype);
    empty(kShape.tokens, kMlp.features, dtype);
    empty(columns, kMlp.features, Dtype::f32);
    empty(1, columns, dtype);
    empty(kMlp.features, kMlp.hidden, Dtype::f32);
    empty(1, kMlp.features, dtype);
    empty(1, kMlp.features, Dtype::f32);
    empty(1, kMlp.features, Dtype::f32);
  }

  MlpForward forward() const {
    MlpForward made{.input = inputs[0],
                    .up_weight = inputs[1],
                    .up_bias = inputs[2],
                    .down_weight = inputs[3],
                    .down_bias = inputs[4],
                    .output = results[0]};
    if (norm) made.gamma = inputs[5];
    if (norm && norm->kind == NormKind::layer) made.beta = inputs[6];
    return made;
  }
  MlpBackward backward() const {
    MlpBackward made{.grad_output = inputs[7],
                     .grad_input = results[1],
                     .grad_up_weight = results[2],
                     .grad_up_bias = results[3],
                     .grad_down_weight = results[4],
                     .grad_down_bias = results[5]};
    if (norm) made.grad_gamma = results[6];
    if (norm && norm->kind == NormKind::layer) made.grad_beta = results[7];
    return made;
  }
  std::vector<Tensor> result_tensors() const { return {results.begin(), results.end()}; }
  Bytes result_bytes(Stream& stream) const {
    Bytes all;
    for (const DeviceMatrix& result : results) {
      const Bytes bytes = result.bytes(stream);
      all.insert(all.end(), bytes.begin(), bytes.end());
    }
    return all;
  }

  std::optional<NormOptions> norm;
  std::vector<DeviceMatrix> inputs, results;
};

// By a gated MLP's names.
inline GatedMlpForward gated(const MlpForward& t) {
  return {.input = t.input,
          .gamma = t.gamma,
          .gate_up_weight = t.up_weight,
          .gate_up_bias = t.up_bias,
          .down_weight = t.down_weight,
          .down_bias = t.down_bias,
          .output = t.output,
          .keep_for_backward = t.keep_for_backward};
}
inline GatedMlpBackward gated(const MlpBackward& t) {
  return {.grad_output = t.grad_output,
          .grad_input = t.grad_input,
          .grad_gamma = t.grad_gamma,
          .grad_gate_up_weight = t.grad_up_weight,
          .grad_gate_up_bias = t.grad_up_bias,
          .grad_down_weight = t.grad_down_weight,
          .grad_down_bias = t.grad_down_bias};
}

struct MlpFunctions {
  MlpFunctions(const MlpPlanOptions& options, const DelayedScaling& delayed, Backend& on, Stream& stream)
      : plan(mlp_plan(options)),
        up(plan.up.linear, slot, delayed, on, stream),
        down(plan.down, slot, delayed, on, stream),
        backend(&on) {}

  MlpForwardTensors tensors(const MlpForward& of, LinearSaved* saved, const MemoryRegion& scratch) const {
    const auto layer = [&](const LinearPlan& layers, const Part& part, const Tensor& weight, const Tensor& bias) {
      const bool into = casts && layers.weight.any;
      return MlpLayerForward{.weight = weight,
                             .bias = bias,
                             .codes = part.codes,
                             .weight_into = into ? std::optional<MemoryRegion>(part.weight) : std::nullopt,
                             .scales = part.scales};
    };
    return {.input = of.input,
            .gamma = of.gamma,
            .beta = of.beta,
            .output = of.output,
            .up = layer(plan.up.linear, up, of.up_weight, of.up_bias),
            .down = layer(plan.down, down, of.down_weight, of.down_bias),
            .saved = saved,
            .scratch = scratch};
  }
  MlpBackwardTensors tensors(const MlpBackward& t, const MlpForward& of, const LinearSaved& saved,
                             const MemoryRegion& scratch) const {
    return {.saved = &saved,
            .grad_output = t.grad_output,
            .grad_input = t.grad_input,
            .grad_gamma = t.grad_gamma,
            .grad_beta = t.grad_beta,
            .accumulate = t.accumulate,
            .input = of.input,
            .gamma = of.gamma,
            .beta = of.beta,
            .up = {.grad_weight = t.grad_up_weight,
                   .grad_bias = t.grad_up_bias,
                   .weight = of.up_weight,
                   .codes = up.codes,
                   .scales = up.scales},
            .down = {.grad_weight = t.grad_down_weight,
                     .grad_bias = t.grad_down_bias,
                     .weight = of.down_weight,
                     .codes = down.codes,
                     .scales = down.scales},
            .scratch = scratch};
  }
  void forward(const MlpForward& of, LinearSaved* saved, Stream& stream) const {
    const LinearPass pass = saved != nullptr ? LinearPass::training : LinearPass::inference;
    const PoisonedRegion scratch(plan.forward_scratch(of.input.rows, pass).bytes, *backend, stream);
    mlp_forward(plan, *backend, tensors(of, saved, scratch), {.stream = stream});
  }
  void recompute(const MlpForward& of, LinearSaved& saved, Stream& stream) const {
    const PoisonedRegion scratch(plan.forward_scratch(of.input.rows, LinearPass::recompute).bytes, *backend, stream);
    mlp_recompute(plan, *backend, tensors(of, &saved, scratch), {.stream = stream});
  }
  void backward(const MlpBackward& t, const MlpForward& of, const LinearSaved& saved, Stream& stream) const {
    const MlpGradients wants = wanted_gradients(tensors(t, of, saved, {}));
    const PoisonedRegion scratch(plan.backward_scratch(saved.tokens, wants).bytes, *backend, stream);
    mlp_backward(plan, *backend, tensors(t, of, saved, scratch), {.stream = stream});
  }

  bool casts = true;  // the weights, in every forward
  MlpPlan plan;
  int slot = 0;
  Part up, down;
  Backend* backend;
};

inline MlpPlanOptions plan_options(const LinearConfig& config, const MlpKind& kind, Dtype dtype = Dtype::bf16) {
  return {.config = config, .shape = kMlp, .dtypes = {dtype}, .activation = kind.activation, .norm = kind.norm};
}

}  // namespace ingot::test
