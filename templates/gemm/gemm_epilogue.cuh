// A GEMM's epilogue: the steps from its accumulators to its output, in f32, each rounded. All GEMM kernels here share
// it.
//   x = scale_inv * sum + bias            by the kernel itself
//   x = x + beta * c                      c has the output's shape and may be the output itself; if beta is 0, c is not
//                                         read and x stays
//   preactivation = round(x)              written if a backward pass will need it
//   value = f(x, inputs)                  an expression (pointwise.cuh)
//   out = round(value); for an FP8 output, codes encode(saturate(value * scale))
//   amax is raised to the largest |out|; for an FP8 output to the largest |value|
#pragma once

#include "cast/source.cuh"
#include "memory.cuh"
#include "numerics.cuh"
#include "platform.cuh"
#include "pointwise/pointwise.cuh"
#include "reduce.cuh"
#include "scaling.cuh"

namespace ingot {

// Stands for the dtype of a matrix that does not exist.
struct NoMatrix {};

struct EpilogueParams {
  const void* c;
  i64 c_stride;  // in elements, like all strides
  SourceOperand operands[kMaxInputs];
  void* preactivation;
  i64 preactivation_stride;
  u32* amax;           // as bits
  const float* scale;  // for an FP8 output
  float* factor;       // 1 / scale, for an FP8 output; one block writes it
  float beta;
};

// The bias's dtype is the output's; but two FP8 operands with an f32 or FP8 output take a bf16 bias (cuBLASLt's rule).
template <class A, class B, class Out>
struct GemmBias {
  using Type = Out;
};
template <Fp8Format A, Fp8Format B>
struct GemmBias<A, B, f32> {
  using Type = bf16;
};
template <Fp8Format A, Fp8Format B, Fp8Format Out>
struct GemmBias<A, B, Out> {
  using Type = bf16;
};

struct INGOT_MAY_ALIAS PairWord {
  u32 bits;
};

// Two neighbouring elements of a row, with the bits that they have in memory.
template <HighPrecision T>
struct Pair {
  static constexpr u32 kWords = sizeof(T) / 2;
  u32 words[kWords];
};

// Loads a pair: in one access if `vector` (it is aligned to its size) and `both`, otherwise one by one. Unless `both`,
// the second element is outside the matrix and reads as 0. The loads are plain, because c may be the output.
template <HighPrecision T>
INGOT_DEVICE Pair<T> load_pair(const T* at, bool vector, bool both) {
  Pair<T> pair{};
  if (vector && both) {
    if constexpr (Pair<T>::kWords == 2) {
      const U32x2 words = *reinterpret_cast<const U32x2*>(at);
      pair.words[0] = words.x;
      pair.words[1] = words.y;
    } else {
      pair.words[0] = reinterpret_cast<const PairWord*>(at)->bits;
    }
    return pair;
  }
  if constexpr (Pair<T>::kWords == 2) {
    pair.words[0] = float_bits(at[0]);
    if (both) pair.words[1] = float_bits(at[1]);
  } else {
    pair.words[0] = at[0].bits;
    if (both) pair.words[0] |= static_cast<u32>(at[1].bits) << 16;
  }
  return pair;
}

template <HighPrecision T>
INGOT_DEVICE float element(const Pair<T>& pair, u32 index) {
  if constexpr (Pair<T>::kWords == 2) {
    return float_from_bits(pair.words[index]);
  } else {
    return to_float(T{static_cast<u16>(pair.words[0] >> (16 * index))});
  }
}

template <HighPrecision T>
INGOT_DEVICE void store_pair(T* at, float first, float second, bool vector, bool both) {
  if constexpr (Pair<T>::kWords == 2) {
    const T values[2] = {from_float<T>(first), from_float<T>(second)};
    if (vector && both) {
      *reinterpret_cast<U32x2*>(at) = {float_bits(values[0]), float_bits(values[1])};
    } else {
      at[0] = values[0];
      if (both) at[1] = values[1];
    }
  } else {
    const u32 values = from_float_pair<T>(first, second);
    if (vector && both) {
      reinterpret_cast<PairWord*>(at)->bits = values;
    } else {
      at[0] = T{static_cast<u16>(values)};
      if (both) at[1] = T{static_cast<u16>(values >> 16)};
    }
  }
}

// A template argument: what is written besides the output.
struct EpilogueConfig {
  bool preactivation = false;
  bool amax = false;
};

// CDtype: the dtype of c, or NoMatrix. BesideDtype: the dtype of the expression's matrices and columns, and of the
// preactivation.
template <class CDtype, class Function, HighPrecision BesideDtype, EpilogueConfig Config = EpilogueConfig{}>
struct Epilogue {
  using C = CDtype;
  using F = Function;
  using Beside = BesideDtype;
  static constexpr bool kAddsC = !is_same<C, NoMatrix>;
  static constexpr bool kFused = !is_same<F, Identity>;
  static constexpr bool kPreactivation = Config.preactivation;
  static constexpr bool kAmax = Config.amax;
  static constexpr bool kNothing = !kAddsC && !kFused && !kPreactivation;
  static constexpr int kOperands = F::kInputs;  // signed: comparing an unsigned index with 0 would be a warning
  using StoredC = typename Select<kAddsC, C, f32>::Type;
  // Words in which a pair keeps what it has read.
  static constexpr u32 kWords =
      (kAddsC ? Pair<StoredC>::kWords : 0) + count_inputs<F>(InputKind::matrix) * Pair<Beside>::kWords;

