// What the estimates in dequant_candidates.cpp are made of: times of an H200. First guesses, from the instructions that
// a kernel issues; bench_weight_only --every measures every tiling.
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

// Per nanosecond: of a multiprocessor.
struct DequantSm90Costs {
  double start_us = 2.5;
  double memory_per_us = 4.4e6;  // bytes
  double bytes_per_ns = 42;      // into shared memory
  double decoded_per_ns = 66;    // codes
  double mma_per_ns = 1080;      // codes times tokens
  double wgmma_per_ns = 3400;
  double overlap = 0.3;      // share of the shorter of decoding and multiplying that is not hidden
  double group_ns = 0.0008;  // of a code and a token, for a factor of each k
  double write_ns = 60;      // of 1024 outputs
  double tile_ns = 700;
  double exchange_ns = 900;
};
inline constexpr DequantSm90Costs kDequantSm90{};

}  // namespace ingot::costs
