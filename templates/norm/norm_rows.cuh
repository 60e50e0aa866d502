// LayerNorm or RMSNorm of each row of a matrix. The kernel writes any of the values, their FP8 codes and the statistics
// (formulas: codegen/norm/norm_spec.h; order of the sums: norm.cuh). It reads each input byte once and writes each
// output byte once, in one launch: a row stays in its threads' registers, first as elements and then as values, while
// its statistics and then its amax are found. Rows that are too long for that are read again, from the L2;
// norm_rows_wide.cuh takes long rows, where it can.
//
// A dynamic scale belongs to one row and comes from the row's values after they are rounded to the input's dtype. A
// given scale holds for the whole tensor; the kernel then raises the amax beside it to the largest |value|.
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
  bool pow2;
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
  INGOT_HOST_DEVICE static constexpr u32 threads_per_row(i64 cols) { return norm_threads_per_row(cols, kVec8s); }
  INGOT_HOST_DEVICE static constexpr u32 threads_log2(i64 cols) {
    u32 log2 = 5;
    while (1U << log2 < threads_per_row(cols)) ++log2;
    return log2;
  }
  INGOT_HOST_DEVICE static constexpr u32 threads(i64 cols) { return max_of(kMinThreads, threads_per_row(cols)); }
  INGOT_HOST_DEVICE static constexpr i64 rows_per_block(i64 cols) { return threads(cols) / threads_per_row(cols); }
  // At least one block: a given scale's factor is written even if there are no rows.
  INGOT_HOST_DEVICE static constexpr i64 grid(i64 rows, i64 cols) {
    return max_of(i64{1}, min_of(kMaxBlocks, ceil_div(rows, rows_per_block(cols))));
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
      if (active() && lane == 0) p.factors[row] = factor_from_scale(scale);
    }
  }

  // The sum of the squares of 8 elements; those from `left` on lie past the end of the row and count as 0.
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
      INGOT_UNROLL
      for (u32 c = 0; c < kVec8; ++c) x[c] = x[c] * factors[c];
      if constexpr (kCentred<Kind>) {
        float terms[kVec8];
        unpack(affine.beta, terms);
        INGOT_UNROLL
        for (u32 c = 0; c < kVec8; ++c) x[c] = x[c] + terms[c];
      }
    }
    return pack<In>(x);
  }

  INGOT_DEVICE U32x2 quantized(const Vec8<In>& vec8) const {
    return quantize<Codes, C.given_scale>(vec8, [&](u32) { return scale; });
  }
};

template <class In, u32 Count>
INGOT_DEVICE void forget_values(Vec8<In> (&vec8s)[Count]) {
  INGOT_UNROLL
  for (Vec8<In>& vec8 : vec8s) forget_values(vec8);
}

// Of how many vec8s gamma and beta are loaded at a time: as many as the registers hold.
template <class Row>
constexpr u32 kAffineBatch = min_of(Row::kVec8s, (Row::kSubtractsMean || Row::kGivenScale ? 4U : 8U) /
                                                     static_cast<u32>(sizeof(typename Row::Element)));

// A row that stays in registers. Access: WholeVec8s or PaddedVec8s.
template <class Row, class Access>
struct NormKeptRow {
  using In = typename Row::Element;
  static constexpr u32 kVec8s = Row::kVec8s;

  Row& r;
  Access access;

  INGOT_DEVICE u32 column(u32 i) const { return (i * r.threads + r.lane) * kVec8; }
  INGOT_DEVICE bool inside(u32 i) const { return r.active() && column(i) < static_cast<u32>(r.p.cols); }

  // Zeros past the end of the row add nothing to its sums.
  INGOT_DEVICE void load(Vec8<In> (&vec8s)[kVec8s]) const {
    INGOT_UNROLL
    for (u32 i = 0; i < kVec8s; ++i) {
      if (inside(i)) vec8s[i] = access.load_once(r.input(), column(i));
    }
  }

