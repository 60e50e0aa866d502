// What the cast operations share on the CPU: the values of a cast, which are the elements of the input in f32
// or a fused expression of them (pointwise.h), rounded to the input's dtype if the spec says so; and the largest |x| of
// each extent of a granularity, as integers (templates/scaling.cuh): NaN is kept, and the order does not matter.
#pragma once

#include <algorithm>
#include <array>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "ingot/codegen/cast/cast_spec.h"
#include "ingot/codegen/pointwise/pointwise_program.h"
#include "ingot/codegen/types/granularity.h"
#include "ingot/runtime/cast/cast_tensors.h"
#include "ingot/runtime/core/visit.h"
#include "ingot/runtime/cpu/thread_pool.h"

#include "numerics.cuh"
#include "scaling.cuh"

namespace ingot::cpu {

template <class In>
class Values {
 public:
  static constexpr i64 kMaxCount = 256;  // of one read

  explicit Values(const Tensor& input, std::optional<Dtype> rounded = {})
      : input_(input), program_({}, PointwisePrecision::reproducible32), elements_as_(rounded) {}
  // `index`: whose rows they are; null for all rows of the input.
  Values(const CastSpec& spec, const CastTensors& tensors, const RowIndex* index = nullptr)
      : input_(tensors.input),
        index_(index),
        inputs_(tensors.inputs),
        program_(spec.pointwise, value_precision(spec)),
        rounded_(!spec.unrounded),
        elements_as_(spec.rounded) {}

  i64 rows() const { return index_ == nullptr ? input_.rows : index_->rows; }
  i64 cols() const { return input_.cols; }

  // Those of row r, columns c .. c + count - 1.
  void read(i64 r, i64 c, i64 count, float* values) const {
    const Pointwise& expression = program_.expression();
    if (!expression || expression.uses_x()) decode(input_, row_of(r), c, count, values);
    if (!expression) return round_elements(count, values);
    std::array<std::array<float, kMaxCount>, kMaxPointwiseInputs> buffers;
    std::array<PointwiseValues, kMaxPointwiseInputs> inputs;
    const auto kinds = expression.inputs();
    for (std::size_t i = 0; i < kinds.size(); ++i) {
      inputs[i] = {buffers[i].data(), kinds[i].kind == PointwiseInput::Kind::row};
      if (inputs[i].same) {
        buffers[i][0] = row<const float>(inputs_[i], 0)[r];
      } else if (kinds[i].kind == PointwiseInput::Kind::column_f32) {
        inputs[i].values = row<const float>(inputs_[i], 0) + c;
      } else {
        decode(inputs_[i], kinds[i].kind == PointwiseInput::Kind::column ? 0 : r, c, count, buffers[i].data());
      }
    }
    program_.run(static_cast<std::size_t>(count), values, std::span(inputs).first(kinds.size()), values);
    for (i64 i = 0; i < count; ++i) values[i] = rounded_ ? to_float(from_float<In>(values[i])) : values[i];
  }

 private:
  // Outside of the input, the last row, as in the kernels.
  i64 row_of(i64 r) const {
    if (index_ == nullptr) return r;
    const i64 found = index_->data[r];
    return found < 0 ? input_.rows - 1 : std::min(found, i64{input_.rows} - 1);
  }

  void round_elements(i64 count, float* values) const {
    const auto round = [&]<class To>(Type<To>) {
      for (i64 i = 0; i < count; ++i) values[i] = to_float(from_float<To>(values[i]));
    };
    if (elements_as_) visit_high_precision(*elements_as_, round);
  }

  static void decode(const Tensor& from, i64 r, i64 c, i64 count, float* values) {
    const In* const elements = row<const In>(from, r) + c;
    for (i64 i = 0; i < count; ++i) values[i] = to_float(elements[i]);
  }

  Tensor input_;
  const RowIndex* index_ = nullptr;
  std::array<Tensor, kMaxPointwiseInputs> inputs_{};
  PointwiseProgram program_;
  bool rounded_ = true;               // are values of an expression rounded to In?
  std::optional<Dtype> elements_as_;  // what elements are rounded to
};

// Rows per range of a loop over a matrix: about 64 Ki elements, so that the cost of handing out a range is negligible.
inline i64 rows_per_range(i64 cols) { return std::max<i64>(1, 65536 / std::max<i64>(1, cols)); }

// Maps elements to extents, which are numbered row by row.
class Extents {
 public:
  Extents(const ScaleGranularity& granularity, i64 rows, i64 cols)
      : count_(scale_count(granularity, rows, cols)),
        rows_(granularity.rows == 0 ? std::max<i64>(1, rows) : granularity.rows),
        cols_(granularity.cols == 0 ? std::max<i64>(1, cols) : granularity.cols),
        across_(granularity.cols == 0 ? 1 : ceil_div(cols, cols_)) {}

  i64 count() const { return count_; }
  i64 index(i64 row, i64 col) const { return row / rows_ * across_ + col / cols_; }
  // How many columns, from this one on, are in its extent.
  i64 cols_from(i64 col) const { return cols_ - col % cols_; }

 private:
  i64 count_;
  i64 rows_, cols_;  // of one extent
  i64 across_;
};

// maxima[extent - first] of values[i], which is column begin + i of row r. The columns of one extent are handled
// together.
inline void raise_maxima(const Extents& extents, i64 r, i64 begin, std::span<const float> values, u32* maxima,
                         i64 first) {
  const auto count = static_cast<i64>(values.size());
  for (i64 i = 0; i < count;) {
    const i64 end = std::min(count, i + extents.cols_from(begin + i));
    u32& maximum = maxima[extents.index(r, begin + i) - first];
    for (; i < end; ++i) maximum = std::max(maximum, amax_bits(values[static_cast<std::size_t>(i)]));
  }
}

template <class T>
std::vector<u32> maxima_of(const Extents& extents, const Values<T>& values, ThreadPool& pool) {
  std::vector<u32> maxima(static_cast<std::size_t>(extents.count()), 0U);
  if (values.rows() == 0 || values.cols() == 0) return maxima;
  std::mutex merging;
  pool.parallel_for(values.rows(), rows_per_range(values.cols()), [&](i64 begin, i64 end) {
    // This range's extents are contiguous, and may extend into the ranges next to it.
    const i64 first = extents.index(begin, 0);
    const i64 last = extents.index(end - 1, values.cols() - 1);
    std::vector<u32> mine(static_cast<std::size_t>(last - first + 1), 0U);
    for (i64 r = begin; r < end; ++r) {
      for (i64 c = 0; c < values.cols(); c += Values<T>::kMaxCount) {
        std::array<float, Values<T>::kMaxCount> read;
        const i64 count = std::min(Values<T>::kMaxCount, values.cols() - c);
        values.read(r, c, count, read.data());
        raise_maxima(extents, r, c, {read.data(), static_cast<std::size_t>(count)}, mine.data(), first);
      }
    }
    const std::lock_guard lock(merging);
    for (std::size_t i = 0; i < mine.size(); ++i) {
      u32& maximum = maxima[static_cast<std::size_t>(first) + i];
      maximum = std::max(maximum, mine[i]);
    }
  });
  return maxima;
}

}  // namespace ingot::cpu
