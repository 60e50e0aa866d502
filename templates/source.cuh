// Where the values of a cast come from: the elements of a matrix, or an expression of them and of further inputs
// (pointwise.cuh), computed on the way. Values are computed in f32 and rounded to the matrix's dtype, as if the
// expression were a kernel of its own before the cast; or not, if Unrounded.
#pragma once

#include "memory.cuh"
#include "octet.cuh"
#include "platform.cuh"
#include "pointwise.cuh"

namespace ingot {

// A further input: In[rows, cols], In[cols] or f32[rows], by its kind.
struct SourceOperand {
  const void* data;
  i64 stride;  // elements from row to row, of a matrix
};

struct SourceParams {
  const void* input;  // In[rows, cols]
  i64 rows, cols;
  i64 input_stride;  // elements
  SourceOperand operands[kMaxInputs];
};

template <HighPrecision InDtype, class F = Identity, bool Unrounded = false>
struct ValueSource {
  using In = InDtype;
  static constexpr bool kFused = !is_same<F, Identity>;
  static constexpr int kOperands = F::kInputs;
  using Value = typename Select<kFused && Unrounded, f32, In>::Type;

  // May rows be read in octets, from columns that are multiples of 8?
  INGOT_HOST_DEVICE static bool aligned(const SourceParams& p) {
    bool all = !F::kUsesX || vector_aligned<In>(p.input, p.input_stride);
    INGOT_UNROLL
    for (int i = 0; i < kOperands; ++i) {
      const SourceOperand& operand = p.operands[i];
      if (F::kKinds[i] == InputKind::matrix) all = all && vector_aligned<In>(operand.data, operand.stride);
      if (F::kKinds[i] == InputKind::column) all = all && ingot::aligned(operand.data, 16);
    }
    return all;
  }

  // Into the L2: what load() of the same place will read, as far as it is much.
  INGOT_DEVICE static void prefetch(const SourceParams& p, i64 row, i64 col) {
    if (col * sizeof(In) % kLine != 0) return;
    if constexpr (F::kUsesX) prefetch_line(static_cast<const In*>(p.input) + row * p.input_stride + col);
    INGOT_UNROLL
    for (int i = 0; i < kOperands; ++i) {
      const SourceOperand& operand = p.operands[i];
      if (F::kKinds[i] == InputKind::matrix) {
        prefetch_line(static_cast<const In*>(operand.data) + row * operand.stride + col);
      }
    }
  }

  // The values of row `row`, columns col .. col + 7.
  INGOT_DEVICE static Octet<Value> load(const SourceParams& p, i64 row, i64 col) {
    const In* const input = static_cast<const In*>(p.input) + row * p.input_stride + col;
    if constexpr (!kFused) {
      return load_octet(input);
    } else {
      float x[kOctet] = {};
      if constexpr (F::kUsesX) unpack(load_octet(input), x);
      float operands[kMaxInputs][kOctet];
      INGOT_UNROLL
      for (int i = 0; i < kOperands; ++i) {
        load_operand(p.operands[i], F::kKinds[i], row, col, operands[i]);
      }
      float results[kOctet];
      INGOT_UNROLL
      for (u32 c = 0; c < kOctet; ++c) {
        float inputs[kMaxInputs] = {};
        INGOT_UNROLL
        for (int i = 0; i < kOperands; ++i) inputs[i] = operands[i][c];
        results[c] = apply_pointwise<F>(x[c], inputs);
      }
      return pack<Value>(results);
    }
  }

  // One value.
  INGOT_DEVICE static Value element(const SourceParams& p, i64 row, i64 col) {
    const In* const input = static_cast<const In*>(p.input) + row * p.input_stride + col;
    if constexpr (!kFused) {
      return *input;
    } else {
      float inputs[kMaxInputs] = {};
      INGOT_UNROLL
      for (int i = 0; i < kOperands; ++i) {
        inputs[i] = operand_element(p.operands[i], F::kKinds[i], row, col);
      }
      return from_float<Value>(apply_pointwise<F>(F::kUsesX ? to_float(*input) : 0.0F, inputs));
    }
  }

 private:
  static constexpr u32 kLine = 128;  // bytes

  // f32: the two loads share each line, and the L1 serves the second.
  INGOT_DEVICE static Octet<In> load_octet(const In* source) {
    if constexpr (sizeof(In) == 4) {
      return {{{load16(source)}, {load16(source + kPerVector<In>)}}};
    } else {
      return {{{load16_once(source)}}};
    }
  }

  INGOT_DEVICE static void load_operand(const SourceOperand& operand, InputKind kind, i64 row, i64 col,
                                        float (&values)[kOctet]) {
    const auto* data = static_cast<const In*>(operand.data);
    if (kind == InputKind::matrix) return unpack(load_octet(data + row * operand.stride + col), values);
    if (kind == InputKind::row) {
      const float value = static_cast<const float*>(operand.data)[row];
      INGOT_UNROLL
      for (u32 c = 0; c < kOctet; ++c) values[c] = value;
      return;
    }
    // The same for every row: from the L1, or kept in registers.
    Octet<In> octet;
    INGOT_UNROLL
    for (u32 i = 0; i < Octet<In>::kVectors; ++i) octet.vectors[i].bits = load16(data + col + i * kPerVector<In>);
    unpack(octet, values);
  }

  INGOT_DEVICE static float operand_element(const SourceOperand& operand, InputKind kind, i64 row, i64 col) {
    if (kind == InputKind::row) return static_cast<const float*>(operand.data)[row];
    const i64 at = kind == InputKind::column ? col : row * operand.stride + col;
    return to_float(static_cast<const In*>(operand.data)[at]);
  }
};

}  // namespace ingot
