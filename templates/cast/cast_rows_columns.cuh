// The dynamic rowwise cast (cast_rows.cuh) of stacked matrices, which also finds the largest |value| of each column of
// each matrix: a later cast to transposed codes, with one scale for each column, needs no pass for them. It gives the
// same bits as cast_rows and cast_stack_maxima, and reads each input byte once.
//
// As many blocks as are resident at once share the rows of all matrices. A block takes neighbouring rows one after the
// other, each thread the same columns of each, whose maxima stay in its registers; it raises those in memory where its
// rows end, or a matrix does. The rows after the present one are on their way to slots in shared memory, which each
// thread fills and reads by itself.
#pragma once

#include "cast/amax.cuh"
#include "cast/cast_rows.cuh"
#include "cast/source.cuh"
#include "memory.cuh"
#include "platform.cuh"
#include "reduce.cuh"
#include "scaling.cuh"
#include "shared.cuh"
#include "vec8.cuh"

namespace ingot {

// All rows can be read and written 8 elements at a time.
struct CastRowsColumnsParams {
  SourceParams source;  // rows: of all matrices
  void* codes;          // Out[rows, cols]
  float* factors;       // [rows]
  u32* column_maxima;   // [matrices, cols], zeros: raised, as bits
  i64 codes_stride;     // elements
  i64 matrix_rows;      // of each matrix
  i64 rows_per_block;
  bool pow2;
};

struct CastRowsColumnsShared {
  u32 warp_maxima[2][kMaxWarps];  // of rows in turn
};

struct CastRowsColumnsLaunch {
  static constexpr u32 kMaxThreads = 768;
  static constexpr u32 kAhead = 2;  // rows in shared memory, and arrays of CastRowsColumnsShared
  // Raising the maxima of a few rows would take longer than the rows.
  static constexpr i64 kFewestRows = 4;
  // The widest rows that fit a block.
  INGOT_HOST_DEVICE static constexpr i64 most_cols(u64 value_bytes) {
    return i64{kMaxThreads} * CastRowsLaunch::vec8s(value_bytes) * kVec8;
  }
  INGOT_HOST_DEVICE static constexpr u32 threads(i64 cols, u64 value_bytes) {
    const i64 of_warp = i64{32} * CastRowsLaunch::vec8s(value_bytes) * kVec8;
    return static_cast<u32>(max_of(i64{1}, ceil_div(cols, of_warp))) * 32;
  }
  // The bytes of shared memory: what all threads share, the slots, and a vec8 of maxima for each thread.
  INGOT_HOST_DEVICE static constexpr u32 slot_bytes(u64 element_bytes, u64 value_bytes) {  // of a thread and a row
    return CastRowsLaunch::vec8s(value_bytes) * kVec8 * static_cast<u32>(element_bytes);
  }
  INGOT_HOST_DEVICE static constexpr u32 shared_bytes(u32 threads, u64 element_bytes, u64 value_bytes) {
    return static_cast<u32>(sizeof(CastRowsColumnsShared)) +
           threads * (kAhead * slot_bytes(element_bytes, value_bytes) + kVec8 * static_cast<u32>(sizeof(u32)));
  }
  INGOT_HOST_DEVICE static constexpr i64 rows_per_block(i64 rows, i64 resident) {
    return max_of(kFewestRows, ceil_div(rows, resident));
  }
  INGOT_HOST_DEVICE static constexpr i64 grid(i64 rows, i64 rows_per_block) { return ceil_div(rows, rows_per_block); }
};

template <class Source, Fp8Format Out>
struct CastRowsColumns {
  using In = typename Source::In;
  using Value = typename Source::Value;
  using Launch = CastRowsColumnsLaunch;
  static constexpr u32 kVec8s = CastRowsLaunch::vec8s(sizeof(Value));
  static constexpr u32 kVectors = Vec8<In>::kVectors;
  static_assert(!Source::kFused, "an expression's inputs have no slots");

  const CastRowsColumnsParams& p;

  INGOT_DEVICE static CastRowsColumnsShared& shared() { return dynamic_shared_as<CastRowsColumnsShared>(); }
  INGOT_DEVICE static u32 col_of(u32 i) { return (i * blockDim.x + threadIdx.x) * kVec8; }
  INGOT_DEVICE bool is_inside(u32 i) const { return col_of(i) < static_cast<u32>(p.source.cols); }

  // Vector v of the thread's vec8 i, in the slots of a row.
  INGOT_DEVICE static u32 slot(u32 turn, u32 i, u32 v) {
    constexpr u32 kOffset = static_cast<u32>(sizeof(CastRowsColumnsShared));
    const u32 index = (turn * kVec8s + i) * kVectors + v;
    return shared_memory() + kOffset + (index * blockDim.x + threadIdx.x) * 16;
  }

  // Starts the copies of a row.
  INGOT_DEVICE void fetch(const In* row, u32 turn) const {
    INGOT_UNROLL
    for (u32 i = 0; i < kVec8s; ++i) {
      if (!is_inside(i)) continue;
      INGOT_UNROLL
      for (u32 v = 0; v < kVectors; ++v) copy_async<16>(slot(turn, i, v), row + col_of(i) + v * kPerVector<In>, 16);
    }
  }

