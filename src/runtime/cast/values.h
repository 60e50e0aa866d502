// Reads the values of a cast on the CPU: the elements of the input in f32, or a fused expression of them (pointwise.h),
// rounded to the input's dtype if the spec says so.
#pragma once

#include <algorithm>
#include <array>

#include "ingot/codegen/cast/cast_spec.h"
#include "ingot/codegen/pointwise/pointwise_program.h"
#include "ingot/runtime/cast/cast_tensors.h"
#include "ingot/runtime/visit.h"

#include "numerics.cuh"

namespace ingot::cpu {

// As src/codegen/generate.cpp chooses for the kernel.
inline PointwisePrecision value_precision(const CastSpec& spec) {
  if (spec.fast_math) return PointwisePrecision::fast;
  return spec.unrounded || spec.in == Dtype::f32 ? PointwisePrecision::reproducible32
                                                 : PointwisePrecision::reproducible16;
}

template <class In>
class Values {
 public:
  static constexpr i64 kMaxCount = 256;  // of one read

  explicit Values(const Tensor& input) : input_(input), program_({}, PointwisePrecision::reproducible32) {}
  Values(const CastSpec& spec, const CastTensors& tensors)
      : input_(tensors.input),
        inputs_(tensors.inputs),
        program_(spec.pointwise, value_precision(spec)),
        rounded_(!spec.unrounded) {}

  i64 rows() const { return input_.rows; }
  i64 cols() const { return input_.cols; }

  // Those of row r, columns c .. c + count - 1.
  void read(i64 r, i64 c, i64 count, float* values) const {
    const Pointwise& expression = program_.expression();
    if (!expression || expression.uses_x()) decode(input_, r, c, count, values);
    if (!expression) return;
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
  static void decode(const Tensor& from, i64 r, i64 c, i64 count, float* values) {
    const In* const elements = row<const In>(from, r) + c;
    for (i64 i = 0; i < count; ++i) values[i] = to_float(elements[i]);
  }

  Tensor input_;
  std::array<Tensor, kMaxPointwiseInputs> inputs_{};
  PointwiseProgram program_;
  bool rounded_ = true;
};

}  // namespace ingot::cpu
