// MX quantisation: each group of 32 neighbours in a row shares a power-of-two scale, and each element becomes a code of
// eight, six or four bits (formulas: src/codegen/quantize/quantize_spec.h). The kernel reads each input byte once and
// writes each output byte once.
//
// A block takes a tile (vec8_tiles.cuh). Four neighbouring threads hold a group, 8 elements each, so two shuffles find
// its largest element. Where rows cannot be read 8 elements at a time, or codes cannot be written in words, a warp
// takes a group, one element per lane.
#pragma once

#include "memory.cuh"
#include "numerics.cuh"
#include "platform.cuh"
#include "reduce.cuh"
#include "vec8.cuh"
#include "vec8_tiles.cuh"

namespace ingot {

struct QuantizeMxParams {
  const void* input;  // In[rows, cols]
  i64 rows, cols;
  i64 input_stride;     // elements
  u8* codes;            // rows of packed Out
  i64 codes_row_bytes;  // bytes from one row of codes to the next
  u8* scales;           // e8m0[rows, ceil(cols / 32)]
  i64 scales_stride;
  u32 across_log2;  // of QuantizeMxLaunch
};

inline constexpr i64 kMxGroup = 32;

struct QuantizeMxLaunch {
  static constexpr u32 kThreads = Vec8Tiles::kThreads;
  // A tile is at least one group wide.
  INGOT_HOST_DEVICE static constexpr u32 across_log2(i64 cols) { return max_of(2U, Vec8Tiles::across_log2(cols)); }
  INGOT_HOST_DEVICE static constexpr Vec8Tiles::Grid grid(i64 rows, i64 cols, u64 value_bytes) {
    return Vec8Tiles::grid_of(rows, cols, value_bytes, across_log2(cols));
  }
};

// floor(log2(the format's largest value)).
template <CodeFormat Out>
INGOT_HOST_DEVICE constexpr u32 max_exponent() {
  u32 exponent = 0;
  for (double power = 2.0; power <= Out::kMax; power *= 2.0) ++exponent;
  return exponent;
}

inline constexpr u32 kMxNan = 255;

// The scale's code for a group whose largest element has amax_bits() `maximum`. f32's exponent field is floor(log2(x))
// + 127, and less than that for subnormals; both cases end at 2^-127.
template <CodeFormat Out>
INGOT_HOST_DEVICE u32 mx_scale(u32 maximum) {
  if (maximum >= kF32Inf) return kMxNan;
  const u32 exponent = maximum >> 23;
  return exponent - min_of(exponent, max_exponent<Out>());
}

// 1 / scale. For a NaN group it returns some number that nothing reads.
INGOT_HOST_DEVICE float mx_multiplier(u32 scale) { return float_from_bits((254U - min_of(scale, 253U)) << 23); }

// The code that each element of a NaN group becomes.
template <CodeFormat Out>
INGOT_HOST_DEVICE constexpr u32 mx_nan_code() {
  if constexpr (Fp8Format<Out>) {
    return Out::kNanCode;
  } else {
    return 0;
  }
}

template <CodeFormat Out>
INGOT_HOST_DEVICE u32 mx_encode(float scaled) {
  if constexpr (Fp8Format<Out>) {
    return encode<Out>(scaled).bits;
  } else {
    return encode_number<Out>(scaled);
  }
}

template <CodeFormat Out>
INGOT_HOST_DEVICE u32 mx_code(float x, u32 scale) {
  return scale == kMxNan ? mx_nan_code<Out>() : mx_encode<Out>(x * mx_multiplier(scale));
}

// The codes of 8 elements, the first in the lowest bits.
template <CodeFormat Out, HighPrecision In>
INGOT_HOST_DEVICE u64 mx_codes(const Vec8<In>& vec8, u32 scale) {
  const float multiplier = mx_multiplier(scale);
  float x[kVec8];
  unpack(vec8, x);
  u64 codes = 0;
  if constexpr (Fp8Format<Out>) {
    const auto pair = [&](u32 i) -> u32 { return encode_pair<Out>(x[i] * multiplier, x[i + 1] * multiplier); };
    codes = (pair(0) | pair(2) << 16) | u64{pair(4) | pair(6) << 16} << 32;
  } else {
    // The codes of four elements fit a 32-bit word.
    u32 halves[2] = {};
    INGOT_UNROLL
    for (u32 i = 0; i < kVec8; ++i) {
      halves[i / 4] |= mx_encode<Out>(x[i] * multiplier) << (i % 4 * kCodeBits<Out>);
    }
    codes = halves[0] | u64{halves[1]} << (4 * kCodeBits<Out>);
  }
  constexpr u64 kNanCodes = u64{mx_nan_code<Out>()} * 0x0101010101010101U;
  return scale == kMxNan ? kNanCodes : codes;
}

// ---- Eight elements per thread -----------------------------------------------------------------------------------

// Columns whose codes fill whole words. Six-bit codes: 16 of them fill three words.
template <CodeFormat Out>
inline constexpr i64 kMxUnit = kCodeBits<Out> == 6 ? 16 : 8;

// Can the rows be read 8 elements at a time, and their codes be written in whole words?
template <HighPrecision In, CodeFormat Out>
INGOT_HOST_DEVICE bool mx_aligned(const QuantizeMxParams& p) {
  constexpr u32 kWord = Fp8Format<Out> ? 8 : 4;
  return vector_aligned<In>(p.input, p.input_stride) && rows_aligned<u8>(p.codes, p.codes_row_bytes, kWord);
}

// Stores the codes of a lane's 8 elements at `target`, if `inside`. All lanes of the warp call it; lanes 0, 4, 8 ...
// begin a group.
template <CodeFormat Out>
INGOT_DEVICE void store_mx_codes(u8* target, u64 codes, bool inside) {
  const auto low = static_cast<u32>(codes);
  if constexpr (kCodeBits<Out> == 8) {
    if (inside) store_streaming(target, U32x2{low, static_cast<u32>(codes >> 32)});
  } else if constexpr (kCodeBits<Out> == 4) {
    if (inside) store_streaming(target, low);
  } else {
    // Two lanes share three words: the even lane stores the first word and the second one with its neighbour's low
    // half; the odd lane stores the third.
    const u32 beside = __shfl_xor_sync(0xffffffffU, low, 1);
    if (!inside) return;
    if (threadIdx.x % 2 == 0) {
      store_streaming(target, low);
      store_streaming(target + 4, static_cast<u32>(codes >> 32) | beside << 16);
    } else {
      store_streaming(target + 2, static_cast<u32>(codes >> 16));
    }
  }
}

template <HighPrecision In, CodeFormat Out>
INGOT_DEVICE void quantize_mx_vec8s(const QuantizeMxParams& p, i64 first_row, i64 first_col) {
  constexpr u32 kRows = Vec8Tiles::rows(sizeof(In));
  const u32 down = Vec8Tiles::kThreads >> p.across_log2;  // rows from one of a thread's rows to the next
  const i64 row = first_row + (threadIdx.x >> p.across_log2);
  const i64 col = first_col + i64{threadIdx.x & ((1U << p.across_log2) - 1)} * kVec8;
  const i64 rows_left = col < p.cols ? p.rows - row : 0;
  const auto is_inside = [&](u32 i) { return i64{i * down} < rows_left; };
  const In* const input = static_cast<const In*>(p.input) + (row * p.input_stride + col);
  Vec8<In> vec8s[kRows] = {};
  INGOT_UNROLL
  for (u32 i = 0; i < kRows; ++i) {
    if (is_inside(i)) vec8s[i] = load_vec8_once(input + i * down * p.input_stride);
  }
  u8* const codes = p.codes + (row * p.codes_row_bytes + col / 8 * kCodeBits<Out>);
  u8* const scales = p.scales + (row * p.scales_stride + col / kMxGroup);
  INGOT_UNROLL
  for (u32 i = 0; i < kRows; ++i) {
    u32 maximum = amax_bits(vec8s[i]);
    maximum = max_of(maximum, __shfl_xor_sync(0xffffffffU, maximum, 1));
    maximum = max_of(maximum, __shfl_xor_sync(0xffffffffU, maximum, 2));
    const u32 scale = mx_scale<Out>(maximum);
    if (threadIdx.x % 4 == 0 && is_inside(i)) scales[i * down * p.scales_stride] = static_cast<u8>(scale);
    store_mx_codes<Out>(codes + i * down * p.codes_row_bytes, mx_codes<Out>(vec8s[i], scale), is_inside(i));
  }
}

// ---- One element per lane ----------------------------------------------------------------------------------------

// The byte of a group's packed codes that this lane stores. `code` is the code of the lane's element, or 0 past the end
// of the row. All lanes of the warp call it.
template <CodeFormat Out>
INGOT_DEVICE u32 mx_packed_byte(u32 code) {
  if constexpr (kCodeBits<Out> == 8) {
    return code;
  } else {
    // Byte b holds the bits from 8 b on: the end of one code and the beginning of the next.
    const u32 bit = threadIdx.x % 32 * 8 % (32 * kCodeBits<Out>);
    const u32 first = bit / kCodeBits<Out>;
    const u32 low = __shfl_sync(0xffffffffU, code, first);
    const u32 high = __shfl_sync(0xffffffffU, code, (first + 1) % 32);
    return ((low | high << kCodeBits<Out>) >> (bit % kCodeBits<Out>)) & 0xffU;
  }
}

template <HighPrecision In, CodeFormat Out>
INGOT_DEVICE void quantize_mx_elements(const QuantizeMxParams& p, i64 first_row, i64 first_col) {
  constexpr u32 kAtOnce = 4;
  constexpr u32 kWarps = Vec8Tiles::kThreads / 32;
  const u32 lane = threadIdx.x % 32;
  const u32 groups_log2 = p.across_log2 - 2;  // log2 of the groups side by side in a tile
  constexpr u32 kGroups = Vec8Tiles::rows(sizeof(In)) * Vec8Tiles::kThreads / 4;
  INGOT_UNROLL_BY(1)
  for (u32 first = threadIdx.x / 32; first < kGroups; first += kWarps * kAtOnce) {
    const auto row_of = [&](u32 i) { return first_row + ((first + i * kWarps) >> groups_log2); };
    const auto col_of = [&](u32 i) {
      return first_col + i64{(first + i * kWarps) & ((1U << groups_log2) - 1)} * kMxGroup;
    };
    float x[kAtOnce] = {};
    INGOT_UNROLL
    for (u32 i = 0; i < kAtOnce; ++i) {
      if (row_of(i) >= p.rows || col_of(i) + lane >= p.cols) continue;
      x[i] = to_float(static_cast<const In*>(p.input)[row_of(i) * p.input_stride + col_of(i) + lane]);
    }
    INGOT_UNROLL
    for (u32 i = 0; i < kAtOnce; ++i) {
      const i64 row = row_of(i);
      const i64 col = col_of(i);
      const bool any = row < p.rows && col < p.cols;  // the same for all lanes
      const u32 scale = mx_scale<Out>(__reduce_max_sync(0xffffffffU, amax_bits(x[i])));
      const u32 byte = mx_packed_byte<Out>(col + lane < p.cols ? mx_code<Out>(x[i], scale) : 0);
      if (!any) continue;
      const i64 bits = min_of(kMxGroup, p.cols - col) * kCodeBits<Out>;
      if (i64{lane} * 8 < bits)
        p.codes[row * p.codes_row_bytes + col / 8 * kCodeBits<Out> + lane] = static_cast<u8>(byte);
      if (lane == 0) p.scales[row * p.scales_stride + col / kMxGroup] = static_cast<u8>(scale);
    }
  }
}

template <HighPrecision In, CodeFormat Out>
INGOT_KERNEL void INGOT_LAUNCH_BOUNDS(QuantizeMxLaunch::kThreads, 4) quantize_mx(const QuantizeMxParams p) {
  const i64 tile_cols = Vec8Tiles::tile_cols(p.across_log2);
  const bool aligned = mx_aligned<In, Out>(p);
  start_in_turn();
  for_each_tile(p.rows, sizeof(In), p.across_log2, [&](i64 first_row, i64 first_col) {
    if (aligned && (p.cols - first_col >= tile_cols || p.cols % kMxUnit<Out> == 0)) {
      quantize_mx_vec8s<In, Out>(p, first_row, first_col);
    } else {
      quantize_mx_elements<In, Out>(p, first_row, first_col);
    }
  });
}

}  // namespace ingot
