// Where a cast's values come from: the elements of a matrix, or an expression of them and of further inputs
// (pointwise.cuh), computed while loading. Values are computed in f32 and rounded to the matrix's dtype, as if the
// expression were a separate kernel before the cast, unless ValueConfig says otherwise.
#pragma once

#include "memory.cuh"
#include "platform.cuh"
#include "pointwise/pointwise.cuh"
#include "vec8.cuh"

namespace ingot {

// A further input: In[rows, cols], In[cols], f32[cols] or f32[rows], depending on its kind.
struct SourceOperand {
  const void* data;
  i64 stride;  // for a matrix: elements from row to row
};

struct SourceParams {
  const void* input;  // In[rows, cols]
  i64 rows, cols;
  i64 input_stride;  // elements
  SourceOperand operands[kMaxInputs];
};

// How the values of an expression are computed.
struct ValueConfig {
  bool unrounded = false;  // values stay f32
  bool in_place = false;   // each thread may write its values over the elements that it has read (elementwise.cuh)
};

template <HighPrecision InDtype, class F = Identity, ValueConfig Config = ValueConfig{}>
struct ValueSource {
  using In = InDtype;
  static constexpr bool kFused = !is_same<F, Identity>;
  static constexpr int kOperands = F::kInputs;  // signed: comparing an unsigned index with 0 would be a warning
  using Value = typename Select<kFused && Config.unrounded, f32, In>::Type;
  static constexpr u32 kMatrices = count_inputs<F>(InputKind::matrix) + (F::kUsesX ? 1 : 0);
  // In units of a Vec8 of In.
  static constexpr u32 kColumns =
      count_inputs<F>(InputKind::column) + count_inputs<F>(InputKind::column_f32) * 4 / static_cast<u32>(sizeof(In));
  static constexpr u32 kRows = count_inputs<F>(InputKind::row);
  // Three Vec8s or more are read per Vec8 of values: kernels give such expressions more registers.
  static constexpr bool kMany = kMatrices + kColumns > 2;
  // Are the rows found by an index (cast_gathered.cuh)?
  static constexpr bool kGathered = false;

  // May rows be read 8 elements at a time, from columns that are multiples of 8?
  INGOT_HOST_DEVICE static bool aligned(const SourceParams& p) {
    bool all = !F::kUsesX || vector_aligned<In>(p.input, p.input_stride);
    INGOT_UNROLL
    for (int i = 0; i < kOperands; ++i) {
      const SourceOperand& operand = p.operands[i];
      if (F::kKinds[i] == InputKind::matrix) all = all && vector_aligned<In>(operand.data, operand.stride);
      if (is_column(F::kKinds[i])) all = all && ingot::aligned(operand.data, 16);
    }
    return all;
  }

  // The address of an element, and of the operands that belong to it.
  struct Pointers {
    const In* x;
    const In* operands[kMaxInputs];   // matrices and columns
    const float* floats[kMaxInputs];  // rows and columns of f32
  };
  INGOT_DEVICE static Pointers pointers_at(const SourceParams& p, i64 row, i64 col) {
    Pointers at{};
    if constexpr (F::kUsesX) at.x = static_cast<const In*>(p.input) + row * p.input_stride + col;
    INGOT_UNROLL
    for (int i = 0; i < kOperands; ++i) {
      const SourceOperand& operand = p.operands[i];
      if (F::kKinds[i] == InputKind::row) {
        at.floats[i] = static_cast<const float*>(operand.data) + row;
      } else if (F::kKinds[i] == InputKind::column_f32) {
        at.floats[i] = static_cast<const float*>(operand.data) + col;
      } else {
        const i64 above = F::kKinds[i] == InputKind::matrix ? row * operand.stride : 0;
        at.operands[i] = static_cast<const In*>(operand.data) + above + col;
      }
    }
    return at;
  }

  // Moves the pointers one row down. They are hidden, so that an addition leads to the next row, instead of a product.
  INGOT_DEVICE static void step_down(const SourceParams& p, Pointers& at) {
    if constexpr (F::kUsesX) {
      at.x += p.input_stride;
      hide(at.x);
    }
    INGOT_UNROLL
    for (int i = 0; i < kOperands; ++i) {
      if (F::kKinds[i] == InputKind::matrix) {
        at.operands[i] += p.operands[i].stride;
        hide(at.operands[i]);
      } else if (F::kKinds[i] == InputKind::row) {
        ++at.floats[i];
      }
    }
  }

