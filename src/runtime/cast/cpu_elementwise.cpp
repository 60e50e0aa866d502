// elementwise on the CPU: a pointwise expression over a matrix.
#include <fmt/format.h>

#include <cstddef>
#include <span>

#include "ingot/runtime/cast/cast_operations.h"
#include "ingot/runtime/cast/cpu_values.h"
#include "ingot/runtime/core/check_tensor.h"
#include "ingot/runtime/cpu/thread_pool.h"
#include "ingot/runtime/pointwise/check_pointwise.h"

namespace ingot {
namespace {

constexpr PointwiseInputNames kInputs{"elementwise inputs[0]", "elementwise inputs[1]", "elementwise inputs[2]",
                                      "elementwise inputs[3]"};

}  // namespace

void check(const ElementwiseSpec& spec, const ElementwiseTensors& tensors, Device device) {
  validate_spec(spec);
  const Tensor& input = tensors.input;
  Range inputs[1 + kMaxPointwiseInputs] = {check_values("elementwise input", input, spec.in, spec.pointwise, device)};
  check_pointwise_inputs(spec.pointwise, tensors.inputs, kInputs, shape_of_input(input), device,
                         std::span(inputs).subspan<1>());
  const Range output =
      check_matrix("elementwise output", tensors.output, spec.in, input.rows, input.cols, device, "the input's shape");
  // The output may be one of the matrices, but not a vector, which all rows or columns read.
  const auto kinds = spec.pointwise.inputs();
  for (std::size_t i = 0; i <= kinds.size(); ++i) {
    if ((i > 0 && kinds[i - 1].kind != PointwiseInput::Kind::matrix) || !overlap(inputs[i], output)) continue;
    if (!in_place(*inputs[i].tensor, tensors.output)) {
      refuse("elementwise output", tensors.output,
             fmt::format("its memory overlaps that of {}, which is {}; the output may be that matrix itself, with the "
                         "same address and row stride, or its own memory",
                         inputs[i].what, describe(*inputs[i].tensor)));
    }
    inputs[i].bytes = 0;
  }
  check_overlaps(inputs, {&output, 1});
}

}  // namespace ingot

namespace ingot::cpu {

// The output may be one of the matrices read: each piece is read completely before any of it is written.
void elementwise(const ElementwiseSpec& spec, const ElementwiseTensors& tensors, ThreadPool& pool) {
  visit_high_precision(spec.in, [&]<class In>(Type<In>) {
    const Values<In> values(cast_of_values(spec), {.input = tensors.input, .scale_inv = {}, .inputs = tensors.inputs});
    pool.parallel_for(values.rows(), rows_per_range(values.cols()), [&](i64 begin, i64 end) {
      for (i64 r = begin; r < end; ++r) {
        for (i64 c = 0; c < values.cols(); c += Values<In>::kMaxCount) {
          std::array<float, Values<In>::kMaxCount> read;
          const i64 count = std::min(Values<In>::kMaxCount, values.cols() - c);
          values.read(r, c, count, read.data());
          std::transform(read.begin(), read.begin() + count, row<In>(tensors.output, r) + c, from_float<In>);
        }
      }
    });
  });
}

}  // namespace ingot::cpu
