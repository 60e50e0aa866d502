// elementwise on the CPU: one or two pointwise expressions over a matrix.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include "ingot/runtime/cast/cast_operations.h"
#include "ingot/runtime/cast/cpu_values.h"
#include "ingot/runtime/core/check_tensor.h"
#include "ingot/runtime/cpu/thread_pool.h"
#include "ingot/runtime/pointwise/check_pointwise.h"

#include "cast/elementwise_rows.cuh"

namespace ingot {
namespace {

constexpr PointwiseInputNames kInputs{"elementwise inputs[0]", "elementwise inputs[1]", "elementwise inputs[2]",
                                      "elementwise inputs[3]"};

// Are these different columns of one matrix, such as the halves of [gate, up]? Their rows alternate in memory.
bool side_by_side(const Tensor& a, const Tensor& b) {
  if (a.row_stride != b.row_stride || a.row_stride <= 0) return false;
  const std::int64_t stride = a.row_stride * size_of(a.dtype);
  const std::int64_t width = a.cols * size_of(a.dtype);
  const auto address = [](const Tensor& tensor) { return reinterpret_cast<std::uintptr_t>(tensor.data); };
  const auto apart = static_cast<std::int64_t>(address(b) - address(a)) % stride;
  const std::int64_t shift = apart < 0 ? apart + stride : apart;
  return shift >= width && shift + width <= stride;
}

using InputRanges = std::array<Range, 1 + kMaxPointwiseInputs>;

InputRanges check_inputs(const ElementwiseSpec& spec, const ElementwiseTensors& tensors, Device device) {
  const PointwiseShape shape = shape_of_input(tensors.input);
  const ElementwiseInputs inputs(spec);
  const auto all = inputs.all();
  InputRanges ranges = {check_values("elementwise input", tensors.input, spec.in, uses_x(spec), device)};
  for (std::size_t i = 0; i < kMaxPointwiseInputs; ++i) {
    ranges[i + 1] = i < all.size() ? check_pointwise_input(*all[i], kInputs[i], tensors.inputs[i], shape, device)
                                   : check_absent(kInputs[i], tensors.inputs[i],
                                                  spec.second || spec.row_sum ? "the expressions have no such input"
                                                                              : "the expression has no such input");
  }
  return ranges;
}

// An output may be one of the matrices, but not a vector, which all rows or columns read.
void check_output_overlaps(const ElementwiseSpec& spec, InputRanges inputs, const Range& output) {
  const ElementwiseInputs read(spec);
  const auto all = read.all();
  for (std::size_t i = 0; i <= all.size(); ++i) {
    if ((i > 0 && all[i - 1]->kind != PointwiseInput::Kind::matrix) || !overlap(inputs[i], output)) continue;
    if (!in_place(*inputs[i].tensor, *output.tensor)) {
      refuse(output.what, *output.tensor,
             fmt::format("its memory overlaps that of {}, which is {}; the output may be that matrix itself, with the "
                         "same address and row stride, or its own memory",
                         inputs[i].what, describe(*inputs[i].tensor)));
    }
    inputs[i].bytes = 0;
  }
  check_overlaps(inputs, {&output, 1});
}

Range check_maxima(const char* what, const Tensor& maxima, bool asked, std::int64_t count, const char* because,
                   Device device) {
  if (!asked) return check_absent(what, maxima, "the spec does not ask for maxima");
  return check_vector(what, maxima, Dtype::f32, count, device, because);
}

}  // namespace

void check(const ElementwiseSpec& spec, const ElementwiseTensors& tensors, Device device) {
  validate_spec(spec);
  const InputRanges inputs = check_inputs(spec, tensors, device);
  const auto check_output = [&](const char* what, const Tensor& output) {
    return check_matrix(what, output, spec.in, tensors.input.rows, tensors.input.cols, device, "the input's shape");
  };
  const Range outputs[] = {
      check_output("elementwise output", tensors.output),
      spec.second ? check_output("elementwise second", tensors.second)
                  : check_absent("elementwise second", tensors.second, "the spec has no second expression")};
  for (const Range& output : outputs) check_output_overlaps(spec, inputs, output);
  const Range amax = spec.amax
                         ? check_vector("elementwise amax", tensors.amax, Dtype::f32, 1, device, "one for all outputs")
                         : check_absent("elementwise amax", tensors.amax, "the spec does not ask for this output");
  const Range sums = spec.row_sum ? check_vector("elementwise sums", tensors.sums, Dtype::f32, tensors.input.rows,
                                                 device, "one for each row of the input")
                                  : check_absent("elementwise sums", tensors.sums, "the spec has no row_sum");
  const Range maxima[] = {
      check_maxima("elementwise row_amax", tensors.row_amax, spec.maxima, tensors.input.rows,
                   "one for each row of the input", device),
      check_maxima(
          "elementwise column_amax", tensors.column_amax, spec.maxima, tensors.input.cols * (spec.second ? 2 : 1),
          spec.second ? "one for each column of output, then of second" : "one for each column of the output", device)};
  for (const Range& vector : {amax, sums, maxima[0], maxima[1]}) {
    check_overlaps(inputs, {&vector, 1});
    check_overlaps(outputs, {&vector, 1});
  }
  check_overlaps({&sums, 1}, maxima);
  if (!side_by_side(tensors.output, tensors.second)) check_overlaps({}, outputs);
}

}  // namespace ingot