  // Prefetches into the L2 what fetch() will read of the matrix `rows` rows below.
  INGOT_DEVICE static void prefetch(const SourceParams& p, const Pointers& at, u32 rows) {
    static_assert(!kFused);
    prefetch_line(at.x + rows * p.input_stride);
  }

  // The inputs from which 8 values are computed.
  struct Raw {
    Vec8<In> x;
    Vec8<In> operands[kMaxInputs];  // matrices
    float of_row[kMaxInputs];
  };
  struct RawColumns {
    Vec8<In> operands[kMaxInputs];
    Vec8<f32> floats[kMaxInputs];
  };

  // Fetches the inputs of the 8 values that begin `rows` below and `cols` to the right.
  INGOT_DEVICE static Raw fetch(const SourceParams& p, const Pointers& at, u32 rows, u32 cols) {
    Raw raw{};
    if constexpr (F::kUsesX) raw.x = load_vec8(at.x + rows * p.input_stride + cols);
    INGOT_UNROLL
    for (int i = 0; i < kOperands; ++i) {
      if (F::kKinds[i] == InputKind::matrix) {
        raw.operands[i] = load_vec8(at.operands[i] + rows * p.operands[i].stride + cols);
      } else if (F::kKinds[i] == InputKind::row) {
        raw.of_row[i] = at.floats[i][rows];
      }
    }
    return raw;
  }
  INGOT_DEVICE static RawColumns fetch_columns(const Pointers& at, u32 cols) {
    RawColumns raw{};
    INGOT_UNROLL
    for (int i = 0; i < kOperands; ++i) {
      if (F::kKinds[i] == InputKind::column) raw.operands[i] = load_vec8_again(at.operands[i] + cols);
      if (F::kKinds[i] == InputKind::column_f32) raw.floats[i] = load_vec8_again<f32>(at.floats[i] + cols);
    }
    return raw;
  }

  // The same for any alignment, and only for the first `count` of the 8 values.
  INGOT_DEVICE static Raw fetch_elements(const SourceParams& p, const Pointers& at, u32 rows, u32 count) {
    Raw raw{};
    if constexpr (F::kUsesX) raw.x = load_elements(at.x + rows * p.input_stride, count);
    INGOT_UNROLL
    for (int i = 0; i < kOperands; ++i) {
      if (F::kKinds[i] == InputKind::matrix) {
        raw.operands[i] = load_elements(at.operands[i] + rows * p.operands[i].stride, count);
      } else if (F::kKinds[i] == InputKind::row) {
        raw.of_row[i] = count != 0 ? at.floats[i][rows] : 0.0F;
      }
    }
    return raw;
  }
  INGOT_DEVICE static RawColumns fetch_column_elements(const Pointers& at, u32 count) {
    RawColumns raw{};
    INGOT_UNROLL
    for (int i = 0; i < kOperands; ++i) {
      if (F::kKinds[i] == InputKind::column) raw.operands[i] = load_elements(at.operands[i], count);
      if (F::kKinds[i] == InputKind::column_f32) raw.floats[i] = load_elements(at.floats[i], count);
    }
    return raw;
  }

  // Makes the compiler keep the elements of columns as words, and unpack them again for each row.
  INGOT_DEVICE static void forget_columns(RawColumns& columns) {
    INGOT_UNROLL
    for (int i = 0; i < kOperands; ++i) {
      if (F::kKinds[i] == InputKind::column) forget_values(columns.operands[i]);
    }
  }

