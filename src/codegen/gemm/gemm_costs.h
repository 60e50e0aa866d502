// Constants of the estimates in gemm_estimate.cpp: how long gemm_sm90's tilings, and cuBLASLt's first choice, take on
// an H200.
//
// They were fitted to the times of all tilings on 561 GEMMs, most of random sizes (bench_choice --every), so that the
// tiling with the lowest estimate is nearly as fast as the fastest one. None of these GEMMs is in the list by which
// bench_choice judges. Fitted to three quarters of the GEMMs, the model chose tilings within 2.3 % of the fastest, on
// average, for the last quarter. The figures describe the model: those on which no choice depends need not be the
// hardware's.
#pragma once

#include <array>
#include <cstddef>
#include <span>

#include "ingot/codegen/gemm/gemm_tiling.h"

namespace ingot {

struct TilingCost {
  GemmTiling tiling;
  double step_ns;        // time of a step of 128 along K
  double tile_ns;        // time of a tile besides its steps
  double askew;          // factor on the steps where rows do not start at multiples of 64 bytes
  double by_groups = 1;  // factor on the steps of 1x128 by 1x128
};

// For one kind of accumulation and scale_inv.
struct Sm90Costs {
  double start_us;
  double bytes_per_us;  // memory bandwidth
  double idle;          // share of the bandwidth that is lost to idle blocks in the last round
  double few;           // exponent on the share of busy blocks, where each has one tile at most
  double write_ns;      // time to write two bytes of output
  double alone;         // share by which a step shortens as other multiprocessors are idle
  std::span<const TilingCost> tilings;
};

struct CublasltCosts {
  double start_us;
  double bytes_per_us;
  std::array<double, 4> step_ns;  // for tiles of 128x256, 128x128, 64x128 and 64x64
  double tile_ns;
  double askew;
  double copy_us = 0;  // of scale_inv into the order in which cuBLASLt reads it
};

namespace costs {

constexpr GemmTiling stream_k(int m, int n, int stages) { return {.m = m, .n = n, .stages = stages, .stream_k = true}; }

// 192 sums in a thread leave few registers for an epilogue: those tilings come last, so that a list can leave them out.
inline constexpr std::array kFastTilings{
    TilingCost{{128, 128, 2, 1, 6, true}, 324, 4340, 1.35},  TilingCost{{128, 128, 1, 1, 6, true}, 375, 1140, 1.24},
    TilingCost{{128, 256, 2, 1, 4, false}, 623, 5550, 1.15}, TilingCost{{128, 256, 1, 1, 4, false}, 799, 1820, 1.11},
    TilingCost{{64, 128, 1, 1, 8, true}, 243, 0, 1.65},      TilingCost{{128, 64, 1, 1, 8, true}, 218, 1150, 1.51},
    TilingCost{{64, 64, 1, 1, 12, true}, 151, 0, 1.89},      TilingCost{{192, 64, 1, 2, 6, true}, 296, 1680, 1.35},
    TilingCost{stream_k(64, 128, 8), 476, 2210, 1.09},       TilingCost{stream_k(128, 128, 6), 501, 3050, 1.01},
    TilingCost{stream_k(256, 128, 4), 947, 2920, 1.15},      TilingCost{{192, 128, 1, 2, 5, true}, 516, 1850, 1.11},
    TilingCost{{128, 192, 2, 1, 5, true}, 494, 3210, 1.09}};
inline constexpr std::array kAccurateTilings{
    TilingCost{{128, 192, 2, 1, 5, false}, 568, 871, 1.03}, TilingCost{{128, 192, 1, 1, 5, false}, 477, 891, 1.42},
    TilingCost{{128, 128, 1, 1, 6, false}, 326, 573, 1.48}, TilingCost{{128, 128, 2, 1, 6, false}, 376, 597, 1.11},
    TilingCost{{256, 128, 1, 1, 4, false}, 825, 200, 1.12}, TilingCost{{256, 128, 1, 2, 4, false}, 692, 7730, 1},
    TilingCost{{64, 128, 1, 1, 8, true}, 310, 994, 1.42},   TilingCost{{64, 64, 1, 1, 12, true}, 226, 269, 1.26},
    TilingCost{stream_k(64, 128, 8), 334, 2970, 1.18},      TilingCost{stream_k(128, 128, 6), 536, 945, 1.09},
    TilingCost{stream_k(64, 256, 5), 1060, 713, 1},         TilingCost{stream_k(256, 128, 4), 1000, 1310, 1.03}};
// 1x128 by 128x128. The steps of whole tiles are from eight sizes (gemm_factors_h200.json); what else there is, from
// the 561 GEMMs. Rows askew were not measured: their ratios are those of accurate accumulation.
inline constexpr std::array kGroupedTilings{TilingCost{{128, 128, 1, 1, 6, false}, 447, 422, 1.48, 1.45},
                                            TilingCost{{128, 128, 2, 1, 6, false}, 455, 543, 1.11, 1.43},
                                            TilingCost{{256, 128, 1, 2, 4, false}, 955, 907, 1, 1.29},
                                            TilingCost{{256, 128, 1, 1, 4, false}, 965, 500, 1.12, 1.27},
                                            TilingCost{{64, 128, 1, 1, 8, true}, 373, 0, 1.42, 1.18},
                                            TilingCost{{64, 64, 1, 1, 12, true}, 250, 87.7, 1.26, 1.12},
                                            TilingCost{stream_k(64, 128, 8), 421, 2440, 1.18, 1.13},
                                            TilingCost{stream_k(128, 128, 6), 682, 1670, 1.09, 1.17},
                                            TilingCost{stream_k(64, 256, 5), 635, 3820, 1, 1.28}};

inline constexpr Sm90Costs kFast{.start_us = 1.67,
                                 .bytes_per_us = 4.69e6,
                                 .idle = 0.57,
                                 .few = 0.811,
                                 .write_ns = 0.0115,
                                 .alone = 0.068,
                                 .tilings = kFastTilings};
inline constexpr Sm90Costs kAccurate{.start_us = 0.967,
                                     .bytes_per_us = 3.89e6,
                                     .idle = 0.749,
                                     .few = 0.729,
                                     .write_ns = 0.0782,
                                     .alone = 0,
                                     .tilings = kAccurateTilings};
inline constexpr Sm90Costs kGrouped{.start_us = 2.26,
                                    .bytes_per_us = 6.96e6,
                                    .idle = 0.283,
                                    .few = 0.935,
                                    .write_ns = 0.0309,
                                    .alone = 0.136,
                                    .tilings = kGroupedTilings};

inline constexpr CublasltCosts kCublasltFast{
    .start_us = 2.93, .bytes_per_us = 4.49e6, .step_ns = {1300, 792, 236, 80.8}, .tile_ns = 276, .askew = 1.17};
inline constexpr CublasltCosts kCublasltFastRows{
    .start_us = 2.78, .bytes_per_us = 4.66e6, .step_ns = {705, 376, 340, 274}, .tile_ns = 2270, .askew = 0.93};
inline constexpr CublasltCosts kCublasltAccurate{
    .start_us = 3.08, .bytes_per_us = 4.9e6, .step_ns = {686, 804, 219, 70.5}, .tile_ns = 1320, .askew = 1.22};
// A tenth above the fit, which moves no choice of the GEMMs that it was made for: gemm_sm90 was the faster one, or
// equal, in all of these 73, and in a layer of few tokens where the fit had them equal, by 15 %.
inline constexpr CublasltCosts kCublasltAccurateRows{
    .start_us = 2.44, .bytes_per_us = 3.89e6, .step_ns = {1660, 432, 497, 306}, .tile_ns = 1860, .askew = 1.32};

// For 1x128 groups by 128x128 blocks, and by 1x128 groups. Not fitted to single times: set so that the choice between
// them and kGrouped's estimates costs little at the eight sizes that were measured on an H200 (docs/notes/gemm.md).
// For groups the ratios themselves are up to 0.2 off, towards cuBLASLt.
inline constexpr CublasltCosts kCublasltBlocks{.start_us = 3.5,
                                               .bytes_per_us = 4.5e6,
                                               .step_ns = {905, 452, 320, 230},
                                               .tile_ns = 100,
                                               .askew = 1.3,
                                               .copy_us = 7.5};
inline constexpr CublasltCosts kCublasltGroups{.start_us = 4.5,
                                               .bytes_per_us = 4.5e6,
                                               .step_ns = {975, 487, 440, 320},
                                               .tile_ns = 100,
                                               .askew = 1.3,
                                               .copy_us = 9.5};
// Multiplies gemm_sm90's time where a's scale_inv are stored by group instead of row by row: a load of several rows'
// scale_inv has fewer sectors then.
inline constexpr double kReadByGroup = 0.94;
inline constexpr double kGroupsReadByGroup = 0.93;

// The tilings without their costs.
template <std::size_t Count>
constexpr std::array<GemmTiling, Count> tilings_of(const std::array<TilingCost, Count>& costs) {
  std::array<GemmTiling, Count> tilings{};
  for (std::size_t i = 0; i < Count; ++i) tilings[i] = costs[i].tiling;
  return tilings;
}

}  // namespace costs
}  // namespace ingot
