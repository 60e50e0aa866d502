// What FP8 is expected to gain on a layer, before anything runs: estimates of its three GEMMs
// (codegen/gemm/gemm_estimate.h) and of its casts, against the same GEMMs in 16 bits.
#pragma once

#include "ingot/nn/linear_gemms.h"

namespace ingot {

struct LinearGain {
  double high_precision_us = 0;  // of a step: the three GEMMs
  double us = 0;                 // with the config: its GEMMs and casts, the weight's in every step
  double gain() const { return us > 0 ? high_precision_us / us : 1; }
};

// Of a layer alone, in bf16 or f16, on a GPU with this many multiprocessors. The constants were measured on an H200
// (bench/results/linear_h200.json beside bench/results/gemm_tilings_h200.json); on others only the number of
// multiprocessors differs. Throws what validate(config) throws.
LinearGain expected_gain(const LinearConfig& config, const LinearSize& size, int multiprocessors);

}  // namespace ingot