  INGOT_DEVICE static bool reads_c(const EpilogueParams& p) { return kAddsC && p.beta != 0.0F; }

  // Computes one value. x: scale_inv * sum + bias.
  INGOT_DEVICE static float value(const EpilogueParams& p, i64 row, i64 col, float x) {
    if (reads_c(p)) x = x + p.beta * to_float(static_cast<const StoredC*>(p.c)[row * p.c_stride + col]);
    if constexpr (kPreactivation) {
      static_cast<Beside*>(p.preactivation)[row * p.preactivation_stride + col] = from_float<Beside>(x);
    }
    if constexpr (!kFused) {
      return x;
    } else {
      float inputs[kMaxInputs] = {};
      INGOT_UNROLL
      for (int i = 0; i < kOperands; ++i) {
        const SourceOperand& operand = p.operands[i];
        if (F::kKinds[i] == InputKind::row) {
          inputs[i] = static_cast<const float*>(operand.data)[row];
        } else {
          const i64 above = F::kKinds[i] == InputKind::matrix ? row * operand.stride : 0;
          inputs[i] = to_float(static_cast<const Beside*>(operand.data)[above + col]);
        }
      }
      return apply_pointwise<F>(x, inputs);
    }
  }

  // May pairs that begin at even columns be read and written in one access?
  struct Vectors {
    bool c, preactivation;
    bool operands[kMaxInputs];
  };
  INGOT_DEVICE static Vectors vectors(const EpilogueParams& p) {
    constexpr u32 kPairBytes = 2 * sizeof(Beside);
    Vectors v{};
    if constexpr (kAddsC) v.c = rows_aligned<C>(p.c, p.c_stride, 2 * sizeof(C));
    if constexpr (kPreactivation)
      v.preactivation = rows_aligned<Beside>(p.preactivation, p.preactivation_stride, kPairBytes);
    INGOT_UNROLL
    for (int i = 0; i < kOperands; ++i) {
      const bool matrix = F::kKinds[i] == InputKind::matrix;
      v.operands[i] = rows_aligned<Beside>(p.operands[i].data, matrix ? p.operands[i].stride : 0, kPairBytes);
    }
    return v;
  }

  // Prefetches into the L2 what the 32 elements from here on read of other matrices.
  INGOT_DEVICE static void prefetch(const EpilogueParams& p, i64 row, i64 col) {
    if (reads_c(p)) prefetch_line(static_cast<const StoredC*>(p.c) + row * p.c_stride + col);
    INGOT_UNROLL
    for (int i = 0; i < kOperands; ++i) {
      if (F::kKinds[i] != InputKind::matrix) continue;
      prefetch_line(static_cast<const Beside*>(p.operands[i].data) + row * p.operands[i].stride + col);
    }
  }

  // The operands from which the values of a pair are computed, besides x.
  struct Raw {
    Pair<StoredC> c;
    Pair<Beside> operands[kMaxInputs];  // matrices
  };

  // The first of the matrices that are read: c, or an input of the expression. A kernel may load its elements in its
  // own way.
  INGOT_HOST_DEVICE static constexpr int first_matrix() {
    for (int i = 0; i < kOperands; ++i) {
      if (F::kKinds[i] == InputKind::matrix) return i;
    }
    return -1;
  }
  static constexpr int kFirst = kAddsC ? -1 : first_matrix();
  static constexpr u32 kFirstBytes = kAddsC         ? static_cast<u32>(sizeof(StoredC))
                                     : kFirst != -1 ? static_cast<u32>(sizeof(Beside))
                                                    : 0;  // bytes of an element
  // Is it the only matrix, and is it all that is read besides x?
  static constexpr bool kNoOtherMatrix = count_inputs<F>(InputKind::matrix) == (kAddsC || kFirst == -1 ? 0U : 1U);
  static constexpr bool kReadsNoOther = kNoOtherMatrix && F::kInputs == count_inputs<F>(InputKind::matrix);
  INGOT_DEVICE static const u8* first_at(const EpilogueParams& p, i64 row, i64 col) {
    const void* const data = kAddsC ? p.c : p.operands[max_of(kFirst, 0)].data;
    const i64 stride = kAddsC ? p.c_stride : p.operands[max_of(kFirst, 0)].stride;
    return static_cast<const u8*>(data) + (row * stride + col) * kFirstBytes;
  }
  INGOT_DEVICE static bool first_in_vectors(const EpilogueParams& p) {
    if constexpr (kAddsC) return rows_aligned<StoredC>(p.c, p.c_stride, 16);
    return kFirst != -1 &&
           rows_aligned<Beside>(p.operands[max_of(kFirst, 0)].data, p.operands[max_of(kFirst, 0)].stride, 16);
  }
  INGOT_DEVICE static bool reads_first(const EpilogueParams& p) { return kAddsC ? reads_c(p) : kFirst != -1; }
  // For 16-bit elements.
  INGOT_DEVICE static void set_first(Raw& raw, u32 word) {
    if constexpr (kAddsC) {
      raw.c.words[0] = word;
    } else {
      raw.operands[max_of(kFirst, 0)].words[0] = word;
    }
  }