  INGOT_DEVICE static Vec8<Value> values(const Raw& raw, const RawColumns& columns) {
    return values_of<F>(raw, columns);
  }
  // Those of another expression of the same inputs.
  template <class Other>
  INGOT_DEVICE static Vec8<Value> values_of(const Raw& raw, const RawColumns& columns) {
    if constexpr (!kFused) {
      return raw.x;
    } else {
      float results[kVec8];
      compute<Other>(raw, columns, results);
      return pack<Value>(results);
    }
  }
  // The same before they are rounded.
  template <class Other>
  INGOT_DEVICE static void compute(const Raw& raw, const RawColumns& columns, float (&results)[kVec8]) {
    float x[kVec8];
    unpack(raw.x, x);
    float operands[kMaxInputs][kVec8];
    INGOT_UNROLL
    for (int i = 0; i < kOperands; ++i) {
      if (F::kKinds[i] == InputKind::column_f32) {
        unpack(columns.floats[i], operands[i]);
      } else {
        unpack(F::kKinds[i] == InputKind::column ? columns.operands[i] : raw.operands[i], operands[i]);
      }
    }
    INGOT_UNROLL
    for (u32 c = 0; c < kVec8; ++c) {
      float inputs[kMaxInputs] = {};
      INGOT_UNROLL
      for (int i = 0; i < kOperands; ++i) {
        inputs[i] = F::kKinds[i] == InputKind::row ? raw.of_row[i] : operands[i][c];
      }
      results[c] = apply_pointwise<Other>(x[c], inputs);
    }
  }

  INGOT_DEVICE static Vec8<Value> load(const SourceParams& p, i64 row, i64 col) {
    const Pointers at = pointers_at(p, row, col);
    return values(fetch(p, at, 0, 0), fetch_columns(at, 0));
  }

  // Begins the values with a row further down.
  INGOT_DEVICE static void skip_rows(SourceParams& p, i64 rows) {
    p.input = static_cast<const In*>(p.input) + rows * p.input_stride;
    INGOT_UNROLL
    for (int i = 0; i < kOperands; ++i) {
      SourceOperand& operand = p.operands[i];
      if (F::kKinds[i] == InputKind::matrix) {
        operand.data = static_cast<const In*>(operand.data) + rows * operand.stride;
      } else if (F::kKinds[i] == InputKind::row) {
        operand.data = static_cast<const float*>(operand.data) + rows;
      }
    }
  }

  // The row of the input from which those of row `row` come.
  INGOT_DEVICE static i64 row_of(const SourceParams&, i64 row) { return row; }

  // Computes one value.
  INGOT_DEVICE static Value element(const SourceParams& p, i64 row, i64 col) { return element_of<F>(p, row, col); }
  template <class Other>
  INGOT_DEVICE static Value element_of(const SourceParams& p, i64 row, i64 col) {
    if constexpr (!kFused) {
      return *element_at(p, row, col);
    } else {
      return from_float<Value>(float_of<Other>(p, row, col));
    }
  }
  // The same before it is rounded.
  template <class Other>
  INGOT_DEVICE static float float_of(const SourceParams& p, i64 row, i64 col) {
    float inputs[kMaxInputs] = {};
    INGOT_UNROLL
    for (int i = 0; i < kOperands; ++i) {
      inputs[i] = operand_element(p.operands[i], F::kKinds[i], row, col);
    }
    return apply_pointwise<Other>(F::kUsesX ? to_float(*element_at(p, row, col)) : 0.0F, inputs);
  }

 private:
  INGOT_DEVICE static const In* element_at(const SourceParams& p, i64 row, i64 col) {
    return static_cast<const In*>(p.input) + row * p.input_stride + col;
  }
  INGOT_HOST_DEVICE static constexpr bool is_column(InputKind kind) {
    return kind == InputKind::column || kind == InputKind::column_f32;
  }
  INGOT_DEVICE static Vec8<In> load_vec8(const In* source) {
    if constexpr (Config.in_place) {
      return load_vec8_in_place(source);
    } else {
      return load_vec8_once(source);
    }
  }
  INGOT_DEVICE static float operand_element(const SourceOperand& operand, InputKind kind, i64 row, i64 col) {
    if (kind == InputKind::row) return static_cast<const float*>(operand.data)[row];
    if (kind == InputKind::column_f32) return static_cast<const float*>(operand.data)[col];
    const i64 at = kind == InputKind::column ? col : row * operand.stride + col;
    return to_float(static_cast<const In*>(operand.data)[at]);
  }
};

// The elements of a matrix of f32, rounded to 16 bits as by a separate kernel before this one.
template <HighPrecision InDtype, HighPrecision To>
struct RoundedSource : ValueSource<InDtype> {
  using Elements = ValueSource<InDtype>;
  using Value = To;
  static_assert(sizeof(Value) < sizeof(InDtype));

