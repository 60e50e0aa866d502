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

// Fitted to the times of all tilings on 45 products (e4m3fn by bf16, factors of rows, 1 to 1024 tokens), so that the
// tiling of the least estimate costs little over the fastest one: 9 % on the mean. Figures are therefore the model's,
// not the hardware's. Per nanosecond: of a multiprocessor.
struct DequantSm90Costs {
  double start_us = 0;
  double memory_per_us = 4.6e6;  // bytes
  double bytes_per_ns = 278;     // into shared memory
  double decoded_per_ns = 25;    // codes
  double mma_per_ns = 1e9;       // codes times tokens
  double wgmma_per_ns = 11800;
  double overlap = 0.88;      // share of the shorter of decoding and multiplying that is not hidden
  double group_ns = 0.0008;   // of a code and a token, for a factor of each k
  double stage_ns = 40;       // of a stage, beside what it is filled with
  double multicast_ns = 140;  // likewise, where blocks wait for each other
  double write_ns = 121;      // of 1024 outputs
  double tile_ns = 2100;
  double exchange_ns = 0.6;
};
inline constexpr DequantSm90Costs kDequantSm90{};

}  // namespace ingot::costs
