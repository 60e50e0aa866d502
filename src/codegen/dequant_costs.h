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

// Fitted to the times of all tilings of 53 products (e4m3fn by bf16, factors of rows, 1 to 1024 tokens), and of six
// with one token and no codes fetched early, on the mean of launches right behind each other and with a small operation
// in between (bench/results/weight_only_tilings_h200.json), so that the tiling of the least estimate costs little over
// the fastest one: 0.7 % on the mean and 8 % at most; those of other codes and factors to 160 more of 28672 x 8192, 2 %
// and 7 %. Figures are therefore the model's, not the hardware's. Per nanosecond: of a multiprocessor.
struct DequantSm90Costs {
  double start_us = 2.548;
  double early_us = 0.4989;  // less, where stages fill no more of shared memory than this share
  double early_share = 0.5;
  double memory_per_us = 4.227e+06;  // bytes
  double code_bytes_per_ns = 125.5;  // from memory
  double bytes_per_ns = 60.99;       // into shared memory, with x
  DequantDecoding eight{0.01877, 0.02257, 0.01336};
  DequantDecoding six{0.0006772, 0.08836, 0.01817};
  DequantDecoding four{0.00715, 0.096, 0.01765};
  double wgmma_warp_ns = 0.005884;
  double wgmma_per_ns = 4491;  // codes by tokens
  double mma_sum_ns = 0.2643;  // of one warp, for each code and token whose sum has a factor of its own
  double wgmma_sum_ns = 0.01921;
  double mx_mma_ns = 0.0007215;  // of a code that is multiplied by a factor
  double mx_mma_warp_ns = 0.01972;
  double mx_wgmma_ns = 0.006876;
  double mx_wgmma_warp_ns = 0.07262;
  double mx_row_ns = 4.04;       // of a row in a stage, whose factors are copied
  double stage_ns = 169;         // that a warp waits in each stage
  double multicast_ns = 167.9;   // likewise, where blocks wait for each other
  double mma_step_ns = 52.78;    // likewise in each step of 32 k, of 16 tokens
  double wgmma_step_ns = 32.04;  // of 64
  double ring_ns = 1142;         // from a stage's last use until its next codes are there, and what they take
  double write_ns = 159.1;       // of 1024 outputs
  double tile_ns = 3.797;
  double exchange_ns = 1.104;
  double k_warps_ns = 569.7;
  double part_ns = 1625;         // of another block's sums that are added
  double part_write_ns = 67.19;  // of 1024 of them
  double beginning = 0.01432;    // of a stage
};
inline constexpr DequantSm90Costs kDequantSm90{};

}  // namespace ingot::costs
