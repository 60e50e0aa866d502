#include "ingot/runtime/quantize/check_quantize.h"

#include <fmt/format.h>

#include <cstdint>

#include "ingot/runtime/check_tensor.h"

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
