// amax: the largest |value| of a tensor, of each row, of each column, or of several of these at once. Each kernel reads
// each input byte once. A maximum is exact, so the order of the elements does not matter.
//
// amax_partials and amax_rows need no cleared memory. A tensorwise amax takes two launches: amax_partials leaves one
// value per block, and either amax_rows reduces these (as one row of f32) or the cast that needs them does so itself.
// amax_tiles raises maxima that are already in memory.
#pragma once

#include "cast/source.cuh"
#include "memory.cuh"
#include "platform.cuh"
#include "reduce.cuh"
#include "scaling.cuh"
#include "vec8.cuh"

namespace ingot {

// Where the pass for the maxima of an expression also writes its values, so that the cast need not compute them again.
struct KeptValues {
  void* values = nullptr;  // Value[rows, stride]
  i64 stride = 0;          // elements, a multiple of 8

  // No streaming hint: the cast that follows finds in the L2 what was written last.
  template <HighPrecision Value>
  INGOT_DEVICE void put(i64 row, i64 col, const Vec8<Value>& vec8) const {
    Value* const target = static_cast<Value*>(values) + row * stride + col;
    INGOT_UNROLL
    for (u32 i = 0; i < Vec8<Value>::kVectors; ++i) {
      *reinterpret_cast<U32x4*>(target + i * kPerVector<Value>) = vec8.vectors[i].bits;
    }
  }
  template <HighPrecision Value>
  INGOT_DEVICE void put(i64 row, i64 col, Value value) const {
    static_cast<Value*>(values)[row * stride + col] = value;
  }
};

struct AmaxPartialsParams {
  SourceParams source;
  float* amax;        // one per block
  KeptValues kept{};  // if the kernel keeps values
};

// A matrix without gaps counts as one row, so that all its segments but the last are full. Not for an expression with
// further inputs.
INGOT_HOST_DEVICE constexpr SourceParams flattened(SourceParams p) {
  if (p.rows == 1 || p.input_stride != p.cols) return p;
  p.cols *= p.rows;
  p.input_stride = p.cols;
  p.rows = 1;
  return p;
}

// Blocks take segments of rows in turn, so that at the end the L2 holds the end of the tensor. Rows of an expression
// are cut into segments of one length, so that all threads have as much to do: those of 11008 columns into two of 5504,
// for 192 threads. A matrix without an expression is one row, or has segments of full length.
struct AmaxPartialsLaunch {
  static constexpr u32 kMaxThreads = 256;
  static constexpr i64 kMaxBlocks = 512;  // few enough to be resident at once on a large GPU, and to be reduced again
  // 64 bytes of the input in flight per thread.
  INGOT_HOST_DEVICE static constexpr u32 vec8s(u64 value_bytes) { return value_bytes == 4 ? 2 : 4; }
  INGOT_HOST_DEVICE static constexpr i64 segment(u32 threads, u64 value_bytes) {
    return i64{threads} * vec8s(value_bytes) * kVec8;
  }
  INGOT_HOST_DEVICE static constexpr u32 threads(i64 cols, u64 value_bytes, bool computed) {
    if (!computed) return kMaxThreads;
    const i64 segments = max_of(i64{1}, ceil_div(cols, segment(kMaxThreads, value_bytes)));
    const i64 warps = ceil_div(ceil_div(cols, segments), segment(32, value_bytes));
    return static_cast<u32>(max_of(i64{1}, warps)) * 32;
  }
  // `resident`: the blocks that the GPU runs at once. A kernel that keeps values has no more, so that none of its
  // blocks starts when the others are half done.
  INGOT_HOST_DEVICE static constexpr i64 grid(i64 rows, i64 cols, u32 threads, u64 value_bytes,
                                              i64 resident = kMaxBlocks) {
    return min_of(min_of(kMaxBlocks, resident), rows * ceil_div(cols, segment(threads, value_bytes)));
  }
};

// Blocks of kMaxThreads threads per SM, as registers allow: 64, 80, 128 or 255 per thread.
template <class Source, bool Keeps>
INGOT_HOST_DEVICE constexpr u32 amax_partials_residency() {
  if (!Source::kFused) return 4;
  if (Keeps && kDeviceArch == 900 && Source::kMatrices <= 2 && sizeof(typename Source::Value) == 2) return 3;
  return kDeviceArch >= 1200 && Source::kMatrices > 1 ? 1 : 2;
}

// Keeps: writes the values to p.kept.
template <class Source, bool Keeps = false>
INGOT_KERNEL void INGOT_LAUNCH_BOUNDS(AmaxPartialsLaunch::kMaxThreads, (amax_partials_residency<Source, Keeps>()))
    amax_partials(const __grid_constant__ AmaxPartialsParams p) {
  using Launch = AmaxPartialsLaunch;
  using Value = typename Source::Value;
  constexpr u32 kVec8s = Launch::vec8s(sizeof(typename Source::In));
  const u32 threads = Source::kFused ? blockDim.x : Launch::kMaxThreads;
  const i64 length = Launch::segment(threads, sizeof(typename Source::In));  // of a segment
  __shared__ u32 warp_maxima[kMaxWarps];
  start_in_turn();

  const bool aligned = Source::aligned(p.source);
  const u32 segments = static_cast<u32>(ceil_div(p.source.cols, length));
  const u32 row_step = gridDim.x / segments;
  const u32 segment_step = gridDim.x % segments;
  i64 row = blockIdx.x / segments;
  u32 segment = blockIdx.x % segments;
  u32 maximum = 0;
  while (row < p.source.rows) {
    const i64 begin = segment * length;
    const i64 end = min_of(p.source.cols, begin + length);
    i64 scalars_from = begin;
    if (aligned) {
      Vec8<Value> values[kVec8s];
      const u32 whole = static_cast<u32>((end - begin) / kVec8);
      load_vec8s<Source, false>(p.source, Source::pointers_at(p.source, row, begin + i64{threadIdx.x} * kVec8), values,
                                [&](u32 i) -> Vec8Offset {
                                  return {0, i * threads * kVec8, i * threads + threadIdx.x < whole};
                                });
      INGOT_UNROLL
      for (u32 i = 0; i < kVec8s; ++i) maximum = max_of(maximum, amax_bits(values[i]));
      if constexpr (Keeps) {
        INGOT_UNROLL
        for (u32 i = 0; i < kVec8s; ++i) {
          const u32 at = i * threads + threadIdx.x;
          if (at < whole) p.kept.put(row, begin + i64{at} * kVec8, values[i]);
        }
      }
      scalars_from = end - end % kVec8;
    }
    INGOT_UNROLL_BY(1)
    for (i64 col = scalars_from + threadIdx.x; col < end; col += threads) {
      const Value value = Source::element(p.source, row, col);
      maximum = max_of(maximum, amax_bits(to_float(value)));
      if constexpr (Keeps) p.kept.put(row, col, value);
    }
    row += row_step;
    segment += segment_step;
    if (segment >= segments) {
      segment -= segments;
      ++row;
    }
  }
  maximum = block_max(maximum, warp_maxima);
  if (threadIdx.x == 0) p.amax[blockIdx.x] = amax_from_bits(maximum);
}

// A group of 32 to 1024 threads takes a row, about two times 8 elements per thread; a block has at least 128 threads,
// so it may hold several groups. Rows may have any length: the threads loop.
struct RowsLaunch {
  static constexpr u32 kMaxThreadsLog2 = 10;
  static constexpr u32 kMaxThreads = 1U << kMaxThreadsLog2;
  static constexpr u32 kMinThreads = 128;  // in a block
  static constexpr i64 kMaxBlocks = 0x7fffffff;
  INGOT_HOST_DEVICE static constexpr u32 threads_log2(i64 cols) {  // per row
    u32 log2 = 5;
    while (log2 < kMaxThreadsLog2 && (i64{kVec8} << (log2 + 1)) < cols) ++log2;
    return log2;
  }
  INGOT_HOST_DEVICE static constexpr u32 threads_per_row(i64 cols) { return 1U << threads_log2(cols); }
  INGOT_HOST_DEVICE static constexpr u32 threads(i64 cols) { return max_of(kMinThreads, threads_per_row(cols)); }
  INGOT_HOST_DEVICE static constexpr i64 rows_per_block(i64 cols) { return threads(cols) / threads_per_row(cols); }
  INGOT_HOST_DEVICE static constexpr i64 grid(i64 rows, i64 cols) {
    return min_of(kMaxBlocks, ceil_div(rows, rows_per_block(cols)));
  }
};

struct AmaxRowsParams {
  SourceParams source;
  float* amax;       // [rows]
  u32 threads_log2;  // log2 of the threads per row
};

// The largest |value| that one thread of a row's group sees, as bits.
template <class Source>
INGOT_DEVICE u32 amax_of_row(const SourceParams& p, i64 row, bool aligned, u32 lane, u32 threads) {
  u32 maximum = 0;
  i64 scalars_from = 0;
  if (aligned) {
    scalars_from = p.cols - p.cols % kVec8;
    INGOT_UNROLL_BY(2)
    for (i64 col = i64{lane} * kVec8; col < scalars_from; col += i64{threads} * kVec8) {
      maximum = max_of(maximum, amax_bits(Source::load(p, row, col)));
    }
  }
  INGOT_UNROLL_BY(1)
  for (i64 col = scalars_from + lane; col < p.cols; col += threads) {
    maximum = max_of(maximum, amax_bits(to_float(Source::element(p, row, col))));
  }
  return maximum;
}

template <class Source>
INGOT_KERNEL void INGOT_LAUNCH_BOUNDS(RowsLaunch::kMaxThreads, 1) amax_rows(const __grid_constant__ AmaxRowsParams p) {
  __shared__ u32 warp_maxima[kMaxWarps];
  start_in_turn();
  const u32 threads = 1U << p.threads_log2;
  const u32 lane = threadIdx.x & (threads - 1);
  const u32 rows_per_block = blockDim.x >> p.threads_log2;
  const bool aligned = Source::aligned(p.source);
  for (i64 first_row = i64{blockIdx.x} * rows_per_block; first_row < p.source.rows;
       first_row += i64{gridDim.x} * rows_per_block) {
    const i64 row = first_row + (threadIdx.x >> p.threads_log2);
    u32 maximum = 0;
    if (row < p.source.rows) maximum = amax_of_row<Source>(p.source, row, aligned, lane, threads);
    maximum = group_max(maximum, threads, warp_maxima);
    if (row < p.source.rows && lane == 0) p.amax[row] = amax_from_bits(maximum);
  }
}

// ---- Several maxima at once --------------------------------------------------------------------------------------

// An array is null if its maxima are not wanted; otherwise it holds zeros or earlier maxima, which are raised, as bits
// (floats that are not negative order as their bits do).
struct AmaxTilesParams {
  SourceParams source;
  u32* tensor;        // [1]
  u32* rows;          // [rows]
  u32* columns;       // [cols]
  KeptValues kept{};  // if the kernel keeps values
};

// How many blocks of a kernel with this many registers per thread a multiprocessor has registers for: it has 65536 of
// them, allocated to a warp in units of 256.
INGOT_HOST_DEVICE constexpr i64 resident_blocks(i64 registers, i64 threads) {
  return max_of(i64{1}, 65536 / (ceil_div(registers, i64{8}) * 8 * threads));
}

struct AmaxTilesLaunch {
  static constexpr u32 kThreads = 256;
  static constexpr u32 kWarps = kThreads / 32;
  static constexpr u32 kRowsPerWarp = 8;
  static constexpr i64 kCols = 32 * kVec8;
  static constexpr i64 kRows = kWarps * kRowsPerWarp;
  // As many blocks as are resident at once, the same number for each strip of columns: a block goes down its strip in
  // steps of kRows rows, and raises its columns' maxima only once. The blocks of a strip take these steps in turn, so
  // that at the end the L2 holds the end of the matrix. Where that would leave a fifth of the GPU idle, as with many
  // strips, there are at least four times as many blocks, so that the last of them find little of it idle.
  static constexpr i64 kWavesOtherwise = 4;
  INGOT_HOST_DEVICE static constexpr i64 grid(i64 rows, i64 cols, i64 resident) {
    const i64 strips = ceil_div(cols, kCols);
    const i64 in_one_wave = resident / strips;
    const bool fills = in_one_wave * strips * 5 >= resident * 4;
    const i64 blocks = fills ? in_one_wave : ceil_div(kWavesOtherwise * resident, strips);
    return strips * max_of(i64{1}, min_of(ceil_div(rows, kRows), blocks));
  }
};

template <class Source>
INGOT_HOST_DEVICE constexpr u32 amax_tiles_residency() {
  constexpr bool kWide = is_wide<Source>();
  if (Source::kMatrices > 1) return kWide || Source::kMatrices > 2 || kDeviceArch >= 1000 ? 1 : 2;
  if (Source::kColumns > 2 && kDeviceArch >= 1000) return 1;
  return kWide || Source::kOperands > 0 ? 2 : Source::kFused ? 3 : 4;
}

// The kernel's template arguments that are not types: of what it raises the maxima, and whether it writes the values to
// p.kept.
struct AmaxTilesConfig {
  bool tensor = false, rows = false, columns = false;
  bool keeps = false;
};

// A warp takes 256 columns of 8 neighbouring rows and loads them all before it looks at the first; a block takes 64
// rows at a time.
template <class Source, AmaxTilesConfig C>
INGOT_KERNEL void INGOT_LAUNCH_BOUNDS(AmaxTilesLaunch::kThreads, (amax_tiles_residency<Source>()))
    amax_tiles(const __grid_constant__ AmaxTilesParams p) {
  using Launch = AmaxTilesLaunch;
  using Value = typename Source::Value;
  __shared__ u32 warp_maxima[kMaxWarps];
  __shared__ u32 column_maxima[C.columns ? Launch::kWarps : 1][Launch::kCols];
  start_in_turn();
  const u32 warp = threadIdx.x / 32;
  const u32 lane = threadIdx.x % 32;
  const u32 strips = static_cast<u32>(ceil_div(p.source.cols, Launch::kCols));
  const i64 first_col = i64{blockIdx.x % strips} * Launch::kCols;
  const i64 row_step = i64{gridDim.x / strips} * Launch::kRows;
  const i64 cols_left = p.source.cols - first_col;
  const bool aligned = Source::aligned(p.source) && (cols_left >= Launch::kCols || p.source.cols % kVec8 == 0);

  u32 maximum = 0;
  ColumnMaxima<Value> columns;
  if (C.columns && !aligned) {
    INGOT_UNROLL
    for (u32 i = 0; i < kVec8; ++i) column_maxima[warp][i * 32 + lane] = 0;
  }
  INGOT_UNROLL_BY(1)
  for (i64 first_row = i64{blockIdx.x / strips} * Launch::kRows + warp * Launch::kRowsPerWarp;
       first_row < p.source.rows; first_row += row_step) {
    const i64 rows_left = p.source.rows - first_row;
    u32 of_row = 0;  // the maximum of row first_row + lane
    const auto take_row = [&](u32 r, u32 bits) {
      maximum = max_of(maximum, bits);
      if constexpr (C.rows) {
        bits = __reduce_max_sync(0xffffffffU, bits);
        if (lane == r) of_row = bits;
      }
    };
    if (aligned) {
      Vec8<Value> values[Launch::kRowsPerWarp];
      load_vec8s<Source, true>(p.source, Source::pointers_at(p.source, first_row, first_col + lane * kVec8), values,
                               [&](u32 r) -> Vec8Offset {
                                 return {r, 0, r < rows_left && lane * kVec8 < cols_left};
                               });
      INGOT_UNROLL
      for (u32 r = 0; r < Launch::kRowsPerWarp; ++r) {
        take_row(r, amax_bits(values[r]));
        if constexpr (C.columns) columns.take(values[r]);
      }
      if (C.keeps && lane * kVec8 < cols_left) {
        INGOT_UNROLL
        for (u32 r = 0; r < Launch::kRowsPerWarp; ++r) {
          if (r < rows_left) p.kept.put(first_row + r, first_col + lane * kVec8, values[r]);
        }
      }
    } else {
      INGOT_UNROLL_BY(1)
      for (u32 r = 0; r < Launch::kRowsPerWarp; ++r) {
        u32 row_maximum = 0;
        INGOT_UNROLL_BY(1)
        for (u32 col = lane; col < Launch::kCols && col < cols_left && r < rows_left; col += 32) {
          const Value value = Source::element(p.source, first_row + r, first_col + col);
          const u32 bits = amax_bits(to_float(value));
          if constexpr (C.keeps) p.kept.put(first_row + r, first_col + col, value);
          row_maximum = max_of(row_maximum, bits);
          if constexpr (C.columns) column_maxima[warp][col] = max_of(column_maxima[warp][col], bits);
        }
        take_row(r, row_maximum);
      }
    }
    // Neighbouring threads raise neighbouring rows: one request to the memory instead of eight.
    if constexpr (C.rows) {
      if (lane < Launch::kRowsPerWarp && lane < rows_left) raise_maximum(p.rows + first_row + lane, of_row);
    }
  }
  if (C.columns && aligned) {
    INGOT_UNROLL
    for (u32 i = 0; i < kVec8; ++i) column_maxima[warp][lane * kVec8 + i] = columns.bits(i);
  }

  if constexpr (C.columns) {
    __syncthreads();
    u32 column = 0;
    INGOT_UNROLL
    for (u32 w = 0; w < Launch::kWarps; ++w) column = max_of(column, column_maxima[w][threadIdx.x]);
    if (threadIdx.x < cols_left) raise_maximum(p.columns + first_col + threadIdx.x, column);
  }
  if constexpr (C.tensor) {
    maximum = group_max(maximum, Launch::kThreads, warp_maxima);
    if (threadIdx.x == 0) raise_maximum(p.tensor, maximum);
  }
}

}  // namespace ingot
