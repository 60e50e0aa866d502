// What bench_linear times: one layer, forward and backward, with its weight cast in every step, as after an
// optimizer's.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ingot/nn/linear_gemms.h"

namespace ingot::bench {

enum class LinearWork : std::uint8_t {
  linear,               // output = input @ weight^T
  norm_linear_sigmoid,  // output = sigmoid(layernorm(input) @ weight^T): the microbenchmark of torchao's users
};

struct LinearBenchCase {
  LinearWork work = LinearWork::linear;
  std::string label{};  // "llama3-8b w13 "
  LinearSize size{};
};

std::string name(const LinearBenchCase& c);

std::vector<LinearBenchCase> linear_cases();

// Of the three GEMMs.
double operations(const LinearBenchCase& c);

// What a step's casts, norm and activation must move when each reads its tensors once (twice for scales of the data
// along another dimension than a row's) and writes its results once: a GEMM hides its own traffic behind its products.
double ideal_bytes(const LinearBenchCase& c, const LinearConfig& config);

// The time of a step at these rates, in us: nothing overlaps but a GEMM's own loads and stores.
struct Rates {
  double fp8_tflops = 0;
  double bf16_tflops = 0;
  double tb_per_s = 0;
};
double roofline_us(const LinearBenchCase& c, const LinearConfig& config, const Rates& rates);

}  // namespace ingot::bench
