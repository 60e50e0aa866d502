// What the LayerNorm and RMSNorm kernels share with the CPU reference: the order in which a row is summed, and the
// arithmetic of one element.
//
// A row is summed in f32, in an order that is part of the numerics contract. T threads share the row. Thread t sums 8
// neighbouring columns at a time: those that begin at 8 t, 8 (t + T), 8 (t + 2 T) ... Terms past the end are 0. All
// additions are plain (no fma):
//
//   8 columns: ((a0 + a1) + (a2 + a3)) + ((a4 + a5) + (a6 + a7))
//   thread:    adds these sums to 0 in ascending order of columns
//   warp:      adds the lanes that are 16, then 8, 4, 2 and 1 apart
//   row:       adds the warps in ascending order
//
// T depends only on the number of columns, so neither the GPU nor the dtype nor the alignment changes a bit. If a sum
// of squares overflows to Inf, rstd is 0.
//
// A mean is a sum times 1 / cols, which the host rounds once (inverse_cols): the kernel does not divide, and the error
// is far below that of the sum. The mean of no elements is 0.
#pragma once

#include "memory.cuh"
#include "platform.cuh"
#include "pointwise/math.cuh"
#include "vec8.cuh"

namespace ingot {

struct LayerNorm {};
struct RmsNorm {};

template <class Kind>
inline constexpr bool kCentred = is_same<Kind, LayerNorm>;

INGOT_HOST_DEVICE constexpr float inverse_cols(i64 cols) { return cols == 0 ? 0.0F : 1.0F / static_cast<float>(cols); }

INGOT_HOST_DEVICE float vec8_sum(const float (&a)[kVec8]) {
  return ((a[0] + a[1]) + (a[2] + a[3])) + ((a[4] + a[5]) + (a[6] + a[7]));
}

// The number of threads that share a row is the smallest power of two, from 32 to 512, that covers it with `vec8s`
// groups of 8 columns per thread; 512 threads cover longer rows with more groups each. This is its log2.
INGOT_HOST_DEVICE constexpr u32 norm_threads_log2(i64 cols, u32 vec8s) {
  u32 log2 = 5;
  while (log2 < 9 && (i64{vec8s * kVec8} << log2) < cols) ++log2;
  return log2;
}

INGOT_HOST_DEVICE float norm_rstd(float sum_of_squares, float inverse_cols, float eps) {
  return math::rsqrt<math::Reproducible32>(sum_of_squares * inverse_cols + eps);
}

template <class Kind>
INGOT_HOST_DEVICE float normalised(float x, float mean, float rstd) {
  return kCentred<Kind> ? (x - mean) * rstd : x * rstd;
}

// Loads columns col .. col + 7 of a row of `cols` elements; columns past its end read as 0. `vectors` says that the row
// may be read in 16-byte vectors.
template <HighPrecision T>
INGOT_DEVICE void load_padded(const T* row, i64 col, i64 cols, bool vectors, float (&x)[kVec8]) {
  if (vectors && col + kVec8 <= cols) return unpack(load_vec8_again(row + col), x);
  INGOT_UNROLL
  for (u32 i = 0; i < kVec8; ++i) x[i] = col + i < cols ? to_float(row[col + i]) : 0.0F;
}

// Stores the same columns; writes nothing past the end of the row.
template <HighPrecision T>
INGOT_DEVICE void store_padded(T* row, i64 col, i64 cols, bool vectors, const Vec8<T>& vec8) {
  if (vectors && col + kVec8 <= cols) return store_vec8(row + col, vec8);
  float x[kVec8];
  unpack(vec8, x);
  INGOT_UNROLL
  for (u32 i = 0; i < kVec8; ++i) {
    if (col + i < cols) row[col + i] = from_float<T>(x[i]);
  }
}
template <Fp8Format T>
INGOT_DEVICE void store_padded_codes(T* row, i64 col, i64 cols, bool vectors, U32x2 codes) {
  if (vectors && col + kVec8 <= cols) return store_streaming(row + col, codes);
  INGOT_UNROLL
  for (u32 i = 0; i < kVec8; ++i) {
    const u32 word = i < 4 ? codes.x : codes.y;
    if (col + i < cols) row[col + i] = T{static_cast<u8>(word >> (8 * (i % 4)))};
  }
}

// How a thread reads and writes the 8 columns from `col` on of a row that it keeps in registers. Here they are all in
// the row, which may be read in 16-byte vectors.
struct WholeVec8s {
  INGOT_DEVICE u32 left(u32) const {
    return kVec8;
  }  // how many columns the row has from this one on: 8 stands for more
  template <HighPrecision T>
  INGOT_DEVICE Vec8<T> inside(const Vec8<T>& vec8, u32) const {  // zeros past the end of the row
    return vec8;
  }
  template <HighPrecision T>
  INGOT_DEVICE Vec8<T> load_once(const T* row, u32 col) const {
    return load_vec8_once(row + col);
  }
  template <HighPrecision T>
  INGOT_DEVICE Vec8<T> load_again(const T* row, u32 col) const {
    return load_vec8_again(row + col);
  }
  template <HighPrecision T>
  INGOT_DEVICE void store(T* row, u32 col, const Vec8<T>& vec8) const {
    store_vec8(row + col, vec8);
  }
  template <Fp8Format T>
  INGOT_DEVICE void store_codes(T* row, u32 col, U32x2 codes) const {
    store_streaming(row + col, codes);
  }
};

// The same one element at a time, for any other row of `cols` columns. What is past its end is 0.
struct PaddedVec8s {
  u32 cols;

  INGOT_DEVICE u32 left(u32 col) const { return cols - col; }
  template <HighPrecision T>
  INGOT_DEVICE Vec8<T> inside(const Vec8<T>& vec8, u32 col) const {
    return first_elements(vec8, left(col));
  }
  template <HighPrecision T>
  INGOT_DEVICE Vec8<T> load_once(const T* row, u32 col) const {
    return load_elements(row + col, left(col));
  }
  template <HighPrecision T>
  INGOT_DEVICE Vec8<T> load_again(const T* row, u32 col) const {
    return load_elements(row + col, left(col));
  }
  template <HighPrecision T>
  INGOT_DEVICE void store(T* row, u32 col, const Vec8<T>& vec8) const {
    store_elements(row + col, vec8, left(col));
  }
  template <Fp8Format T>
  INGOT_DEVICE void store_codes(T* row, u32 col, U32x2 codes) const {
    const u32 count = left(col);
    row += col;
    INGOT_UNROLL
    for (u32 i = 0; i < kVec8; ++i) {
      if (i < count) row[i] = T{static_cast<u8>((i < 4 ? codes.x : codes.y) >> (8 * (i % 4)))};
    }
  }
};

}  // namespace ingot
