// Dynamic casts to FP8: codes = encode(saturate(f32(x) * scale)), the same codes transposed, and the factors 1 / scale.
//
// cast_rows: one scale per row, codes only, in one launch. Moves each input byte and each code once: a row stays in its
// threads' registers between its amax and its codes (longer rows are read again, from the L2).
//
// cast_tiles: everything else, after a pass that left the maxima (amax.cuh). Moves each input byte (again) and each
// code once. A block takes a tile of 128 x 128, last tile first: what the first pass read last is still in the L2. A
// thread holds 8 rows x 8 columns, encodes them, stores the codes 8 bytes at a time, transposes bytes in registers and
// leaves 8 bytes of each of its columns in shared memory, from where the transposed tile goes out 16 bytes at a time.
// Codes are stored past the L2, which is better used for the input. Tiles that are cut by the edge, or whose rows do
// not start at multiples of 16 bytes, go element by element through the same shared memory.
#pragma once

#include "amax.cuh"
#include "memory.cuh"
#include "platform.cuh"
#include "reduce.cuh"
#include "scaling.cuh"

namespace ingot {

// The codes of one 16-byte vector, the first in the low byte: 4 (f32) or 8.
template <Fp8Format Out>
INGOT_HOST_DEVICE u32 quantize(const Vector<f32>& values, float scale) {
  const U32x4 v = values.bits;
  const u32 low = encode_pair<Out>(float_from_bits(v.x) * scale, float_from_bits(v.y) * scale);
  const u32 high = encode_pair<Out>(float_from_bits(v.z) * scale, float_from_bits(v.w) * scale);
  return low | high << 16;
}

template <Fp8Format Out, HighPrecision In>
INGOT_HOST_DEVICE u32 quantize_words(u32 first, u32 second, float scale) {
  const u32 low = encode_pair<Out>(low_element(first, In{}) * scale, high_element(first, In{}) * scale);
  const u32 high = encode_pair<Out>(low_element(second, In{}) * scale, high_element(second, In{}) * scale);
  return low | high << 16;
}

template <Fp8Format Out, HighPrecision In>
requires(sizeof(In) == 2) INGOT_HOST_DEVICE U32x2 quantize(const Vector<In>& values, float scale) {
  const U32x4 v = values.bits;
  return {quantize_words<Out, In>(v.x, v.y, scale), quantize_words<Out, In>(v.z, v.w, scale)};
}

// ---- Rows --------------------------------------------------------------------------------------------------------

struct CastRowsParams {
  const void* input;  // In[rows, cols]
  void* codes;        // Out[rows, cols]
  float* factors;     // [rows]
  i64 rows, cols;
  i64 input_stride, codes_stride;  // elements
};

// Threads and grid as for amax_rows.
struct CastRowsLaunch : RowsLaunch {
  static constexpr u32 kVectors = 4;  // 16-byte vectors that a thread can keep
};

template <HighPrecision In, Fp8Format Out, bool Pow2>
INGOT_KERNEL void INGOT_LAUNCH_BOUNDS(RowsLaunch::kMaxThreads, 1) cast_rows(const CastRowsParams p) {
  using Launch = CastRowsLaunch;
  constexpr u32 kWidth = kPerVector<In>;
  __shared__ u32 warp_maxima[kMaxWarps];
  const u32 threads = Launch::threads_per_row(p.cols, sizeof(In));
  const u32 lane = threadIdx.x % threads;
  const u32 rows_per_block = blockDim.x / threads;
  const bool vectorised = p.cols % kWidth == 0 && vector_aligned<In>(p.input, p.input_stride) &&
                          rows_aligned<Out>(p.codes, p.codes_stride, kWidth);
  const bool kept = vectorised && p.cols <= i64{threads} * Launch::kVectors * kWidth;

  for (i64 first_row = i64{blockIdx.x} * rows_per_block; first_row < p.rows;
       first_row += i64{gridDim.x} * rows_per_block) {
    const i64 row = first_row + threadIdx.x / threads;
    const bool active = row < p.rows;
    const In* source = static_cast<const In*>(p.input) + row * p.input_stride;
    Vector<In> values[Launch::kVectors];
    u32 maximum = 0;
    if (active && kept) {
      INGOT_UNROLL
      for (u32 i = 0; i < Launch::kVectors; ++i) {
        const i64 col = (i * i64{threads} + lane) * kWidth;
        if (col < p.cols) values[i] = load_vector(source + col);
      }
      INGOT_UNROLL
      for (u32 i = 0; i < Launch::kVectors; ++i) maximum = max_of(maximum, amax_bits(values[i]));
    } else if (active) {
      maximum = amax_of_row(source, p.cols, vectorised, lane, threads);
    }
    maximum = group_max(maximum, threads, warp_maxima);
    if (!active) continue;

    const float scale = scale_from_amax<Out, Pow2>(amax_from_bits(maximum));
    if (lane == 0) p.factors[row] = factor_from_scale(scale);
    Out* codes = static_cast<Out*>(p.codes) + row * p.codes_stride;
    if (kept) {
      INGOT_UNROLL
      for (u32 i = 0; i < Launch::kVectors; ++i) {
        const i64 col = (i * i64{threads} + lane) * kWidth;
        if (col < p.cols) store_streaming(codes + col, quantize<Out>(values[i], scale));
      }
    } else if (vectorised) {
      INGOT_UNROLL_BY(1)
      for (i64 col = i64{lane} * kWidth; col < p.cols; col += i64{threads} * kWidth) {
        store_streaming(codes + col, quantize<Out>(load_vector(source + col), scale));
      }
    } else {
      INGOT_UNROLL_BY(1)
      for (i64 col = lane; col < p.cols; col += threads) codes[col] = quantize<Out>(to_float(source[col]), scale);
    }
  }
}

// ---- Tiles -------------------------------------------------------------------------------------------------------

struct CastTilesParams {
  const void* input;  // In[rows, cols]
  const float* amax;  // Tensorwise: partial maxima; Rowwise: one per row
  i64 amax_count;
  void* codes;       // Out[rows, cols], if Codes
  void* transposed;  // Out[cols, rows], if Transposed
  float* factors;    // Tensorwise: [1]; Rowwise: [rows]
  i64 rows, cols;
  i64 input_stride, codes_stride, transposed_stride;  // elements
};

struct CastTilesLaunch {
  static constexpr u32 kThreads = 256;
  static constexpr i64 kTile = 128;  // rows and columns
  INGOT_HOST_DEVICE static constexpr i64 grid(i64 rows, i64 cols) {
    return ceil_div(rows, kTile) * ceil_div(cols, kTile);
  }
};

// The transposed tile in shared memory. Whole tiles: 128 bytes per column, 16 rows to a 16-byte slot; the slot of rows
// 16 s .. 16 s + 15 is s ^ (column / 8 % 8), and its two halves are swapped in columns 64 and up. So the 16 threads
// that write 8 bytes together (16 column groups, the same rows) and the 8 that read 16 bytes together (one column) each
// touch every bank once. Cut tiles: 132 bytes per column, so that neighbouring columns lie in neighbouring banks.
struct StagedTile {
  static constexpr u32 kCutPitch = 132;
  static constexpr u32 kBytes = 128 * kCutPitch;
  // Rows 8 * group .. 8 * group + 7 of a column.
  INGOT_HOST_DEVICE static constexpr u32 half_slot(u32 col, u32 group) {
    return col * 128 + (((group / 2) ^ (col / 8 % 8)) * 16) + (((group % 2) ^ (col / 64)) * 8);
  }
  // Rows 16 * slot .. 16 * slot + 15 of a column.
  INGOT_HOST_DEVICE static constexpr u32 slot(u32 col, u32 index) { return col * 128 + ((index ^ (col / 8 % 8)) * 16); }
};

// 4 x 4 bytes: byte c of rows[r] becomes byte r of columns[c].
INGOT_DEVICE void transpose_bytes(const u32 (&rows)[4], u32 (&columns)[4]) {
  const u32 low01 = __byte_perm(rows[0], rows[1], 0x5140);   // a0 b0 a1 b1
  const u32 low23 = __byte_perm(rows[2], rows[3], 0x5140);   // c0 d0 c1 d1
  const u32 high01 = __byte_perm(rows[0], rows[1], 0x7362);  // a2 b2 a3 b3
  const u32 high23 = __byte_perm(rows[2], rows[3], 0x7362);  // c2 d2 c3 d3
  columns[0] = __byte_perm(low01, low23, 0x5410);
  columns[1] = __byte_perm(low01, low23, 0x7632);
  columns[2] = __byte_perm(high01, high23, 0x5410);
  columns[3] = __byte_perm(high01, high23, 0x7632);
}

template <HighPrecision In, Fp8Format Out, class Granularity, bool Codes, bool Transposed, bool Pow2>
INGOT_KERNEL void INGOT_LAUNCH_BOUNDS(CastTilesLaunch::kThreads, sizeof(In) == 4 || !has_hardware_encode<Out>() ? 2 : 3)
    cast_tiles(const CastTilesParams p) {
  using Launch = CastTilesLaunch;
  constexpr bool kRowScales = is_same<Granularity, Rowwise>;
  constexpr i64 kTile = Launch::kTile;
  constexpr u32 kHeld = 8;                          // rows and columns of a thread
  constexpr u32 kVectors = kHeld / kPerVector<In>;  // per row: 1, or 2 for f32
  constexpr u32 kThreadsPerRow = static_cast<u32>(kTile) / kHeld;
  alignas(16) __shared__ u8 staged[Transposed ? StagedTile::kBytes : 16];
  __shared__ float row_scales[kRowScales ? kTile : 1];
  __shared__ u32 warp_maxima[kMaxWarps];

  const u32 tiles_across = static_cast<u32>(ceil_div(p.cols, kTile));
  const u32 tile = gridDim.x - 1 - blockIdx.x;
  const i64 first_row = tile / tiles_across * kTile;
  const i64 first_col = tile % tiles_across * kTile;
  const In* input = static_cast<const In*>(p.input) + first_row * p.input_stride + first_col;
  Out* codes = Codes ? static_cast<Out*>(p.codes) + first_row * p.codes_stride + first_col : nullptr;
  Out* transposed =
      Transposed ? static_cast<Out*>(p.transposed) + first_col * p.transposed_stride + first_row : nullptr;
  const bool whole = first_row + kTile <= p.rows && first_col + kTile <= p.cols &&
                     vector_aligned<In>(p.input, p.input_stride) &&
                     (!Codes || rows_aligned<Out>(p.codes, p.codes_stride, 8)) &&
                     (!Transposed || rows_aligned<Out>(p.transposed, p.transposed_stride, 16));

  // 1. The thread's part of the tile: on its way while the scale is worked out.
  const u32 held_row = threadIdx.x / kThreadsPerRow * kHeld;
  const u32 held_col = threadIdx.x % kThreadsPerRow * kHeld;
  Vector<In> values[kHeld][kVectors];
  if (whole) {
    INGOT_UNROLL
    for (u32 r = 0; r < kHeld; ++r) {
      const In* source = input + (held_row + r) * p.input_stride + held_col;
      INGOT_UNROLL
      for (u32 v = 0; v < kVectors; ++v) {
        // f32: two loads share each line, and the L1 serves the second.
        if constexpr (kVectors == 1) {
          values[r][v].bits = load16_once(source);
        } else {
          values[r][v].bits = load16(source + v * kPerVector<In>);
        }
      }
    }
  }

  // 2. The scales, and their factors from the blocks that come first.
  float scale = 0.0F;
  if constexpr (kRowScales) {
    if (threadIdx.x < kTile) {
      const i64 row = first_row + threadIdx.x;
      if (row < p.rows) {
        scale = scale_from_amax<Out, Pow2>(p.amax[row]);
        if (first_col == 0) p.factors[row] = factor_from_scale(scale);
      }
      row_scales[threadIdx.x] = scale;
    }
    __syncthreads();
  } else {
    u32 maximum = 0;
    INGOT_UNROLL_BY(1)
    for (i64 i = threadIdx.x; i < p.amax_count; i += Launch::kThreads) maximum = max_of(maximum, float_bits(p.amax[i]));
    maximum = group_max(maximum, Launch::kThreads, warp_maxima);
    scale = scale_from_amax<Out, Pow2>(float_from_bits(maximum));
    if (tile == 0 && threadIdx.x == 0) p.factors[0] = factor_from_scale(scale);
  }

  if (!whole) {
    const u32 rows = static_cast<u32>(min_of(kTile, p.rows - first_row));
    const u32 cols = static_cast<u32>(min_of(kTile, p.cols - first_col));
    INGOT_UNROLL_BY(1)
    for (u32 i = threadIdx.x; i < rows * 128; i += Launch::kThreads) {
      const u32 row = i / 128;
      const u32 col = i % 128;
      if (col >= cols) continue;
      const float value = to_float(input[row * p.input_stride + col]);
      const Out code = quantize<Out>(value, kRowScales ? row_scales[row] : scale);
      if constexpr (Codes) codes[row * p.codes_stride + col] = code;
      if constexpr (Transposed) staged[col * StagedTile::kCutPitch + row] = code.bits;
    }
    if constexpr (Transposed) {
      __syncthreads();
      INGOT_UNROLL_BY(1)
      for (u32 i = threadIdx.x; i < cols * 128; i += Launch::kThreads) {
        const u32 col = i / 128;
        const u32 row = i % 128;
        if (row < rows) transposed[col * p.transposed_stride + row] = Out{staged[col * StagedTile::kCutPitch + row]};
      }
    }
    return;
  }

  // 3. Codes: held[r] are the 8 of one row.
  U32x2 held[kHeld];
  INGOT_UNROLL
  for (u32 r = 0; r < kHeld; ++r) {
    if constexpr (kRowScales) scale = row_scales[held_row + r];
    if constexpr (kVectors == 1) {
      held[r] = quantize<Out>(values[r][0], scale);
    } else {
      held[r] = {quantize<Out>(values[r][0], scale), quantize<Out>(values[r][1], scale)};
    }
    if constexpr (Codes) store_streaming(codes + (held_row + r) * p.codes_stride + held_col, held[r]);
  }

  // 4. The same, transposed.
  if constexpr (Transposed) {
    INGOT_UNROLL
    for (u32 side = 0; side < 2; ++side) {
      u32 rows[2][4];
      u32 columns[2][4];
      INGOT_UNROLL
      for (u32 r = 0; r < kHeld; ++r) rows[r / 4][r % 4] = side == 0 ? held[r].x : held[r].y;
      transpose_bytes(rows[0], columns[0]);
      transpose_bytes(rows[1], columns[1]);
      INGOT_UNROLL
      for (u32 c = 0; c < 4; ++c) {
        u8* target = staged + StagedTile::half_slot(held_col + side * 4 + c, held_row / kHeld);
        *reinterpret_cast<U32x2*>(target) = U32x2{columns[0][c], columns[1][c]};
      }
    }
    __syncthreads();
    constexpr u32 kSlots = static_cast<u32>(kTile) / 16;
    const u32 slot = threadIdx.x % kSlots;
    INGOT_UNROLL
    for (u32 first = 0; first < kTile; first += Launch::kThreads / kSlots) {
      const u32 col = first + threadIdx.x / kSlots;
      U32x4 bytes = *reinterpret_cast<const U32x4*>(staged + StagedTile::slot(col, slot));
      if (first >= 64) bytes = {bytes.z, bytes.w, bytes.x, bytes.y};
      store_streaming(transposed + col * p.transposed_stride + slot * 16, bytes);
    }
  }
}

}  // namespace ingot
