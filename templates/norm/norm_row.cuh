// One row of norm_rows and norm_rows_wide: the kernels' parameters, where the row is, its
// statistics, and the arithmetic of 8 columns (formulas: codegen/norm/norm_spec.h).
#pragma once

#include "memory.cuh"
#include "norm/norm.cuh"
#include "numerics.cuh"
#include "platform.cuh"
#include "reduce.cuh"
#include "scaling.cuh"
#include "vec8.cuh"

namespace ingot {

struct NormRowsParams {
  const void* input;  // In[rows, cols]
  i64 rows, cols;
  i64 input_stride;   // elements
  const void* gamma;  // In[cols], if affine
  const void* beta;   // In[cols], if affine and LayerNorm
  float eps, inverse_cols;
  float* mean;   // [rows]; null if not wanted
  float* rstd;   // [rows]; null if not wanted
  void* result;  // In[rows, cols], if NormRowsConfig::result
  i64 result_stride;
  void* codes;  // Codes[rows, cols]
  i64 codes_stride;
  float* factors;      // codes: [rows] if dynamic, [1] if the scale is given
  const float* scale;  // if the scale is given
  u32* amax;           // if the scale is given
  u32 threads_log2;    // log2 of the threads that share a row
  u32 slot_rows;       // for how many rows a thread has slots in shared memory: 0 or 1
  bool pow2;
  bool one_turn;  // does each group of threads take one row of whole vec8s? (NormRowsLaunch::one_turn)
};

// In place of Codes: the kernel writes no codes.
struct NoCodes {};

// A group of 32 to 512 threads takes a row, four times 8 columns per thread: 256 threads take 8192 columns. A block has
// at least 128 threads, so it may hold several groups.
struct NormRowsLaunch {
  static constexpr u32 kMaxThreads = 512;
  static constexpr u32 kMinThreads = 128;  // in a block
  static constexpr u32 kVec8s = 4;         // groups of 8 columns that a thread keeps in registers
  static constexpr i64 kMaxCols = i64{kMaxThreads} * kVec8s * kVec8;  // of rows that stay in registers
  static constexpr i64 kMaxBlocks = 0x7fffffff;
  static constexpr i64 kThreadsAtOnce = 1024;  // on a multiprocessor, as registers allow
  INGOT_HOST_DEVICE static constexpr u32 threads_log2(i64 cols) { return norm_threads_log2(cols, kVec8s); }
  INGOT_HOST_DEVICE static constexpr u32 threads_per_row(i64 cols) { return 1U << threads_log2(cols); }
  INGOT_HOST_DEVICE static constexpr u32 threads(i64 cols) { return max_of(kMinThreads, threads_per_row(cols)); }
  INGOT_HOST_DEVICE static constexpr i64 rows_per_block(i64 cols) { return threads(cols) / threads_per_row(cols); }
  // Does each thread copy its part of the next row to slots in shared memory, for a row that can be read in vectors?
  // That is faster where instructions bound the kernel: they leave out the groups of columns that a row has not, and
  // overlap with the copies. Up to 8192 columns, kernels that write values are bound by the memory, and those of
  // LayerNorm's codes up to 4096 by what a row waits for: there blocks of one row each, all groups at once, are faster.
  INGOT_HOST_DEVICE static constexpr bool has_slots(i64 cols, u32 element_bytes, bool codes, bool result,
                                                    bool centred) {
    if (element_bytes != 2 || cols > kMaxCols) return false;
    const bool full = cols * 8 > threads_per_row(cols) * i64{kVec8s * kVec8} * 7;
    return !full || cols > 8192 || always_slots(codes, result, centred) || (codes && !result && cols > 4096);
  }
  INGOT_HOST_DEVICE static constexpr bool always_slots(bool codes, bool result, bool centred) {
    return codes && !result && !centred;
  }
  INGOT_HOST_DEVICE static constexpr u32 slot_bytes(i64 cols) { return threads(cols) * kVec8s * 16; }
  // Does each group of threads take one row of whole vec8s? Then the kernel has a short way (norm_rows.cuh). `vectors`:
  // can rows be read and written 8 elements at a time? Without slots there is a group of threads for each row: rows
  // that do not fill their threads have slots, and no GPU has memory for more rows of those that do than a launch has
  // blocks.
  INGOT_HOST_DEVICE static constexpr bool one_turn(i64 cols, u32 element_bytes, bool vectors, u32 slot_rows) {
    return vectors && element_bytes == 2 && cols <= kMaxCols && slot_rows == 0;
  }
  // At least one block: a given scale's factor is written even if there are no rows. With slots no more than run at
  // once, so that each takes many rows.
  INGOT_HOST_DEVICE static constexpr i64 grid(i64 rows, i64 cols, bool slots, i64 multiprocessors) {
    const i64 most = slots ? multiprocessors * (kThreadsAtOnce / threads(cols)) : kMaxBlocks;
    return max_of(i64{1}, min_of(most, ceil_div(rows, rows_per_block(cols))));
  }
};

// The kernel's template arguments that are not types.
struct NormRowsConfig {
  bool affine = false;       // multiplies by gamma; LayerNorm also adds beta
  bool given_scale = false;  // one for all rows; else each row has its own
  bool result = false;       // writes the values themselves
};

template <class In, class Kind, class Codes, NormRowsConfig C>
struct NormRow {
  using Element = In;
  static constexpr bool kSubtractsMean = kCentred<Kind>;
  static constexpr bool kGivenScale = C.given_scale;
  static constexpr bool kWritesResult = C.result;
  static constexpr bool kWritesCodes = !is_same<Codes, NoCodes>;
  static constexpr bool kWritesValues = kWritesCodes || C.result;
  static constexpr bool kCodesAlone = kWritesCodes && !C.result;
  // Do zeros not give zeros? Where gamma and beta are 0, they do, as long as rstd is finite.
  static constexpr bool kNeverZero = kCentred<Kind> && !C.affine;
  static constexpr u32 kVec8s = NormRowsLaunch::kVec8s;

