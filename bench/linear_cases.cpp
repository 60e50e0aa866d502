#include "linear_cases.h"

#include <fmt/format.h>

#include <utility>

namespace ingot::bench {
namespace {

constexpr std::int64_t kSquares[] = {256, 512, 1024, 2048, 4096, 8192, 16384};

struct NamedLayer {
  const char* label;
  LinearSize size;
};

// Llama-2-70B, an eighth of each layer (as on eight GPUs), and Llama-3-8B whole.
constexpr NamedLayer kLayers[] = {
    {"llama2-70b wqkv ", {.tokens = 16384, .in_features = 8192, .out_features = 1280}},
    {"llama2-70b wo ", {.tokens = 16384, .in_features = 1024, .out_features = 8192}},
    {"llama2-70b w13 ", {.tokens = 16384, .in_features = 8192, .out_features = 7168}},
    {"llama2-70b w2 ", {.tokens = 16384, .in_features = 3584, .out_features = 8192}},
    {"llama3-8b wqkv ", {.tokens = 8192, .in_features = 4096, .out_features = 6144}},
    {"llama3-8b wo ", {.tokens = 8192, .in_features = 4096, .out_features = 4096}},
    {"llama3-8b w13 ", {.tokens = 8192, .in_features = 4096, .out_features = 28672}},
    {"llama3-8b w2 ", {.tokens = 8192, .in_features = 14336, .out_features = 4096}},
};

// Bytes per element for casting one tensor: `reads` reads of 2 bytes each, once more for maxima that must be known
// first, and the codes. One read of a row gives its maximum.
double cast_bytes(const TensorCasts& casts, double reads) {
  if (!casts.codes && !casts.transposed) return 0;
  const auto again = [](const std::optional<Cast>& cast, bool of_columns) {
    if (!cast || cast->scaling != Scaling::dynamic) return false;
    return cast->granularity == kTensorwise || (of_columns && cast->granularity == kRowwise);
  };
  const bool twice = again(casts.codes, false) || again(casts.transposed, true);
  return (twice ? 2 : 1) * reads + (casts.codes ? 1 : 0) + (casts.transposed ? 1 : 0);
}

double elements(std::int64_t rows, std::int64_t cols) { return static_cast<double>(rows) * static_cast<double>(cols); }

}  // namespace

std::string name(const LinearBenchCase& c) {
  return fmt::format("{}{}x{}x{} {}", c.label, c.size.tokens, c.size.in_features, c.size.out_features,
                     c.work == LinearWork::linear ? "linear" : "layernorm, linear, sigmoid");
}

std::vector<LinearBenchCase> linear_cases() {
  std::vector<LinearBenchCase> cases;
  for (const LinearWork work : {LinearWork::norm_linear_sigmoid, LinearWork::linear}) {
    for (const std::int64_t n : kSquares) cases.push_back({.work = work, .size = {n, n, n}});
  }
  for (const NamedLayer& layer : kLayers) cases.push_back({.label = layer.label, .size = layer.size});
  return cases;
}

double operations(const LinearBenchCase& c) {
  return 6.0 * elements(c.size.tokens, c.size.in_features) * static_cast<double>(c.size.out_features);
}

double ideal_bytes(const LinearBenchCase& c, const LinearConfig& config) {
  const double input = elements(c.size.tokens, c.size.in_features);
  const double output = elements(c.size.tokens, c.size.out_features);
  const double weight = elements(c.size.out_features, c.size.in_features);
  const bool fused = c.work == LinearWork::norm_linear_sigmoid;
  const bool casts_grad = config.grad_input.a || config.grad_weight.a;
  // Does a GEMM in high precision read the norm's values, or the sigmoid's gradient?
  const bool values = !config.output.a || !config.grad_weight.b;
  const bool grad_values = !config.grad_input.a || !config.grad_weight.a;
  double bytes = cast_bytes(input_casts(config), 2) * input + cast_bytes(weight_casts(config), 2) * weight;
  bytes += cast_bytes(grad_output_casts(config), fused ? 4 : 2) * output;
  if (!fused) return bytes;
  if (values) bytes += (config.output.a || config.grad_weight.b ? 2 : 4) * input;  // the norm's result
  if (grad_values) bytes += (casts_grad ? 2 : 6) * output;                         // the sigmoid's gradient
  if (!config.output.a) bytes += 4 * output;                                       // the sigmoid after its GEMM
  return bytes + 6 * input;                                                        // the norm's backward
}

double roofline_us(const LinearBenchCase& c, const LinearConfig& config, const Rates& rates) {
  double us = ideal_bytes(c, config) / rates.tb_per_s * 1e-6;
  for (const GemmConfig* gemm : {&config.output, &config.grad_input, &config.grad_weight}) {
    us += operations(c) / 3 / (gemm->a ? rates.fp8_tflops : rates.bf16_tflops) * 1e-6;
  }
  return us;
}

}  // namespace ingot::bench