  INGOT_DEVICE static Vec8<Value> values(const typename Elements::Raw& raw, const typename Elements::RawColumns&) {
    float x[kVec8];
    unpack(raw.x, x);
    return pack<Value>(x);
  }
  INGOT_DEVICE static Vec8<Value> load(const SourceParams& p, i64 row, i64 col) {
    return values(Elements::fetch(p, Elements::pointers_at(p, row, col), 0, 0), {});
  }
  INGOT_DEVICE static Value element(const SourceParams& p, i64 row, i64 col) {
    return from_float<Value>(to_float(Elements::element(p, row, col)));
  }
};

// Eight neighbouring elements, `rows` below and `cols` to the right of Pointers.
struct Vec8Offset {
  u32 rows, cols;
  bool inside;  // inside the matrix
};

// Do elements or values take 32 bits each?
template <class Source>
INGOT_HOST_DEVICE constexpr bool is_wide() {
  return sizeof(typename Source::In) == 4 || sizeof(typename Source::Value) == 4;
}

// How many Vec8s to fetch before the first is computed, a power of two: 64 registers' worth. With several inputs for
// f32 values there is no room for two, and on sm_120 ptxas needs more registers than elsewhere.
template <class Source>
INGOT_HOST_DEVICE constexpr u32 vec8s_in_flight(u32 inputs) {
  if (is_wide<Source>()) return inputs <= 1 ? 8 : 1;
  return inputs <= 1 ? 16 : inputs == 2 ? (kDeviceArch >= 1200 ? 4 : 8) : inputs <= 4 ? 4 : 2;
}

// Loads Count times 8 values, at offset_of(0) .. offset_of(Count - 1); those outside the matrix are 0. All loads of a
// batch are issued before the first value is computed: an expression between two loads would delay the second.
// OneBelowTheOther: all have the same columns. ByHalves (only if those inside come first): a branch between the two
// halves of a batch, so that ptxas mixes the computation of only half of it, which takes fewer registers.
template <class Source, bool OneBelowTheOther, bool ByHalves = false, u32 Count, class OffsetOf>
INGOT_DEVICE void load_vec8s(const SourceParams& p, const typename Source::Pointers& at,
                             Vec8<typename Source::Value> (&vec8s)[Count], OffsetOf offset_of) {
  constexpr u32 kInputs = Source::kMatrices + (OneBelowTheOther ? 0 : Source::kColumns);
  constexpr u32 kBatch = min_of(Count, vec8s_in_flight<Source>(kInputs));
  static_assert(Count % kBatch == 0);
  constexpr u32 kColumnVec8s = OneBelowTheOther ? 1 : kBatch;
  typename Source::RawColumns columns[kColumnVec8s] = {};
  if (OneBelowTheOther && offset_of(0).inside) columns[0] = Source::fetch_columns(at, offset_of(0).cols);
  if constexpr (kBatch == 1) {
    INGOT_UNROLL
    for (u32 i = 0; i < Count; ++i) {
      const Vec8Offset offset = offset_of(i);
      vec8s[i] = {};
      if (!offset.inside) continue;
      if (!OneBelowTheOther) columns[0] = Source::fetch_columns(at, offset.cols);
      vec8s[i] = Source::values(Source::fetch(p, at, offset.rows, offset.cols), columns[0]);
    }
  } else {
    INGOT_UNROLL
    for (u32 first = 0; first < Count; first += kBatch) {
      typename Source::Raw raw[kBatch] = {};
      INGOT_UNROLL
      for (u32 i = 0; i < kBatch; ++i) {
        const Vec8Offset offset = offset_of(first + i);
        if (!offset.inside) continue;
        raw[i] = Source::fetch(p, at, offset.rows, offset.cols);
        if (!OneBelowTheOther) columns[i % kColumnVec8s] = Source::fetch_columns(at, offset.cols);
      }
      INGOT_UNROLL
      for (u32 i = 0; i < kBatch; ++i) {
        if (ByHalves && i == kBatch / 2 && !offset_of(first + i).inside) {
          INGOT_UNROLL
          for (; i < kBatch; ++i) vec8s[first + i] = {};
          break;
        }
        vec8s[first + i] = Source::values(raw[i], columns[i % kColumnVec8s]);
        if (Source::kFused && !offset_of(first + i).inside) vec8s[first + i] = {};
      }
    }
  }
}

}  // namespace ingot
