// Vec8: eight neighbouring elements of a row, the unit in which casts and norms work: 16 bytes of bf16 or f16, 32 bytes
// of f32, 8 codes.
#pragma once

#include "memory.cuh"
#include "numerics.cuh"
#include "platform.cuh"
#include "ptx/opaque.cuh"
#include "reduce.cuh"
#include "scaling.cuh"

namespace ingot {

inline constexpr u32 kVec8 = 8;

template <HighPrecision T>
struct Vec8 {
  static constexpr u32 kVectors = kVec8 / kPerVector<T>;
  Vector<T> vectors[kVectors];
};

template <HighPrecision T>
INGOT_HOST_DEVICE void unpack(const Vec8<T>& vec8, float (&x)[kVec8]) {
  INGOT_UNROLL
  for (u32 i = 0; i < kVec8 / 2; ++i) {
    if constexpr (sizeof(T) == 4) {
      x[2 * i] = float_from_bits(vec8.vectors[i / 2].word(2 * i % 4));
      x[2 * i + 1] = float_from_bits(vec8.vectors[i / 2].word((2 * i + 1) % 4));
    } else {
      x[2 * i] = low_element(vec8.vectors[0].word(i), T{});
      x[2 * i + 1] = high_element(vec8.vectors[0].word(i), T{});
    }
  }
}

// Rounds each element to T.
template <HighPrecision T>
INGOT_HOST_DEVICE Vec8<T> pack(const float (&x)[kVec8]) {
  if constexpr (sizeof(T) == 4) {
    const auto word = [&](u32 i) { return float_bits(from_float<f32>(x[i])); };
    return {{{{word(0), word(1), word(2), word(3)}}, {{word(4), word(5), word(6), word(7)}}}};
  } else {
    return {{{{from_float_pair<T>(x[0], x[1]), from_float_pair<T>(x[2], x[3]), from_float_pair<T>(x[4], x[5]),
               from_float_pair<T>(x[6], x[7])}}}};
  }
}

// Makes the compiler forget the values that it has unpacked. It unpacks them again later, and they need no registers in
// the meantime.
template <HighPrecision T>
INGOT_DEVICE void forget_values(Vec8<T>& vec8) {
  INGOT_UNROLL
  for (Vector<T>& vector : vec8.vectors) {
    hide(vector.bits.x);
    hide(vector.bits.y);
    hide(vector.bits.z);
    hide(vector.bits.w);
  }
}

// Loads data that is read once; load_vec8_again() loads data that is read again: gamma, or a row that did not fit the
// registers.
template <HighPrecision T>
INGOT_DEVICE Vec8<T> load_vec8_once(const T* source) {
  if constexpr (sizeof(T) == 4) {
    // The two loads share each cache line, and the L1 serves the second.
    return {{{load16(source)}, {load16(source + kPerVector<T>)}}};
  } else {
    return {{{load16_once(source)}}};
  }
}
// load_vec8_once() for memory that the reader may write in place.
template <HighPrecision T>
INGOT_DEVICE Vec8<T> load_vec8_in_place(const T* source) {
  if constexpr (sizeof(T) == 4) {
    return {{{load16_in_place(source)}, {load16_in_place(source + kPerVector<T>)}}};
  } else {
    return {{{load16_once_in_place(source)}}};
  }
}
template <HighPrecision T>
INGOT_DEVICE Vec8<T> load_vec8_again(const T* source) {
  Vec8<T> vec8;
  INGOT_UNROLL
  for (u32 i = 0; i < Vec8<T>::kVectors; ++i) vec8.vectors[i].bits = load16(source + i * kPerVector<T>);
  return vec8;
}

// The same one element at a time, for any address: only the first `count`; the others are 0. No load waits for another.
template <HighPrecision T>
INGOT_DEVICE Vec8<T> load_elements(const T* source, u32 count) {
  const auto element = [&](u32 i) -> u32 {
    if constexpr (sizeof(T) == 4) {
      return i < count ? float_bits(source[i]) : 0U;
    } else {
      return i < count ? u32{source[i].bits} : 0U;
    }
  };
  const auto word = [&](u32 i) -> u32 {
    return sizeof(T) == 4 ? element(i) : element(2 * i) | element(2 * i + 1) << 16;
  };
  Vec8<T> vec8;
  INGOT_UNROLL
  for (u32 v = 0; v < Vec8<T>::kVectors; ++v) {
    vec8.vectors[v].bits = {word(4 * v), word(4 * v + 1), word(4 * v + 2), word(4 * v + 3)};
  }
  return vec8;
}

// Stores the first `count` elements, for any address.
template <HighPrecision T>
INGOT_DEVICE void store_elements(T* target, const Vec8<T>& vec8, u32 count) {
  INGOT_UNROLL
  for (u32 i = 0; i < kVec8; ++i) {
    if (i >= count) continue;
    if constexpr (sizeof(T) == 4) {
      target[i] = float_from_bits(vec8.vectors[i / 4].word(i % 4));
    } else {
      target[i].bits = static_cast<u16>(vec8.vectors[0].word(i / 2) >> (16 * (i % 2)));
    }
  }
}

// The first `count` elements; the others become 0.
template <HighPrecision T>
INGOT_HOST_DEVICE Vec8<T> first_elements(const Vec8<T>& vec8, u32 count) {
  constexpr u32 kPerWord = 4 / static_cast<u32>(sizeof(T));
  const auto word = [&](u32 v, u32 i) -> u32 {
    const u32 first = (4 * v + i) * kPerWord;
    const u32 all = vec8.vectors[v].word(i);
    return count >= first + kPerWord ? all : count > first ? all & 0xffffU : 0;
  };
  Vec8<T> kept;
  INGOT_UNROLL
  for (u32 v = 0; v < Vec8<T>::kVectors; ++v) kept.vectors[v].bits = {word(v, 0), word(v, 1), word(v, 2), word(v, 3)};
  return kept;
}

template <HighPrecision T>
INGOT_HOST_DEVICE u32 amax_bits(const Vec8<T>& vec8) {
  if constexpr (Vec8<T>::kVectors == 1) {
    return amax_bits(vec8.vectors[0]);
  } else {
    return max_of(amax_bits(vec8.vectors[0]), amax_bits(vec8.vectors[1]));
  }
}

// amax_bits() of many vec8s, of 16-bit elements as the two halves of a word until it is asked for.
template <HighPrecision T>
struct Vec8sMaximum {
  u32 word = 0;

