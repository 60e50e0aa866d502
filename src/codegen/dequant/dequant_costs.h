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

// Fitted to the times of all tilings of 111 products, launches of constant weights right behind each other (e4m3fn by
// bf16, factors of rows, 1 to 1024 tokens, from 32 on also under the power that a GPU may draw for long; other codes
// and factors with 1, 16 and 64), so that the tiling of the least estimate costs little over the fastest one: 0.9 % on
// the mean and 9 % at most, of the 106 whose choice was timed (bench/results/weight_only_tilings_h200.json), and 0.6 %
// and 5 % of 52 that were timed with version 3 of the packed layouts, for which six and four bits' wgmma_ns were made
// less. Figures are therefore the model's, not the hardware's. Per nanosecond: of a multiprocessor.
struct DequantSm90Costs {
  double start_us = 1.374;
  double ring_us = 0.853;            // more, where stages fill all of shared memory
  double memory_per_us = 4.303e+06;  // bytes
  double bytes_per_ns = 59.45;       // into shared memory, with x
  DequantDecoding eight{0.001447, 0.1364, 0.01503};
  DequantDecoding six{0, 0.002775, 0.0133};
  DequantDecoding four{0.009649, 0.02242, 0.0093};
  double wgmma_warp_ns = 0.00241;
  double wgmma_per_ns = 4366;  // codes by tokens
  double mma_sum_ns = 0.1392;  // of one warp, for each code and token whose sum has a factor of its own
  double wgmma_sum_ns = 0.01483;
  double mx_mma_warp_ns = 0.1042;  // of a code that is multiplied by a factor
  double mx_wgmma_ns = 0.00104;
  double mx_wgmma_warp_ns = 0.02466;
  double mx_row_ns = 3.563;      // of a row in a stage, whose factors are copied
  double stage_ns = 213.2;       // that a warp waits in each stage
  double multicast_ns = 142.6;   // likewise, where blocks wait for each other
  double mma_step_ns = 76.81;    // likewise in each step of 32 k, of 16 tokens
  double wgmma_step_ns = 41.45;  // of 64
  double ring_ns = 1579;         // from a stage's last use until its next codes are there, and what they take
  double write_ns = 187.3;       // of 1024 outputs
  double exchange_ns = 2.933;
  double k_warps_ns = 438.5;
  double part_ns = 3004;         // of another block's sums that are added
  double stream_k_apart = 1.08;  // times as long, where tiles of the same rows have other tokens
};
inline constexpr DequantSm90Costs kDequantSm90{};

}  // namespace ingot::costs
