// Where the values of a cast come from: the elements of a matrix, or an expression of them and of further operands,
// computed on the way. A fused expression is a functor that code generation writes (codegen/pointwise.h):
//
//   struct Fused {
//     static constexpr u32 kInputs = 1;                               // operands beside x
//     static constexpr OperandKind kKinds[] = {OperandKind::column};
//     static INGOT_HOST_DEVICE float apply(float x, float a0);
//   };
//
// Values are computed in f32 and rounded to the input's dtype, as if the expression were a kernel of its own before the
// cast; or not, if Unrounded.
#pragma once

#include "memory.cuh"
#include "octet.cuh"
#include "platform.cuh"

namespace ingot {

// An operand has an element for each of the matrix's, for each of its columns, or (in f32) for each of its rows.
enum class OperandKind : u8 { matrix, column, row };
inline constexpr u32 kMaxOperands = 4;

// No expression: the values are the elements.
struct Identity {
  static constexpr u32 kInputs = 0;
  static constexpr OperandKind kKinds[1] = {};
  INGOT_HOST_DEVICE static float apply(float x) { return x; }
};

struct SourceOperand {
  const void* data;
  i64 stride;  // elements from row to row; matrices only
};

struct SourceParams {
  const void* input;  // In[rows, cols]
  i64 rows, cols;
  i64 input_stride;  // elements
  SourceOperand operands[kMaxOperands];
};

template <HighPrecision InDtype, class F = Identity, bool Unrounded = false>
struct ValueSource {
  using In = InDtype;
  static constexpr bool kFused = !is_same<F, Identity>;
  using Value = typename Select<kFused && Unrounded, f32, In>::Type;

  // May rows be read in octets, from columns that are multiples of 8?
  INGOT_HOST_DEVICE static bool aligned(const SourceParams& p) {
    bool all = vector_aligned<In>(p.input, p.input_stride);
    INGOT_UNROLL
    for (u32 i = 0; i + 1 < F::kInputs + 1; ++i) {
      if (F::kKinds[i] == OperandKind::matrix)
        all = all && vector_aligned<In>(p.operands[i].data, p.operands[i].stride);
      if (F::kKinds[i] == OperandKind::column) all = all && ingot::aligned(p.operands[i].data, 16);
    }
    return all;
  }

  // The values of row `row`, columns col .. col + 7.
  INGOT_DEVICE static Octet<Value> load(const SourceParams& p, i64 row, i64 col) {
    const Octet<In> x = load_octet(static_cast<const In*>(p.input) + row * p.input_stride + col);
    if constexpr (!kFused) {
      return x;
    } else {
      float values[1 + F::kInputs][kOctet];
      unpack(x, values[0]);
      INGOT_UNROLL
      for (u32 i = 0; i < F::kInputs; ++i) load_operand(p.operands[i], F::kKinds[i], row, col, values[1 + i]);
      float results[kOctet];
      INGOT_UNROLL
      for (u32 c = 0; c < kOctet; ++c) {
        results[c] = apply([&](u32 i) { return values[i][c]; });
      }
      return pack<Value>(results);
    }
  }

  // One value.
  INGOT_DEVICE static Value element(const SourceParams& p, i64 row, i64 col) {
    const In x = static_cast<const In*>(p.input)[row * p.input_stride + col];
    if constexpr (!kFused) {
      return x;
    } else {
      return from_float<Value>(apply([&](u32 i) {
        if (i == 0) return to_float(x);
        const SourceOperand& operand = p.operands[i - 1];
        if (F::kKinds[i - 1] == OperandKind::row) return static_cast<const float*>(operand.data)[row];
        const i64 at = F::kKinds[i - 1] == OperandKind::column ? col : row * operand.stride + col;
        return to_float(static_cast<const In*>(operand.data)[at]);
      }));
    }
  }

 private:
  // f32: the two loads share each line, and the L1 serves the second.
  INGOT_DEVICE static Octet<In> load_octet(const In* source) {
    if constexpr (sizeof(In) == 4) {
      return {{{load16(source)}, {load16(source + kPerVector<In>)}}};
    } else {
      return {{{load16_once(source)}}};
    }
  }

  INGOT_DEVICE static void load_operand(const SourceOperand& operand, OperandKind kind, i64 row, i64 col,
                                        float (&values)[kOctet]) {
    const auto* data = static_cast<const In*>(operand.data);
    if (kind == OperandKind::matrix) return unpack(load_octet(data + row * operand.stride + col), values);
    if (kind == OperandKind::row) {
      const float value = static_cast<const float*>(operand.data)[row];
      INGOT_UNROLL
      for (float& element : values) element = value;
      return;
    }
    // The same for every row: from the L1, or kept in registers.
    Octet<In> octet;
    INGOT_UNROLL
    for (u32 i = 0; i < Octet<In>::kVectors; ++i) octet.vectors[i].bits = load16(data + col + i * kPerVector<In>);
    unpack(octet, values);
  }

  // F::apply of input(0) .. input(kInputs).
  template <class Input>
  INGOT_DEVICE static float apply(Input input) {
    if constexpr (F::kInputs == 0) {
      return F::apply(input(0));
    } else if constexpr (F::kInputs == 1) {
      return F::apply(input(0), input(1));
    } else if constexpr (F::kInputs == 2) {
      return F::apply(input(0), input(1), input(2));
    } else if constexpr (F::kInputs == 3) {
      return F::apply(input(0), input(1), input(2), input(3));
    } else {
      return F::apply(input(0), input(1), input(2), input(3), input(4));
    }
  }
};

}  // namespace ingot
