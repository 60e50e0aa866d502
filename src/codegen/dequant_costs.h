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

// Fitted to the times of all tilings of 73 products (e4m3fn by bf16, factors of rows, 1 to 256 tokens; other codes and
// factors with 1, 16 and 64), launches of constant weights right behind each other, so that the tiling of the least
// estimate costs little over the fastest one: 0.8 % on the mean and 6 % at most
// (bench/results/weight_only_tilings_h200.json). Figures are therefore the model's, not the hardware's. Per nanosecond:
// of a multiprocessor.
struct DequantSm90Costs {
  double start_us = 1.529;
  double ring_us = 0.2334;           // more, where stages fill all of shared memory
  double memory_per_us = 4.276e+06;  // bytes
  double bytes_per_ns = 66.52;       // into shared memory, with x
  DequantDecoding eight{0.01836, 0.0105, 0.01239};
  DequantDecoding six{0, 0.1787, 0.01826};
  DequantDecoding four{0.01676, 0, 0.01228};
  double wgmma_warp_ns = 0.007898;
  double wgmma_per_ns = 4031;  // codes by tokens
  double mma_sum_ns = 0.2086;  // of one warp, for each code and token whose sum has a factor of its own
  double wgmma_sum_ns = 0.0366;
  double mx_mma_warp_ns = 0.008244;  // of a code that is multiplied by a factor
  double mx_wgmma_ns = 0.00952;
  double mx_wgmma_warp_ns = 0.0004031;
  double mx_row_ns = 5.666;      // of a row in a stage, whose factors are copied
  double mma_step_ns = 120.8;    // that a warp waits in each step of 32 k, of 16 tokens
  double wgmma_step_ns = 90.51;  // of 64
  double ring_ns = 1613;         // from a stage's last use until its next codes are there, and what they take
  double write_ns = 122.4;       // of 1024 outputs
  double exchange_ns = 384.1;
  double k_warps_ns = 641.7;
  double part_ns = 2827;  // of another block's sums that are added
};
inline constexpr DequantSm90Costs kDequantSm90{};

}  // namespace ingot::costs
