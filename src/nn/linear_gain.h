// Estimates how much faster FP8 makes a linear layer, before anything runs: the estimated time of its three GEMMs
// (codegen/gemm/gemm_estimate.h) and its casts against the time of the same GEMMs in 16 bits.
#pragma once

#include "ingot/api.h"
#include "ingot/nn/linear_gemms.h"

namespace ingot {

struct LinearGain {
  double high_precision_us = 0;  // the three GEMMs of one step
  double us = 0;                 // the GEMMs and casts of one step with the config; the weight is cast in every step
  double gain() const { return us > 0 ? high_precision_us / us : 1; }
};

// For one layer by itself, in bf16 or f16, on a GPU with this many SMs. The constants were measured on an H200
// (bench/results/linear_h200.json with bench/results/gemm_tilings_h200.json); for other GPUs only the number of SMs
// changes. Throws what validate(config) throws.
INGOT_API LinearGain expected_gain(const LinearConfig& config, const LinearSize& size, int multiprocessors);

}  // namespace ingot
