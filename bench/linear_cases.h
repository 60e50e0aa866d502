// The cases of bench_linear: one step of a layer, forward and backward. Every step casts the weight, as after an
// optimizer step.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ingot/nn/recipe/linear_gemms.h"

namespace ingot::bench {

enum class LinearWork : std::uint8_t {
  linear,               // output = input @ weight^T
  norm_linear_sigmoid,  // output = sigmoid(layernorm(input) @ weight^T), torchao's microbenchmark
};

struct LinearBenchCase {
  LinearWork work = LinearWork::linear;
  std::string label{};  // "llama3-8b w13 "
  LinearSize size{};
};

std::string name(const LinearBenchCase& c);

std::vector<LinearBenchCase> linear_cases();

// Floating-point operations of the three GEMMs.
double operations(const LinearBenchCase& c);

// Bytes that a step's casts, norm and activation must move if each reads its tensors once (twice for scales over
// another dimension than the row) and writes its results once. GEMMs are not counted: their traffic overlaps with their
// arithmetic.
double ideal_bytes(const LinearBenchCase& c, const LinearConfig& config);

// Roofline: the time of a step at these rates, in us, if nothing overlaps but a GEMM's own loads and stores.
struct Rates {
  double fp8_tflops = 0;
  double bf16_tflops = 0;
  double tb_per_s = 0;
};
double roofline_us(const LinearBenchCase& c, const LinearConfig& config, const Rates& rates);

}  // namespace ingot::bench