  INGOT_HOST_DEVICE void take(const Vec8<T>& vec8) {
    if constexpr (sizeof(T) == 4) {
      word = max_of(word, amax_bits(vec8));
    } else {
      constexpr u32 kMagnitudes = 0x7fff7fffU;
      INGOT_UNROLL
      for (u32 i = 0; i < 4; ++i) word = max_u16x2(word, vec8.vectors[0].word(i) & kMagnitudes);
    }
  }
  INGOT_HOST_DEVICE u32 bits() const {
    if constexpr (sizeof(T) == 4) {
      return word;
    } else {
      return float_bits(high_element(max_of(word, word << 16), T{}));
    }
  }
};

// The largest |x| of each of eight columns, over rows that are added one at a time.
template <HighPrecision T>
struct ColumnMaxima {
  static constexpr u32 kWords = sizeof(T) == 4 ? 8 : 4;
  u32 words[kWords] = {};

  INGOT_HOST_DEVICE void take(const Vec8<T>& vec8) {
    INGOT_UNROLL
    for (u32 i = 0; i < kWords; ++i) {
      const u32 word = vec8.vectors[i / 4].word(i % 4);
      if constexpr (sizeof(T) == 4) {
        words[i] = max_of(words[i], word & 0x7fffffffU);
      } else {
        words[i] = max_u16x2(words[i], word & 0x7fff7fffU);
      }
    }
  }

  template <u32 kRows>
  INGOT_HOST_DEVICE void take(const Vec8<T> (&rows)[kRows]) {
    INGOT_UNROLL
    for (u32 r = 0; r < kRows; ++r) take(rows[r]);
  }

  // amax_bits() of column i.
  INGOT_HOST_DEVICE u32 bits(u32 i) const {
    if constexpr (sizeof(T) == 4) {
      return words[i];
    } else {
      return float_bits(i % 2 == 0 ? low_element(words[i / 2], T{}) : high_element(words[i / 2], T{}));
    }
  }
};

// Stores the elements as T, rounded if T is narrower. Like codes, they leave the L2 first: their reader comes later.
template <HighPrecision T, HighPrecision V>
INGOT_DEVICE void store_vec8(T* target, const Vec8<V>& vec8) {
  if constexpr (is_same<T, V>) {
    INGOT_UNROLL
    for (u32 i = 0; i < Vec8<T>::kVectors; ++i) store_streaming(target + i * kPerVector<T>, vec8.vectors[i].bits);
  } else {
    float x[kVec8];
    unpack(vec8, x);
    store_vec8(target, pack<T>(x));
  }
}

// The codes of the eight elements, the first in the low byte; scale(i) is the scale of element i. Given: as
// quantize_given().
template <Fp8Format Out, bool Given = false, HighPrecision T, class ScaleOf>
INGOT_HOST_DEVICE U32x2 quantize(const Vec8<T>& vec8, ScaleOf scale) {
  float x[kVec8];
  unpack(vec8, x);
  const auto scaled = [&](u32 i) -> float { return Given ? scaled_by_given(x[i], scale(i)) : x[i] * scale(i); };
  const auto pair = [&](u32 i) -> u32 { return encode_pair<Out>(scaled(i), scaled(i + 1)); };
  return {pair(0) | pair(2) << 16, pair(4) | pair(6) << 16};
}

}  // namespace ingot
