// What the estimates in dequant_sm90_candidates.cpp and dequant_mma_candidates.cpp are made of: times of an H200. Those
// of dequant_mma are guesses, from the instructions that it issues; bench_weight_only --every measures every tiling.
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

// Of a code: what all warps of a multiprocessor take for one on the mean, and (over the number of warps) what one takes
// by itself.
struct DequantDecoding {
  double mma_ns, mma_warp_ns, wgmma_ns;
};

// Fitted to the times of 835 tilings of 45 products (e4m3fn by bf16, factors of rows, 1 to 1024 tokens;
// bench/results/weight_only_tilings_h200.json) and of 226 with other codes and factors, so that the tiling of the least
// estimate costs little over the fastest one: 1 % on the mean of the 45 and 7 % at most, 2 % on the mean of the others
// and 22 % at most. Figures are therefore the model's, not the hardware's. Per nanosecond: of a multiprocessor.
struct DequantSm90Costs {
  double start_us = 2.27;
  double memory_per_us = 4.7e6;     // bytes
  double code_bytes_per_ns = 35.6;  // from memory
  double bytes_per_ns = 68.2;       // into shared memory, with x
  DequantDecoding eight{0.0114, 0.0536, 0.016};
  DequantDecoding six{0.016, 0.0394, 0.0211};
  DequantDecoding four{0.0142, 0.014, 0.0174};
  double wgmma_warp_ns = 0.016;
  double wgmma_per_ns = 5560;  // codes by tokens
  double mma_sum_ns = 0.7;     // of one warp, for each code and token whose sum has a factor of its own
  double wgmma_sum_ns = 0.026;
  double mx_mma_ns = 0.0019;  // of a code that is multiplied by a factor
  double mx_mma_warp_ns = 0.0213;
  double mx_wgmma_ns = 0.0137;
  double mx_wgmma_warp_ns = 0.056;
  double mx_row_ns = 6.3;     // of a row in a stage, whose factors are copied
  double stage_ns = 154;      // that a warp waits in each stage
  double multicast_ns = 167;  // likewise, where blocks wait for each other
  double mma_step_ns = 36.6;  // likewise in each step of 32 k, of 16 tokens
  double wgmma_step_ns = 47;  // of 64
  double write_ns = 111;      // of 1024 outputs
  double tile_ns = 330;
  double exchange_ns = 36;
  double k_warps_ns = 733;
  double beginning = 0.71;  // of a stage
};
inline constexpr DequantSm90Costs kDequantSm90{};

}  // namespace ingot::costs
