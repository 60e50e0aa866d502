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

}  // namespace ingot::costs
