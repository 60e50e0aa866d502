#include "ingot/nn/planning/conversion.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "ingot/codegen/gemm/gemm_estimate.h"
#include "ingot/codegen/types/matmul_size.h"
#include "ingot/runtime/tuning/tuning_record.h"
#include "ingot/runtime/util/count_of.h"
#include "ingot/runtime/util/error.h"

namespace ingot {
namespace {

constexpr std::string_view kMeasuredDevice = "NVIDIA H200";
constexpr int kMeasuredMultiprocessors = 132;
constexpr double kStartUs = 2.3;        // start-up time of each kernel
constexpr double kBytesPerUs = 3.05e6;  // of a layer's casts on an H200, fitted to bench/results/linear_h200.json
// What GEMMs with scale_inv of groups take of estimate_gemm()'s time, fitted likewise, where no side is shorter: their
// costs there are set for the choice of the tiling only.
constexpr double kOfLargeGroups = 0.9;
constexpr std::int64_t kLargeSide = 3584;
// gemm_mma on an H200, OCP formats: 216 to 221 TFLOPS (bench/results/gemm_mma_h200.json).
constexpr double kMmaOperationsPerUs = 216e6;

// The layers of bench/results/linear_h200.json.
struct Extent {
  const char* what;
  std::int64_t least, most;
};
constexpr Extent kTokens{"tokens", 256, 16384};
constexpr Extent kInputs{"inputs", 256, 16384};
constexpr Extent kOutputs{"outputs", 256, 28672};

[[noreturn]] void refuse_gain(const char* subject, const std::string& message) {
  throw Error(ErrorCode::invalid_argument, subject, message);
}

struct RateField {
  const char* name;
  double GainRates::*value;
};
constexpr std::array kRates{RateField{"float8_tflops", &GainRates::float8_tflops},
                            RateField{"float8_rows_tflops", &GainRates::float8_rows_tflops},
                            RateField{"float8_groups_tflops", &GainRates::float8_groups_tflops},
                            RateField{"high_precision_tflops", &GainRates::high_precision_tflops},
                            RateField{"memory_gb_per_s", &GainRates::memory_gb_per_s}};

void check(const LinearSize& size, const GainGpu& gpu) {
  const auto& [tokens, in, out] = size;
  constexpr std::int64_t kLargest = std::int64_t{1} << 48;  // as of a tensor
  if (std::min({tokens, in, out}) < 0 || std::max({tokens, in, out}) > kLargest) {
    refuse_gain("expected_gain",
                fmt::format("the layer has {}, {} and {}; each must be from 0 to {} (2^48)", count_of(tokens, "token"),
                            count_of(in, "input"), count_of(out, "output"), kLargest));
  }
  if (gpu.multiprocessors < 1) {
    refuse_gain("expected_gain",
                fmt::format("the GPU has {} multiprocessors, but must have 1 or more: name a known one "
                            "(gain_gpu(gpu_named(\"h200\"))) or the one at hand "
                            "(gain_gpu(context.tuning_machine()))",
                            gpu.multiprocessors));
  }
  if (!gpu.rates) return;
  for (const RateField& rate : kRates) {
    const double value = *gpu.rates.*rate.value;
    if (std::isfinite(value) && value >= 0) continue;
    refuse_gain(
        "expected_gain",
        fmt::format("the rate {} is {}, but must be a positive number, or 0 if it was not measured", rate.name, value));
  }
}

// Does a library or kernel that uses the GPU's FP8 tensor cores take this GEMM (cuBLASLt's rules; gemm_sm90)? Otherwise
// gemm_mma decodes the operands and multiplies in 16 bits.
bool has_float8_kernel(const GemmSpec& spec, Target target) {
  if (!is_ocp(spec.a) || !is_ocp(spec.b)) return false;
  if (target == target_for(9, 0)) return true;
  const bool has_tensor_cores = target.major >= 9 || target == target_for(8, 9);
  return has_tensor_cores && spec.scale_a == kTensorwise && spec.scale_b == kTensorwise;
}

// What a cast moves, and how many kernels it takes.
struct CastWork {
  double kernels = 0;
  double bytes = 0;
};

CastWork cast_work(const TensorCasts& casts, std::int64_t rows, std::int64_t cols) {
  if (!casts.codes && !casts.transposed) return {};
  const CastSpec spec = cast_spec(casts, Dtype::bf16);
  const bool maxima_first = spec.source == ScaleSource::dynamic &&
                            (spec.scale == kTensorwise || spec.scale == kColumnwise ||
                             spec.transposed_scale == kTensorwise || spec.transposed_scale == kColumnwise);
  const double each = (maxima_first ? 4 : 2) + (spec.codes ? 1 : 0) + (spec.transposed ? 1 : 0);
  return {.kernels = maxima_first ? 2.0 : 1.0, .bytes = each * static_cast<double>(rows) * static_cast<double>(cols)};
}

// All casts of one step, and those of the weight.
struct StepCasts {
  CastWork all;
  CastWork weight;
};

StepCasts casts_of(const LinearConfig& config, const LinearSize& size) {
  const auto& [tokens, in, out] = size;
  CastWork all;
  const auto add = [&](const TensorCasts& casts, std::int64_t rows, std::int64_t cols) {
    const CastWork one = cast_work(casts, rows, cols);
    all.kernels += one.kernels;
    all.bytes += one.bytes;
  };
  for (const TensorCasts& casts : {weight_casts(config), weight_casts_again(config)}) add(casts, out, in);
  const CastWork weight = all;
  for (const TensorCasts& casts : {input_casts(config), input_casts_again(config)}) add(casts, tokens, in);
  const TensorCasts grad_output = grad_output_casts(config);
  if (config.input == OtherCodes::folded || config.weight == OtherCodes::folded) {
    add({.codes = grad_output.codes}, tokens, out);
    add({.transposed = grad_output.transposed}, tokens, out);
  } else {
    add(grad_output, tokens, out);
  }
  return {.all = all, .weight = weight};
}

// Adds the casts to the time of the GEMMs.
void add_casts(LinearGain& gain, const StepCasts& casts, double bytes_per_us) {
  const auto us = [&](const CastWork& work) { return work.kernels * kStartUs + work.bytes / bytes_per_us; };
  gain.casts_us = us(casts.all);
  gain.weight_casts_us = us(casts.weight);
  gain.us += gain.casts_us;
}

// ---- From an H200 ---------------------------------------------------------------------------------------------------

double product_us(const GemmCall& call, int multiprocessors) {
  const MatmulSize& size = call.size;
  if (size.m == 0 || size.n == 0) return 0;
  // 16-bit operands have twice the bytes and half the rate of FP8: the time of an FP8 GEMM with twice the K.
  if (!is_fp8(call.spec.a)) {
    return estimate_cublaslt({.fast_accumulation = true}, {size.m, size.n, 2 * size.k}, multiprocessors);
  }
  const double share = static_cast<double>(multiprocessors) / kMeasuredMultiprocessors;
  if (!has_float8_kernel(call.spec, target_for(9, 0)))
    return kStartUs + 2 * products_of(size) / (kMmaOperationsPerUs * share);
  double ours = estimate_gemm(call.spec, size, choose_sm90_tiling(call.spec, size, multiprocessors), multiprocessors);
  if (has_group_scale_inv(call.spec) && std::min({size.m, size.n, size.k}) >= kLargeSide) ours *= kOfLargeGroups;
  // Factors of groups are laid out as cuBLASLt reads them (the transposed weight's are converted; that cost is left
  // out).
  return std::min(ours, estimate_cublaslt(call.spec, size, multiprocessors, has_group_scale_inv(call.spec)));
}

double products_us(const LinearConfig& config, const LinearSize& size, int multiprocessors) {
  double us = 0;
  for (const LinearGemm& gemm : linear_gemms(config, size, Dtype::bf16)) us += product_us(gemm.call, multiprocessors);
  return us;
}

// Why the layer is not among those that were measured; empty if it is.
std::string outside(const LinearConfig& config, const LinearSize& size, const GainGpu& gpu) {
  if (gpu.device != kMeasuredDevice || gpu.multiprocessors != kMeasuredMultiprocessors) {
    return fmt::format("measured on an H200 only, not on {} with {} multiprocessors",
                       gpu.device.empty() ? "this GPU" : gpu.device, gpu.multiprocessors);
  }
  for (const auto& [extent, value] :
       {std::pair{kTokens, size.tokens}, {kInputs, size.in_features}, {kOutputs, size.out_features}}) {
    if (value >= extent.least && value <= extent.most) continue;
    return fmt::format("{} of {} are outside the measured {} to {}", extent.what, value, extent.least, extent.most);
  }
  for (const LinearGemm& gemm : linear_gemms(config, size, Dtype::bf16)) {
    if (!is_fp8(gemm.call.spec.a) || has_float8_kernel(gemm.call.spec, gpu.target)) continue;
    return "formats were measured as OCP's (e4m3fn, e5m2) only";
  }
  return {};
}

LinearGain from_h200(const LinearConfig& config, const LinearSize& size, const GainGpu& gpu) {
  const double rate = kBytesPerUs * std::min(1.0, static_cast<double>(gpu.multiprocessors) / kMeasuredMultiprocessors);
  LinearGain gain{.high_precision_us = products_us({}, size, gpu.multiprocessors),
                  .us = products_us(config, size, gpu.multiprocessors),
                  .note = outside(config, size, gpu)};
  add_casts(gain, casts_of(config, size), rate);
  gain.basis = gain.note.empty() ? GainBasis::measured : GainBasis::extrapolated;
  return gain;
}

// ---- From the caller's rates ----------------------------------------------------------------------------------------

double GainRates::*rate_for(const GemmSpec& spec) {
  if (!is_fp8(spec.a)) return &GainRates::high_precision_tflops;
  if (has_group_scale_inv(spec)) return &GainRates::float8_groups_tflops;
  const bool rows = spec.scale_a != kTensorwise || spec.scale_b != kTensorwise;
  return rows ? &GainRates::float8_rows_tflops : &GainRates::float8_tflops;
}

const char* name_of(double GainRates::*rate) { return std::ranges::find(kRates, rate, &RateField::value)->name; }

LinearGain from_rates(const LinearConfig& config, const LinearSize& size, const GainRates& rates) {
  LinearGain gain{.basis = GainBasis::given};
  const double bytes_per_us = rates.memory_gb_per_s * 1e3;
  const auto products = [&](const LinearConfig& of, double& us) {
    for (const auto& [role, call] : linear_gemms(of, size, Dtype::bf16)) {
      const double element = is_fp8(call.spec.a) ? 1 : 2;
      const auto m = static_cast<double>(call.size.m);
      const auto n = static_cast<double>(call.size.n);
      const double bytes = element * (m + n) * static_cast<double>(call.size.k) + 2 * m * n;
      double GainRates::*const rate = rate_for(call.spec);
      if (rates.*rate <= 0 && gain.note.empty()) gain.note = fmt::format("the rate {} is not given", name_of(rate));
      us += kStartUs + std::max(2 * products_of(call.size) / (rates.*rate * 1e6), bytes / bytes_per_us);
    }
  };
  if (rates.memory_gb_per_s <= 0) gain.note = "the rate memory_gb_per_s is not given";
  products({}, gain.high_precision_us);
  products(config, gain.us);
  if (!gain.note.empty()) return {.basis = GainBasis::unknown, .note = gain.note};
  add_casts(gain, casts_of(config, size), bytes_per_us);
  return gain;
}

// ---- Elsewhere ------------------------------------------------------------------------------------------------------

LinearGain not_measured(const LinearConfig& config, const LinearSize& size, Target target) {
  int in_float8 = 0;
  int by_mma = 0;
  for (const LinearGemm& gemm : linear_gemms(config, size, Dtype::bf16)) {
    if (!is_fp8(gemm.call.spec.a)) continue;
    ++in_float8;
    if (!has_float8_kernel(gemm.call.spec, target)) ++by_mma;
  }
  if (in_float8 > 0 && by_mma == in_float8) {
    return {.basis = GainBasis::bound,
            .note = fmt::format("on {} gemm_mma multiplies this recipe's FP8 in 16 bits: it is no faster than 16 bits",
                                print(target))};
  }
  return {.basis = GainBasis::unknown,
          .note = fmt::format("nothing was measured on {}: time a step of the layer there, in FP8 and in 16 bits",
                              print(target))};
}

}  // namespace

const char* name(GainBasis basis) {
  switch (basis) {
    case GainBasis::measured: return "measured";
    case GainBasis::given: return "given";
    case GainBasis::extrapolated: return "extrapolated";
    case GainBasis::bound: return "bound";
    case GainBasis::unknown: return "unknown";
  }
  return "";
}

GainGpu gain_gpu(const Gpu& gpu) {
  return {.device = std::string(gpu.device), .target = gpu.target, .multiprocessors = gpu.multiprocessors};
}

GainGpu gain_gpu(const TuningMachine& machine) {
  const std::optional<Target> target = parse_target(machine.target);
  if (!target || machine.multiprocessors < 1) {
    refuse_gain("gain_gpu",
                fmt::format("the machine \"{}\" has no GPU: name a known one, as gpu_named(\"h200\")", machine.device));
  }
  return {.device = machine.device, .target = *target, .multiprocessors = machine.multiprocessors};
}

LinearGain expected_gain(const LinearConfig& config, const LinearSize& size, const GainGpu& gpu) {
  validate(config);
  check(size, gpu);
  if (gpu.rates) return from_rates(config, size, *gpu.rates);
  if (gpu.target == target_for(9, 0)) return from_h200(config, size, gpu);
  return not_measured(config, size, gpu.target);
}
namespace {

[[noreturn]] void refuse_model(const std::string& subject, const std::string& message) {
  throw Error(ErrorCode::invalid_argument, subject, message);
}

void collect(const ModuleDescription& module, const std::string& name, std::vector<LinearLayer>& layers) {
  if (module.linear()) {
    if (name.empty()) refuse_model("model description", "has a linear layer without a name");
    const LinearShape& shape = *module.linear();
    if (shape.in_features < 0 || shape.out_features < 0) {
      refuse_model(name, fmt::format("has {} to {} features, but they must be 0 or more", shape.in_features,
                                     shape.out_features));
    }
    layers.push_back({name, shape});
  }
  for (const ModuleDescription& child : module.children()) {
    if (child.name().empty()) refuse_model(name.empty() ? "model description" : name, "has a child without a name");
    collect(child, name.empty() ? child.name() : fmt::format("{}.{}", name, child.name()), layers);
  }
}

// Why this gain does not suffice; empty if it does.
std::string too_little(const LinearGain& gain, double least) {
  if (!gain.is_known()) return gain.note;
  if (gain.gain() >= least) return {};
  std::string reason = fmt::format("expected to be {:.2f} times as fast, but {:.2f} is required", gain.gain(), least);
  if (gain.basis == GainBasis::extrapolated) reason += fmt::format(" ({})", gain.note);
  return reason;
}

std::string gain_text(const std::optional<LinearGain>& gain) {
  if (!gain) return "-";
  switch (gain->basis) {
    case GainBasis::bound: return "<=1";
    case GainBasis::unknown: return "?";
    case GainBasis::extrapolated: return fmt::format("~{:.2f}", gain->gain());
    default: return fmt::format("{:.2f}", gain->gain());
  }
}

}  // namespace

std::vector<LinearLayer> linear_layers(const ModuleDescription& model) {
  std::vector<LinearLayer> layers;
  collect(model, model.name(), layers);
  std::set<std::string_view> names;
  for (const LinearLayer& layer : layers) {
    if (!names.insert(layer.name).second) refuse_model(layer.name, "is the name of two layers");
  }
  return layers;
}

LayerFilter not_named(std::string name) {
  return [name = std::move(name)](const LinearLayer& layer) {
    return layer.name != name && !layer.name.ends_with("." + name);
  };
}

LayerFilter at_least(std::int64_t features) {
  return [features](const LinearLayer& layer) {
    return std::min(layer.shape.in_features, layer.shape.out_features) >= features;
  };
}

std::vector<LayerDecision> convert(const ModuleDescription& model, const LinearConfig& config,
                                   const ConversionOptions& options) {
  validate(config);
  if (options.tokens < 0)
    refuse_model("conversion tokens", fmt::format("is {}, but must be 0 or more", options.tokens));
  if (!std::isfinite(options.least_gain)) {
    refuse_model("conversion least_gain", fmt::format("is {}, but must be a number", options.least_gain));
  }
  std::vector<LayerDecision> decisions;
  for (LinearLayer& layer : linear_layers(model)) {
    LayerDecision decision{.layer = std::move(layer), .config = config};
    const LinearShape& shape = decision.layer.shape;
    if (options.tokens > 0) {
      decision.gain = expected_gain(config, {options.tokens, shape.in_features, shape.out_features}, options.gpu);
    }
    if (options.filter && !options.filter(decision.layer)) {
      decision.reason = "the filter leaves it out";
    } else if (decision.gain) {
      decision.reason = too_little(*decision.gain, options.least_gain);
    }
    if (!decision.reason.empty()) decision.config = high_precision();
    decisions.push_back(std::move(decision));
  }
  return decisions;
}

std::string print(std::span<const LayerDecision> decisions) {
  std::size_t width = 5;
  for (const LayerDecision& d : decisions) width = std::max(width, d.layer.name.size());
  std::string text = fmt::format("{:<{}}  {:>8} -> {:<8} {:>5}  {}\n", "layer", width, "in", "out", "gain", "");
  for (const LayerDecision& d : decisions) {
    text += fmt::format("{:<{}}  {:>8} -> {:<8} {:>5}  {}\n", d.layer.name, width, d.layer.shape.in_features,
                        d.layer.shape.out_features, gain_text(d.gain),
                        d.reason.empty() ? print(d.config) : "high precision: " + d.reason);
  }
  return text;
}

}  // namespace ingot