  // Turns the elements into the norm's values, zeros past the end of the row; writes them, if they are wanted, and
  // returns amax_bits() of the largest, if there are codes.
  INGOT_DEVICE u32 take_values(Vec8<In> (&vec8s)[kVec8s]) const {
    Vec8sMaximum<In> maximum;
    // One by one, elements take more registers on their way.
    constexpr u32 kBatch = is_same<Access, WholeVec8s> ? kAffineBatch<Row> : 1;
    INGOT_UNROLL
    for (u32 first = 0; first < kVec8s; first += kBatch) {
      typename Row::AffineVec8 affine[kBatch];
      INGOT_UNROLL
      for (u32 i = 0; i < kBatch; ++i) {
        if (!inside(first + i)) continue;
        affine[i] = r.affine([&](const In* vector) { return access.load_again(vector, column(first + i)); });
      }
      INGOT_UNROLL
      for (u32 i = first; i < first + kBatch; ++i) {
        float x[kVec8];
        unpack(vec8s[i], x);
        vec8s[i] = r.values(x, affine[i - first]);
        if constexpr (Row::kNeverZero) vec8s[i] = access.inside(vec8s[i], column(i));
        if (!inside(i)) vec8s[i] = {};
        if constexpr (Row::kWritesCodes) maximum.take(vec8s[i]);
        if constexpr (Row::kWritesResult) {
          if (inside(i)) access.store(r.result(), column(i), vec8s[i]);
        }
      }
    }
    return maximum.bits();
  }

  INGOT_DEVICE void store_codes(const Vec8<In> (&vec8s)[kVec8s]) const {
    INGOT_UNROLL
    for (u32 i = 0; i < kVec8s; ++i) {
      // One by one, elements take more registers on their way: no two vec8s at a time.
      if (!is_same<Access, WholeVec8s> && !inside(i)) continue;
      const U32x2 codes = r.quantized(vec8s[i]);
      if (inside(i)) access.store_codes(r.codes(), column(i), codes);
    }
  }

  INGOT_DEVICE void run(float (&warp_sums)[2][kMaxWarps][1], u32 (&warp_maxima)[kMaxWarps]) const {
    Vec8<In> vec8s[kVec8s] = {};
    load(vec8s);
    if constexpr (Row::kSubtractsMean) {
      float sums[1] = {0.0F};
      INGOT_UNROLL
      for (const Vec8<In>& vec8 : vec8s) {
        float x[kVec8];
        unpack(vec8, x);
        sums[0] = sums[0] + vec8_sum(x);
      }
      group_sums(sums, r.threads, warp_sums[0]);
      forget_values(vec8s);
      r.take_sum(sums[0]);
    }
    float squares[1] = {0.0F};
    INGOT_UNROLL
    for (u32 i = 0; i < kVec8s; ++i) {
      float x[kVec8];
      unpack(vec8s[i], x);
      const float sum = r.sum_of_squares(x, access.left(column(i)));
      squares[0] = squares[0] + (inside(i) ? sum : 0.0F);
    }
    group_sums(squares, r.threads, warp_sums[1]);
    forget_values(vec8s);
    r.take_squares(squares[0]);
    if constexpr (Row::kWritesValues) {
      const u32 maximum = take_values(vec8s);
      if constexpr (Row::kWritesCodes) {
        r.take_maximum(group_max(maximum, r.threads, warp_maxima));
        store_codes(vec8s);
      }
    }
  }
};

