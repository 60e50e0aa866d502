// Constants of the estimates in dequant_sm90_candidates.cpp and dequant_mma_candidates.cpp: times on an H200. Those of
// dequant_mma are guesses, from the instructions that it issues; bench_weight_only --every measures every tiling.
#pragma once

namespace ingot::costs {

struct DequantMmaCosts {
  double start_us = 3.0;
  double bytes_per_us = 3.9e6;    // memory bandwidth, for the weight
  double x_bytes_per_us = 5.5e6;  // L2 bandwidth, for x
  double codes_ns = 22;           // loads and decoding of a warp's 64 k, on a multiprocessor that has enough warps
  double tokens_ns = 7;           // likewise, for 8 tokens
  double group_ns = 3;            // likewise, for each group's scale_inv and 8 tokens
  double stage_ns = 480;          // least time of a stage: two of them hide the memory's latency
  double tile_ns = 1500;          // time of a tile besides its stages
  double split_us = 2.5;          // time to add up the sums of several blocks
  double part_bytes_per_us = 2e6;
};
inline constexpr DequantMmaCosts kDequantMma{};

// Time per code: the mean with all warps of a multiprocessor busy, and what one warp takes by itself (which the model
// divides by the number of warps).
struct DequantDecoding {
  double mma_ns, mma_warp_ns, wgmma_ns;
};

// Fitted to the times of all tilings of 111 matmuls, so that the tiling with the lowest estimate is nearly as fast as
// the fastest one. Each was launched right after the other with the same weights: e4m3fn by bf16 with scale_inv of rows
// for 1 to 1024 tokens, from 32 tokens on also under the power that a GPU may draw for long; other codes and scale_inv
// for 1, 16 and 64 tokens.
//
// The choice was timed for 106 of them (bench/results/weight_only_tilings_h200.json): it was slower than the fastest
// tiling by 0.9 % on average and by 9 % at most. For version 3 of the packed layouts, wgmma_ns of six and four bits was
// lowered; for the 52 matmuls that were timed with it, the choice was slower by 0.6 % and 5 %.
//
// The figures describe the model, not the hardware. Rates per nanosecond are those of one multiprocessor.
struct DequantSm90Costs {
  double start_us = 1.374;
  double ring_us = 0.853;            // added where stages fill all of shared memory
  double memory_per_us = 4.303e+06;  // bytes of memory bandwidth
  double bytes_per_ns = 59.45;       // into shared memory, with x
  DequantDecoding eight{0.001447, 0.1364, 0.01503};
  DequantDecoding six{0, 0.002775, 0.0133};
  DequantDecoding four{0.009649, 0.02242, 0.0093};
  double wgmma_warp_ns = 0.00241;
  double wgmma_per_ns = 4366;  // codes times tokens
  double mma_sum_ns = 0.1392;  // one warp's time for each code and token whose sum has its own scale_inv
  double wgmma_sum_ns = 0.01483;
  double mx_mma_warp_ns = 0.1042;  // for a code that is multiplied by a scale_inv
  double mx_wgmma_ns = 0.00104;
  double mx_wgmma_warp_ns = 0.02466;
  double mx_row_ns = 3.563;      // to copy the scale_inv of a row of a stage
  double stage_ns = 213.2;       // a warp's wait in each stage
  double multicast_ns = 142.6;   // the same where blocks wait for each other
  double mma_step_ns = 76.81;    // a warp's wait in each step of 32 k, for 16 tokens
  double wgmma_step_ns = 41.45;  // the same for 64 tokens
  double ring_ns = 1579;         // from a stage's last use until its next codes have arrived
  double write_ns = 187.3;       // to write 1024 outputs
  double exchange_ns = 2.933;
  double k_warps_ns = 438.5;
  double part_ns = 3004;         // to add another block's sums
  double stream_k_apart = 1.08;  // factor where tiles share their rows but not their tokens
};
inline constexpr DequantSm90Costs kDequantSm90{};

}  // namespace ingot::costs
