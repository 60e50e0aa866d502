// The parameters of one of a cast's two outputs (codes, transposed codes): where its codes go, and its scales, factors
// and maxima.
#pragma once

#include "granularity.cuh"
#include "memory.cuh"
#include "platform.cuh"
#include "reduce.cuh"
#include "scaling.cuh"

namespace ingot {

// A template argument: is this output written, and which of its elements share a scale?
struct CastOutputConfig {
  bool written = false;
  Granularity scale{~0U, ~0U};  // none, unless written
  bool operator==(const CastOutputConfig&) const = default;
};

// A cast kernel's template arguments that are not types.
struct CastConfig {
  CastOutputConfig codes{}, transposed{};
  bool given_scales = false;
  bool result = false;     // writes the values themselves
  bool sum = false;        // writes the sums of their columns
  bool unaligned = false;  // is fast too where rows do not start at multiples of 16 bytes
  bool kept = false;       // the pass for the maxima computes the values, and writes them for this one
  bool listed = false;     // the matrix is one of a list (cast_list.cuh sets it)
  bool slots = false;      // transposed rows have 128 codes, zeros beyond the matrix (cast_experts.cuh sets it)
};

// Elements that share a scale are within one tile of 128 x 128.
INGOT_HOST_DEVICE constexpr bool within_tile(Granularity g) {
  return g == Granularity{1, 128} || g == Granularity{128, 1} || g == Granularity{128, 128};
}
// The granularities that cast_tile() supports.
INGOT_HOST_DEVICE constexpr bool has_cast_scales(const CastOutputConfig& output) {
  const Granularity g = output.scale;
  return !output.written || is_tensorwise(g) || is_rowwise(g) || is_columnwise(g) || within_tile(g);
}
INGOT_HOST_DEVICE constexpr bool has_cast_scales(const CastConfig& config) {
  return has_cast_scales(config.codes) && has_cast_scales(config.transposed);
}

// Do the scales come from a pass before the cast, unless they are given?
INGOT_HOST_DEVICE constexpr bool from_pass(const CastOutputConfig& output) {
  return output.written && !within_tile(output.scale);
}

// The output that has the first scales: the codes, if they are written.
INGOT_HOST_DEVICE constexpr CastOutputConfig first_output(const CastConfig& config) {
  return config.codes.written ? config.codes : config.transposed;
}

// Do codes and transposed codes have separate scales?
INGOT_HOST_DEVICE constexpr bool has_two_scales(const CastConfig& config) {
  return config.codes.written && config.transposed.written && config.codes.scale != config.transposed.scale;
}

// May a tile have fewer than 128 rows? Only where that is faster (docs/notes/casts.md): where the tiles wait for each
// other (cast_whole.cuh), or with given scales, if both outputs share them; without sums, and without scales of groups
// or blocks of 128.
INGOT_HOST_DEVICE constexpr bool may_take_fewer_rows(const CastConfig& config, bool syncs) {
  const bool whole_tiles =
      config.listed || config.sum || within_tile(config.codes.scale) || within_tile(config.transposed.scale);
  return !whole_tiles && (syncs || (config.given_scales && !has_two_scales(config)));
}

// Elements from the factor of a row's 1x128 group to that of the next row, and of the next group.
struct GroupSteps {
  i64 row, group;
};

// Scales, factors and maxima are dense arrays with one entry per extent that shares a scale, row by row: [1], [rows],
// [cols], [rows, ceil(cols / 128)], [ceil(rows / 128), cols] or [ceil(rows / 128), ceil(cols / 128)]. But factors of
// 1x128 groups are laid out as `factor_steps` says.
struct CastOutput {
  void* codes;     // Out[rows, cols] or, transposed, Out[cols, rows]
  i64 stride;      // elements
  float* from;     // dynamic: partial maxima (tensorwise) or the maxima (rowwise, columnwise). Given: the scales
  i64 from_count;  // number of partial maxima
  float* factors;
  u32* amax;     // given: raised to the largest |value|, as bits
  u32* readers;  // null, or counts of the tiles that have read from[] (is_last_reader)
  GroupSteps factor_steps{};
};

// The largest of the partial maxima, as bits. All `threads` threads of the block call it.
INGOT_DEVICE u32 maximum_of_partials(const CastOutput& output, u32 threads, u32 (&warp_maxima)[kMaxWarps]) {
  u32 bits = 0;
  INGOT_UNROLL_BY(1)
  for (i64 i = threadIdx.x; i < output.from_count; i += threads) bits = max_of(bits, float_bits(output.from[i]));
  return group_max(bits, threads, warp_maxima);
}

// Stores the first `count` bytes.
INGOT_DEVICE void store_bytes(u8* target, U32x2 bytes, u32 count) {
  u64 rest = u64{bytes.y} << 32 | bytes.x;
  INGOT_UNROLL_BY(1)
  for (u32 i = 0; i < count; ++i, rest >>= 8) target[i] = static_cast<u8>(rest);
}

}  // namespace ingot