  const NormRowsParams& p;
  i64 row;
  u32 lane, threads;
  float mean = 0.0F, rstd = 0.0F, scale = 0.0F;

  INGOT_DEVICE bool active() const { return row < p.rows; }
  INGOT_DEVICE const In* input() const { return static_cast<const In*>(p.input) + row * p.input_stride; }
  INGOT_DEVICE In* result() const { return static_cast<In*>(p.result) + row * p.result_stride; }
  INGOT_DEVICE Codes* codes() const { return static_cast<Codes*>(p.codes) + row * p.codes_stride; }

  INGOT_DEVICE static bool vectors(const NormRowsParams& p) {
    return vector_aligned<In>(p.input, p.input_stride) && (!C.affine || aligned(p.gamma, 16)) &&
           (!C.affine || !kCentred<Kind> || aligned(p.beta, 16)) &&
           (!C.result || vector_aligned<In>(p.result, p.result_stride)) &&
           (!kWritesCodes || rows_aligned<u8>(p.codes, p.codes_stride, kVec8));
  }

  INGOT_DEVICE void take_sum(float sum) { mean = sum * p.inverse_cols; }
  INGOT_DEVICE void take_squares(float sum) {
    rstd = norm_rstd(sum, p.inverse_cols, p.eps);
    if (!active() || lane != 0) return;
    if (p.mean != nullptr) p.mean[row] = mean;
    if (p.rstd != nullptr) p.rstd[row] = rstd;
  }
  INGOT_DEVICE void take_maximum(u32 bits) {
    if constexpr (C.given_scale) {
      scale = *p.scale;
      if (active() && lane == 0) raise_maximum(p.amax, bits);
    } else {
      scale = scale_from_amax<Codes>(amax_from_bits(bits), p.pow2);
      if (active() && lane == 0) p.factors[row] = factor_from_dynamic_scale(scale);
    }
  }

  // The sum of the squares of 8 elements; those from `left` on are past the end of the row and count as 0.
  INGOT_DEVICE float sum_of_squares(float (&x)[kVec8], i64 left) const {
    INGOT_UNROLL
    for (u32 c = 0; c < kVec8; ++c) {
      const float centred = kCentred<Kind> && c < left ? x[c] - mean : x[c];
      x[c] = centred * centred;
    }
    return vec8_sum(x);
  }

  // The gamma and beta of 8 columns, if the norm has them.
  struct AffineVec8 {
    Vec8<In> gamma{}, beta{};
  };
  template <class LoadVector>
  INGOT_DEVICE AffineVec8 affine(LoadVector load) const {
    AffineVec8 vec8;
    if constexpr (C.affine) vec8.gamma = load(static_cast<const In*>(p.gamma));
    if constexpr (C.affine && kCentred<Kind>) vec8.beta = load(static_cast<const In*>(p.beta));
    return vec8;
  }

  // Turns 8 elements into the norm's values, rounded to In.
  INGOT_DEVICE Vec8<In> values(float (&x)[kVec8], const AffineVec8& affine) const {
    INGOT_UNROLL
    for (float& element : x) element = normalised<Kind>(element, mean, rstd);
    if constexpr (C.affine) {
      float factors[kVec8];
      unpack(affine.gamma, factors);
      [[maybe_unused]] float terms[kVec8];
      if constexpr (kCentred<Kind>) unpack(affine.beta, terms);
      INGOT_UNROLL
      for (u32 c = 0; c < kVec8; ++c) {
        if constexpr (kCentred<Kind>) {
          x[c] = fused_multiply_add(x[c], factors[c], terms[c]);
        } else {
          x[c] = x[c] * factors[c];
        }
      }
    }
    return pack<In>(x);
  }

  INGOT_DEVICE U32x2 quantized(const Vec8<In>& vec8) const {
    return quantize<Codes, C.given_scale>(vec8, [&](u32) { return scale; });
  }
};

struct NormRowsShared {
  alignas(16) float warp_sums[2][2][kMaxWarps];
  u32 warp_maxima[kMaxWarps];
};

}  // namespace ingot
