// What the estimates in dequant_candidates.cpp are made of: times of an H200. Those of dequant_mma are guesses, from
// the instructions that it issues; bench_weight_only --every measures every tiling.
#pragma once

namespace ingot::costs {

struct DequantMmaCosts {
  double start_us = 3.0;
  double bytes_per_us = 3.9e6;    // of memory, the weight's
  double x_bytes_per_us = 5.5e6;  // of the L2
  double codes_ns = 22;           // of a warp's 64 k: loads and decoding, of a multiprocessor that has enough warps
  double tokens_ns = 7;           // likewise of 8 tokens
  double group_ns = 3;            // likewise of 8 tokens, for each group's factor
  double stage_ns = 480;          // of a stage, at least: two of them hide the memory's latency
  double tile_ns = 1500;          // beside its stages
  double split_us = 2.5;          // of adding up what several blocks have
  double part_bytes_per_us = 2e6;
};
inline constexpr DequantMmaCosts kDequantMma{};

// Fitted to the times of 835 tilings of 45 products (e4m3fn by bf16, factors of rows, 1 to 1024 tokens;
// bench/results/weight_only_tilings_h200.json), so that the tiling of the least estimate costs little over the fastest
// one: 1.8 % on the mean, 12 % at most. Figures are therefore the model's, not the hardware's. Per nanosecond: of a
// multiprocessor.
struct DequantSm90Costs {
  double start_us = 1.3;
  double memory_per_us = 4.6e6;  // bytes
  double bytes_per_ns = 82;      // into shared memory
  double decoded_per_ns = 29.6;  // codes
  double group_ns = 0.0008;      // of a code and a token, for a factor of each k
  double stage_ns = 167;         // that a warp waits in each stage
  double multicast_ns = 278;     // likewise, where blocks wait for each other
  double step_ns = 40;           // likewise in each step of 32 k
  double write_ns = 18;          // of 1024 outputs
  double tile_ns = 732;
  double exchange_ns = 375;
  double k_warps_ns = 411;
};
inline constexpr DequantSm90Costs kDequantSm90{};

}  // namespace ingot::costs