  INGOT_DEVICE Vec8<Value> value(u32 turn, u32 i) const {
    if (!is_inside(i)) return {};
    typename Source::Raw raw{};
    INGOT_UNROLL
    for (u32 v = 0; v < kVectors; ++v) raw.x.vectors[v].bits = load_shared16(slot(turn, i, v));
    return Source::values(raw, {});
  }

  // A warp's 256 neighbouring columns in each turn: its threads then raise 32 neighbouring ones at a time.
  INGOT_DEVICE void raise(const ColumnMaxima<Value> (&columns)[kVec8s], u32 matrix) const {
    constexpr u32 kOffset = static_cast<u32>(sizeof(CastRowsColumnsShared));
    const u32 lane = threadIdx.x % 32;
    u8* const memory = reinterpret_cast<u8*>(&shared()) + kOffset;
    auto* const words = reinterpret_cast<u32*>(memory + blockDim.x * Launch::kAhead * kVec8s * kVectors * 16) +
                        (threadIdx.x - lane) * kVec8;
    u32* const to = p.column_maxima + i64{matrix} * p.source.cols;
    INGOT_UNROLL
    for (u32 i = 0; i < kVec8s; ++i) {
      __syncwarp();
      INGOT_UNROLL
      for (u32 c = 0; c < kVec8; c += 4) {
        *reinterpret_cast<U32x4*>(words + lane * kVec8 + c) = {columns[i].bits(c), columns[i].bits(c + 1),
                                                               columns[i].bits(c + 2), columns[i].bits(c + 3)};
      }
      __syncwarp();
      const u32 first = col_of(i) - lane * kVec8;
      INGOT_UNROLL
      for (u32 k = 0; k < kVec8 * 32; k += 32) {
        const u32 col = first + k + lane;
        if (col < static_cast<u32>(p.source.cols)) raise_maximum(to + col, words[k + lane]);
      }
    }
  }

  INGOT_DEVICE void write(Out* codes, float* factor, u32 maximum, const Vec8<Value> (&values)[kVec8s]) const {
    const float scale = scale_from_amax<Out>(amax_from_bits(maximum), p.pow2);
    if (threadIdx.x == 0) *factor = factor_from_dynamic_scale(scale);
    INGOT_UNROLL
    for (u32 i = 0; i < kVec8s; ++i) {
      const U32x2 encoded = quantize<Out>(values[i], [&](u32) { return scale; });
      if (is_inside(i)) store_streaming(codes + col_of(i), encoded);
    }
  }

  // Takes so many rows from `first` on. Counters of 32 bits, and pointers that move on, leave registers to the maxima.
  INGOT_DEVICE void take(i64 first, u32 rows) const {
    const In* from = static_cast<const In*>(p.source.input) + first * p.source.input_stride;
    Out* codes = static_cast<Out*>(p.codes) + first * p.codes_stride;
    float* factor = p.factors + first;
    u32 matrix = static_cast<u32>(first / p.matrix_rows);
    u32 left = static_cast<u32>(min_of((matrix + i64{1}) * p.matrix_rows - first, i64{rows}));  // of this matrix
    u32 turn = 0;
    const auto fetch_next = [&](u32 before) {  // if there is one after so many
      if (before < rows) fetch(from, turn);
      commit_copies();
      from += p.source.input_stride;
      turn = turn + 1 == Launch::kAhead ? 0 : turn + 1;
    };
    INGOT_UNROLL
    for (u32 i = 0; i < Launch::kAhead; ++i) fetch_next(i);
    ColumnMaxima<Value> columns[kVec8s];
    INGOT_UNROLL_BY(1)
    for (; rows != 0; --rows) {
      wait_for_copies<Launch::kAhead - 1>();
      Vec8<Value> values[kVec8s];
      Vec8sMaximum<Value> maximum;
      INGOT_UNROLL
      for (u32 i = 0; i < kVec8s; ++i) {
        values[i] = value(turn, i);
        maximum.take(values[i]);
        columns[i].take(values[i]);
      }
      const u32 bits = block_max(maximum.bits(), shared().warp_maxima[turn]);
      fetch_next(Launch::kAhead);
      write(codes, factor, bits, values);
      codes += p.codes_stride;
      ++factor;
      if (--left != 0) continue;
      raise(columns, matrix);
      ++matrix;
      left = static_cast<u32>(min_of(i64{rows} - 1, p.matrix_rows));
      INGOT_UNROLL
      for (ColumnMaxima<Value>& each : columns) each = {};
    }
  }
};

// What the kernel asks ptxas for: 64 registers per thread for formats that sm_90's hardware encodes, and 80 for others
// and on other targets, where it spilled. No block has more than kMaxThreads threads.
template <Fp8Format Out>
INGOT_HOST_DEVICE constexpr u32 cast_rows_columns_bound() {
  return kDeviceArch == 900 && has_hardware_encode<Out>() ? 1024 : CastRowsColumnsLaunch::kMaxThreads;
}

template <class Source, Fp8Format Out>
INGOT_KERNEL void INGOT_LAUNCH_BOUNDS((cast_rows_columns_bound<Out>()), 1)
    cast_rows_columns(const __grid_constant__ CastRowsColumnsParams p) {
  start_in_turn();
  const i64 begin = i64{blockIdx.x} * p.rows_per_block;
  CastRowsColumns<Source, Out>{p}.take(begin, static_cast<u32>(min_of(p.source.rows - begin, p.rows_per_block)));
}

}  // namespace ingot
