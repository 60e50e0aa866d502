// The inner loop of the CPU's GEMM.
#pragma once

#include "platform.cuh"

namespace ingot::cpu {

// A tile of the output: 6 x 16 sums fill the vector registers of AVX2.
inline constexpr i64 kTileRows = 6;
inline constexpr i64 kTileCols = 16;

// sums[i][j] += a[k][i] * b[k][j] for k = 0 ... depth - 1 in this order, each product and each sum rounded to f32.
//   a: [depth][kTileRows], b: [depth][kTileCols], sums: kTileRows rows of kTileCols, `stride` apart
void multiply_tile(i64 depth, const float* a, const float* b, float* sums, i64 stride);

// The same for any processor: multiply_tile() falls back to it, and is tested against it.
void multiply_tile_portable(i64 depth, const float* a, const float* b, float* sums, i64 stride);

}  // namespace ingot::cpu