// Any other row is read once per pass. The passes share one loop, because more code would gain nothing.
template <class Row>
INGOT_DEVICE void norm_streamed_row(Row& r, float (&warp_sums)[2][kMaxWarps][1], u32 (&warp_maxima)[kMaxWarps]) {
  using In = typename Row::Element;
  enum : u32 { sum, squares, values, codes };
  constexpr u32 kFirst = Row::kSubtractsMean ? sum : squares;
  constexpr u32 kLast = Row::kWritesCodes ? codes : Row::kWritesValues ? values : squares;
  const i64 cols = r.p.cols;
  INGOT_UNROLL_BY(1)
  for (u32 pass = kFirst; pass <= kLast; ++pass) {
    const bool vectors = Row::vectors(r.p);  // computed again in each pass: there is no register to keep it
    float total[1] = {0.0F};
    u32 maximum = 0;
    INGOT_UNROLL_BY(1)
    for (i64 col = i64{r.lane} * kVec8; r.active() && col < cols; col += i64{r.threads} * kVec8) {
      float x[kVec8];
      load_padded(r.input(), col, cols, vectors, x);
      if (pass == sum) {
        total[0] = total[0] + vec8_sum(x);
      } else if (pass == squares) {
        total[0] = total[0] + r.sum_of_squares(x, cols - col);
      } else if constexpr (Row::kWritesValues) {
        const Vec8<In> vec8 = r.values(x, r.affine([&](const In* vector) {
          float loaded[kVec8];
          load_padded(vector, col, cols, vectors, loaded);
          return pack<In>(loaded);
        }));
        if (pass == values) {
          if constexpr (Row::kWritesResult) store_padded(r.result(), col, cols, vectors, vec8);
          unpack(vec8, x);
          INGOT_UNROLL
          for (u32 c = 0; c < kVec8; ++c) maximum = max_of(maximum, col + c < cols ? amax_bits(x[c]) : 0U);
        } else if constexpr (Row::kWritesCodes) {
          store_padded_codes(r.codes(), col, cols, vectors, r.quantized(vec8));
        }
      }
    }
    if (pass <= squares) {
      group_sums(total, r.threads, warp_sums[pass]);
      if (pass == sum) r.take_sum(total[0]);
      if (pass == squares) r.take_squares(total[0]);
    } else if constexpr (Row::kWritesCodes) {
      if (pass == values) r.take_maximum(group_max(maximum, r.threads, warp_maxima));
    }
  }
}

// Do rows that cannot be read in vectors stay in registers? On sm_80 and sm_120 they would spill. Without eps, rstd may
// be Inf, and then the zeros past the end of a row would become NaN.
inline constexpr bool kPaddedRowsStay = kDeviceArch != 800 && kDeviceArch < 1200;
inline constexpr float kLeastEpsToStay = 1.17549435e-38F;  // the smallest normal number

template <class In, class Kind, class Codes, NormRowsConfig C>
INGOT_KERNEL void INGOT_LAUNCH_BOUNDS(NormRowsLaunch::kMaxThreads, sizeof(In) == 2 ? 2 : 1)
    norm_rows(const __grid_constant__ NormRowsParams p) {
  using Launch = NormRowsLaunch;
  using Row = NormRow<In, Kind, Codes, C>;
  __shared__ float warp_sums[2][kMaxWarps][1];
  __shared__ u32 warp_maxima[kMaxWarps];
  start_in_turn();
  const u32 threads = 1U << p.threads_log2;
  const u32 rows_per_block = blockDim.x >> p.threads_log2;
  const bool vectors = Row::vectors(p);
  const bool kept = p.cols <= i64{threads} * Launch::kVec8s * kVec8;
  if constexpr (C.given_scale) {
    if (blockIdx.x == 0 && threadIdx.x == 0) *p.factors = factor_from_scale(*p.scale);
  }
  INGOT_UNROLL_BY(1)
  for (u32 turn = 0;; ++turn) {
    const i64 first_row = (i64{turn} * gridDim.x + blockIdx.x) * rows_per_block;
    if (first_row >= p.rows) break;
    Row row{p, first_row + (threadIdx.x >> p.threads_log2), threadIdx.x & (threads - 1), threads};
    if (kept && vectors && p.cols % kVec8 == 0) {
      NormKeptRow<Row, WholeVec8s>{row, {}}.run(warp_sums, warp_maxima);
    } else if (kept && kPaddedRowsStay && p.eps >= kLeastEpsToStay) {
      NormKeptRow<Row, PaddedVec8s>{row, {static_cast<u32>(p.cols)}}.run(warp_sums, warp_maxima);
    } else {
      norm_streamed_row(row, warp_sums, warp_maxima);
    }
    __syncthreads();  // the shared memory is free again
  }
}

}  // namespace ingot
