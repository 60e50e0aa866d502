// Estimates how much faster FP8 makes a linear layer, before anything runs: the time of its three GEMMs and its casts
// against the time of the same GEMMs in 16 bits. Only what was measured is promised: LinearGain::basis says what an
// estimate rests on, and where nothing was measured there is none.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "ingot/api.h"
#include "ingot/codegen/types/gpu.h"
#include "ingot/nn/recipe/linear_gemms.h"

namespace ingot {

struct TuningMachine;

// What you measured on a GPU, for example with `ingot bench gemm` and `ingot bench cast`. Those that are 0 were not
// measured. Rates of large GEMMs: small ones are taken to reach them too, after the start of a kernel.
struct GainRates {
  double float8_tflops = 0;         // FP8 GEMMs with one factor for each operand
  double float8_rows_tflops = 0;    // with a factor for each row
  double float8_groups_tflops = 0;  // with factors of groups and blocks
  double high_precision_tflops = 0;
  double memory_gb_per_s = 0;  // read and written, by a large cast
};

// The GPU that a layer is to run on.
struct GainGpu {
  std::string device{};  // as the driver names it: "NVIDIA H200"
  Target target{};
  int multiprocessors = 0;
  std::optional<GainRates> rates{};  // default: what is known of this GPU
};

INGOT_API GainGpu gain_gpu(const Gpu& gpu);
// The GPU at hand: gain_gpu(context.tuning_machine()). Throws Error{invalid_argument} without a GPU.
INGOT_API GainGpu gain_gpu(const TuningMachine& machine);

// What an estimate rests on.
enum class GainBasis : std::uint8_t {
  measured,      // such layers were measured on this GPU
  given,         // GainGpu::rates
  extrapolated,  // from an H200 to another GPU of its architecture, or to sizes and formats that were not measured
  bound,         // every FP8 GEMM would run as gemm_mma, which is no faster than 16 bits: the gain is 1 at most
  unknown,       // nothing was measured
};
// "measured", "given" ...
INGOT_API const char* name(GainBasis basis);

struct LinearGain {
  double high_precision_us = 0;  // the three GEMMs of one step; 0 for a bound and where nothing is known
  double us = 0;                 // the GEMMs and casts of one step with the config; the weight is cast in every step
  GainBasis basis = GainBasis::unknown;
  std::string note{};  // why it is not measured: "tokens of 100 are outside the measured 256 to 16384"

  // Is it a number? 1 stands for one that is not.
  bool is_known() const { return us > 0; }
  double gain() const { return us > 0 ? high_precision_us / us : 1; }
};

// For one layer by itself, in bf16 or f16. Measured: an H200 (bench/results/linear_h200.json), 256 to 16384 tokens and
// inputs, 256 to 28672 outputs; from 2048 on the estimate of each recipe is within 10 % of what was measured there, and
// smaller layers gain nothing. Throws what validate(config) throws, and Error{invalid_argument} for sizes and GPUs that
// cannot be.
INGOT_API LinearGain expected_gain(const LinearConfig& config, const LinearSize& size, const GainGpu& gpu);

}  // namespace ingot