namespace ingot::cpu {

namespace {

// The inputs of one of the expressions, in its own order.
std::array<Tensor, kMaxPointwiseInputs> inputs_of(const Pointwise& expression, const ElementwiseSpec& spec,
                                                  const ElementwiseTensors& tensors) {
  const ElementwiseInputs all(spec);
  std::array<Tensor, kMaxPointwiseInputs> inputs{};
  std::ranges::transform(expression.inputs(), inputs.begin(),
                         [&](const PointwiseInput& input) { return tensors.inputs[all.index_of(input.name)]; });
  return inputs;
}

// group_sums() of templates/reduce.cuh.
float sum_of_threads(std::span<float> parts) {
  float total = 0;
  for (std::size_t warp = 0; warp < parts.size(); warp += 32) {
    const std::span<float> lanes = parts.subspan(warp, 32);
    for (std::size_t step = 16; step != 0; step /= 2) {
      for (std::size_t lane = 0; lane < step; ++lane) lanes[lane] = lanes[lane] + lanes[lane + step];
    }
    total = warp == 0 ? lanes[0] : total + lanes[0];
  }
  return total;
}

// The largest |values| that are written, as bits: of each column of both outputs, and of all.
struct Largest {
  std::vector<u32> columns;
  u32 all = 0;
};

// Outputs may be matrices that are read: each piece is read completely before any of it is written. Writes row_amax.
template <class In>
Largest write_values(const Values<In>& values, const Values<In>* second, const ElementwiseTensors& tensors,
                     ThreadPool& pool) {
  constexpr i64 kPiece = Values<In>::kMaxCount;
  const Largest none{std::vector<u32>(static_cast<std::size_t>((second != nullptr ? 2 : 1) * values.cols()))};
  Largest largest = none;
  std::mutex merging;
  pool.parallel_for(values.rows(), rows_per_range(values.cols()), [&](i64 begin, i64 end) {
    std::array<float, kPiece> read;
    std::array<float, kPiece> read_second;
    Largest mine = none;
    for (i64 r = begin; r < end; ++r) {
      u32 of_row = 0;
      for (i64 c = 0; c < values.cols(); c += kPiece) {
        const i64 count = std::min(kPiece, values.cols() - c);
        const auto write = [&](const std::array<float, kPiece>& from, const Tensor& to, i64 first_column) {
          std::transform(from.begin(), from.begin() + count, row<In>(to, r) + c, from_float<In>);
          for (i64 i = 0; i < count; ++i) {
            const u32 bits = amax_bits(from[static_cast<std::size_t>(i)]);
            u32& of_column = mine.columns[static_cast<std::size_t>(first_column + c + i)];
            of_column = std::max(of_column, bits);
            of_row = std::max(of_row, bits);
          }
        };
        values.read(r, c, count, read.data());
        if (second != nullptr) second->read(r, c, count, read_second.data());
        write(read, tensors.output, 0);
        if (second != nullptr) write(read_second, tensors.second, values.cols());
      }
      mine.all = std::max(mine.all, of_row);
      if (tensors.row_amax.data != nullptr) row<float>(tensors.row_amax, 0)[r] = amax_from_bits(of_row);
    }
    const std::lock_guard lock(merging);
    largest.all = std::max(largest.all, mine.all);
    std::ranges::transform(largest.columns, mine.columns, largest.columns.begin(),
                           [](u32 a, u32 b) { return std::max(a, b); });
  });
  return largest;
}

// The sums of the rows, in the order of templates/cast/elementwise_rows.cuh.
template <class In>
void sum_rows(const Values<In>& values, const Tensor& sums, ThreadPool& pool) {
  const u32 threads = 1U << ElementwiseRowsLaunch::threads_log2(values.cols());
  pool.parallel_for(values.rows(), rows_per_range(values.cols()), [&](i64 begin, i64 end) {
    std::array<float, Values<In>::kMaxCount> read;
    for (i64 r = begin; r < end; ++r) {
      std::array<float, ElementwiseRowsLaunch::kThreads> parts{};
      for (i64 c = 0; c < values.cols(); c += Values<In>::kMaxCount) {
        const i64 count = std::min(Values<In>::kMaxCount, values.cols() - c);
        values.read(r, c, count, read.data());
        for (i64 i = 0; i < count; ++i) {
          float& part = parts[static_cast<std::size_t>((c + i) / kVec8 % threads)];
          part = part + read[static_cast<std::size_t>(i)];
        }
      }
      row<float>(sums, 0)[r] = from_float<f32>(sum_of_threads(std::span(parts).first(threads)));
    }
  });
}

}  // namespace

void elementwise(const ElementwiseSpec& spec, const ElementwiseTensors& tensors, ThreadPool& pool) {
  visit_high_precision(spec.in, [&]<class In>(Type<In>) {
    const Values<In> values(cast_of_values(spec), {.input = tensors.input, .scale_inv = {}, .inputs = tensors.inputs});
    const Values<In> second(cast_of_values(spec, true),
                            {.input = tensors.input, .scale_inv = {}, .inputs = inputs_of(spec.second, spec, tensors)});
    if (spec.row_sum) {  // first, as outputs may be matrices that are read
      const auto inputs = inputs_of(spec.row_sum, spec, tensors);
      sum_rows<In>(Values<In>(cast_of_summed(spec), {.input = tensors.input, .scale_inv = {}, .inputs = inputs}),
                   tensors.sums, pool);
    }
    const Largest largest = write_values<In>(values, spec.second ? &second : nullptr, tensors, pool);
    if (spec.amax) *row<float>(tensors.amax, 0) = amax_from_bits(largest.all);
    if (spec.maxima) std::ranges::transform(largest.columns, row<float>(tensors.column_amax, 0), amax_from_bits);
  });
}

}  // namespace ingot::cpu
