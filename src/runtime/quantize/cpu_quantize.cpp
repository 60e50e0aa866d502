// quantize_mx and float_quantize on the CPU, by the letter of codegen/quantize/quantize_spec.h.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "ingot/runtime/cast/cpu_values.h"
#include "ingot/runtime/core/check_tensor.h"
#include "ingot/runtime/core/visit.h"
#include "ingot/runtime/cpu/thread_pool.h"
#include "ingot/runtime/quantize/quantize_operations.h"
#include "ingot/runtime/util/packed_codes.h"

#include "quantize/float_quantize.cuh"
#include "quantize/quantize_mx.cuh"

namespace ingot {

void check(const MxQuantizeSpec& spec, const MxQuantizeTensors& tensors, Device device) {
  validate_spec(spec);
  const Tensor& input = tensors.input;
  const Range inputs[] = {check_matrix("quantize_mx input", input, spec.in, device)};
  const std::int64_t groups = (input.cols + 31) / 32;
  const Range outputs[] = {
      check_matrix("quantize_mx codes", tensors.codes, spec.out, input.rows, input.cols, device, "the input's shape"),
      check_matrix("quantize_mx scales", tensors.scales, Dtype::e8m0fnu, input.rows, groups, device,
                   "one for each 32 columns of each row of the input")};
  check_overlaps(inputs, outputs);
}

void check(const FloatQuantizeSpec& spec, const FloatQuantizeTensors& tensors, Device device) {
  validate_spec(spec);
  const Tensor& input = tensors.input;
  const Range from = check_matrix("float_quantize input", input, spec.in, device);
  const Range to = check_matrix("float_quantize output", tensors.output, spec.in, input.rows, input.cols, device,
                                "the input's shape");
  if (!in_place(input, tensors.output) && overlap(from, to)) {
    refuse("float_quantize output", tensors.output,
           fmt::format("its memory overlaps that of the input, which is {}; the output may be the input itself, with "
                       "the same address and row stride, or its own memory",
                       describe(input)));
  }
}

}  // namespace ingot

namespace ingot::cpu {
namespace {

// Computes the codes of a row, one per byte, and the scales of its groups.
template <class In, class Out>
void quantize_mx_row(const In* x, std::vector<u8>& codes, u8* scales) {
  const auto cols = static_cast<i64>(codes.size());
  for (i64 begin = 0; begin < cols; begin += kMxGroup) {
    const i64 end = std::min(cols, begin + kMxGroup);
    u32 maximum = 0;
    for (i64 c = begin; c < end; ++c) maximum = std::max(maximum, amax_bits(to_float(x[c])));
    const u32 scale = mx_scale<Out>(maximum);
    *scales++ = static_cast<u8>(scale);
    for (i64 c = begin; c < end; ++c) {
      codes[static_cast<std::size_t>(c)] = static_cast<u8>(mx_code<Out>(to_float(x[c]), scale));
    }
  }
}

}  // namespace

void quantize_mx(const MxQuantizeSpec& spec, const MxQuantizeTensors& tensors, ThreadPool& pool) {
  const Tensor& input = tensors.input;
  if (input.empty()) return;
  pool.parallel_for(input.rows, rows_per_range(input.cols), [&](i64 begin, i64 end) {
    std::vector<u8> codes(static_cast<std::size_t>(input.cols));
    for (i64 r = begin; r < end; ++r) {
      visit_high_precision(spec.in, [&]<class In>(Type<In>) {
        visit_mx(spec.out, [&]<class Out>(Type<Out>) {
          quantize_mx_row<In, Out>(row<const In>(input, r), codes, row<u8>(tensors.scales, r));
        });
      });
      pack_codes(spec.out, codes, row_of_codes(tensors.codes, r));
    }
  });
}

void float_quantize(const FloatQuantizeSpec& spec, const FloatQuantizeTensors& tensors, ThreadPool& pool) {
  const Tensor& input = tensors.input;
  if (input.empty()) return;
  pool.parallel_for(input.rows, rows_per_range(input.cols), [&](i64 begin, i64 end) {
    visit_high_precision(spec.in, [&]<class In>(Type<In>) {
      for (i64 r = begin; r < end; ++r) {
        std::transform(
            row<const In>(input, r), row<const In>(input, r) + input.cols, row<In>(tensors.output, r),
            [&](In x) { return from_float<In>(round_to_format(to_float(x), spec.exponent_bits, spec.mantissa_bits)); });
      }
    });
  });
}

}  // namespace ingot::cpu