  // Fetches the inputs of the pair at an even column inside the matrix; `both`: its second column is inside too.
  // Without WithFirst, the first matrix is left out.
  template <bool WithFirst = true>
  INGOT_DEVICE static Raw fetch(const EpilogueParams& p, const Vectors& v, i64 row, i64 col, bool both) {
    Raw raw{};
    if (WithFirst && reads_c(p)) {
      raw.c = load_pair(static_cast<const StoredC*>(p.c) + row * p.c_stride + col, v.c, both);
    }
    INGOT_UNROLL
    for (int i = 0; i < kOperands; ++i) {
      if (F::kKinds[i] != InputKind::matrix || (!WithFirst && i == kFirst)) continue;
      const auto* const data = static_cast<const Beside*>(p.operands[i].data);
      raw.operands[i] = load_pair(data + row * p.operands[i].stride + col, v.operands[i], both);
    }
    return raw;
  }

  // Turns x and y from scale_inv * sum + bias of the pair into its values. Keeps: the preactivation is written here.
  template <bool Keeps = true>
  INGOT_DEVICE static void apply(const EpilogueParams& p, const Vectors& v, const Raw& raw, i64 row, i64 col, bool both,
                                 float& x, float& y) {
    if (reads_c(p)) {
      x = x + p.beta * element(raw.c, 0);
      y = y + p.beta * element(raw.c, 1);
    }
    if constexpr (kPreactivation && Keeps) {
      store_pair(static_cast<Beside*>(p.preactivation) + row * p.preactivation_stride + col, x, y, v.preactivation,
                 both);
    }
    if constexpr (kFused) {
      float first[kMaxInputs] = {};
      float second[kMaxInputs] = {};
      INGOT_UNROLL
      for (int i = 0; i < kOperands; ++i) {
        if (F::kKinds[i] == InputKind::row) {
          first[i] = second[i] = static_cast<const float*>(p.operands[i].data)[row];
        } else if (F::kKinds[i] == InputKind::column) {
          const auto* const data = static_cast<const Beside*>(p.operands[i].data);
          const Pair<Beside> pair = load_pair(data + col, v.operands[i], both);
          first[i] = element(pair, 0);
          second[i] = element(pair, 1);
        } else {
          first[i] = element(raw.operands[i], 0);
          second[i] = element(raw.operands[i], 1);
        }
      }
      x = apply_pointwise<F>(x, first);
      y = apply_pointwise<F>(y, second);
    }
  }
};

// The epilogue with only accumulators, scale_inv and bias.
using PlainEpilogue = Epilogue<NoMatrix, Identity, f32>;

// The last step: `value` as it is stored. scale: for an FP8 output.
template <class Out>
INGOT_DEVICE Out gemm_output(float value, [[maybe_unused]] float scale) {
  if constexpr (Fp8Format<Out>) {
    return quantize<Out>(value, scale);
  } else {
    return from_float<Out>(value);
  }
}

// amax_bits() from a running max_u16x2() over words of two values.
template <HighPrecision Out>
INGOT_DEVICE u32 amax_bits_of_pairs(u32 pairs) {
  const u16 largest = static_cast<u16>(max_of(pairs & 0xffffU, pairs >> 16));
  return float_bits(to_float(Out{largest}));
}

// The bits with which a value counts for the amax.
template <class Out>
INGOT_DEVICE u32 gemm_amax_bits(float value) {
  if constexpr (Fp8Format<Out>) {
    return amax_bits(value);
  } else {
    return amax_bits(to_float(from_float<Out>(value)));
  }
}

// All threads of a warp call it.
INGOT_DEVICE void raise_epilogue_amax(const EpilogueParams& p, u32 bits) {
  bits = __reduce_max_sync(0xffffffffU, bits);
  if (threadIdx.x % 32 == 0) raise_maximum(p.amax, bits);
}

// All blocks call it.
template <class Out>
INGOT_DEVICE void write_output_factor(const EpilogueParams& p) {
  if constexpr (Fp8Format<Out>) {
    if (blockIdx.x == 0 && threadIdx.x == 0) *p.factor = factor_from_scale(*p.scale);
  }
}

}  // namespace ingot
