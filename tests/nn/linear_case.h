// A linear layer with its tensors on a device, and the comparisons that the CPU and the GPU tests both run on it.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ingot/nn/modules/delayed_scaling.h"
#include "ingot/nn/modules/float8_linear.h"
#include "nn/reference.h"

namespace ingot::test {

struct CaseShape {
  std::int64_t tokens, in_features, out_features;
};

std::string print(const CaseShape& shape);

inline constexpr CaseShape kCaseShapes[] = {{16, 16, 32}, {1, 17, 5}, {0, 16, 8}, {7, 1, 3},     {33, 64, 17},
                                            {5, 0, 4},    {6, 8, 0},  {0, 0, 0},  {64, 129, 40}, {3, 200, 1}};

// Every combination of FP8 and high precision over the three GEMMs, with every format and with pow2.
std::vector<LinearConfig> every_config();

// Inputs as numbers, already rounded to the layer's dtype.
struct HostInputs {
  Matrix input, weight, bias, grad_output;
};

enum class Gradient { normal, ones };  // ones: the gradient of output.sum(), torchao's test

HostInputs make_inputs(const CaseShape& shape, Dtype dtype, Dtype bias_dtype, unsigned seed,
                       Gradient gradient = Gradient::normal);

Dtype bias_dtype_of(const LinearConfig& config, Dtype dtype);

// The layer's tensors. Results are poisoned.
struct LinearCase {
  LinearCase(const HostInputs& host, Dtype dtype, Dtype bias_dtype, Backend& backend, Stream& stream,
             std::int64_t padding = 0);

  LinearForward forward(bool with_bias) const;
  LinearBackward backward(bool with_bias) const;
  void poison_results(Stream& stream);
  // The bytes of the four results, concatenated.
  std::vector<std::uint8_t> result_bytes(Stream& stream) const;

  DeviceMatrix input, weight, bias, grad_output;
  DeviceMatrix output, grad_input, grad_weight, grad_bias;
};

struct Sqnr {
  double output, grad_input, grad_weight, grad_bias;
};

// Runs the layer and compares with the same layer in float64 without any FP8.
Sqnr measure_sqnr(const CaseShape& shape, const LinearConfig& config, Dtype dtype, unsigned seed, Gradient gradient,
                  Backend& backend, Stream& stream);

// torchao's thresholds for a linear layer of 16 -> 32 features; torchao's own tests do not check grad_input.
void check_torchao_bars(const Recipe& recipe, Dtype dtype, Backend& backend, Stream& stream);

}  // namespace ingot::test
