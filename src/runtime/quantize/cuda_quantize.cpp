// quantize_mx and float_quantize on a GPU: one launch each.
#include <array>

#include "ingot/runtime/cast/cuda_cast.h"
#include "ingot/runtime/core/stream.h"
#include "ingot/runtime/jit/launcher.h"
#include "ingot/runtime/quantize/quantize_operations.h"

#include "quantize/float_quantize.cuh"
#include "quantize/quantize_mx.cuh"

namespace ingot::cuda {

void quantize_mx(const MxQuantizeSpec& spec, const MxQuantizeTensors& tensors, Stream& stream, Launcher& launcher) {
  const Tensor& input = tensors.input;
  if (input.empty()) return;
  const QuantizeMxParams params{.input = input.data,
                                .rows = input.rows,
                                .cols = input.cols,
                                .input_stride = input.row_stride,
                                .codes = static_cast<u8*>(tensors.codes.data),
                                .codes_row_bytes = row_bytes(spec.out, tensors.codes.row_stride),
                                .scales = static_cast<u8*>(tensors.scales.data),
                                .scales_stride = tensors.scales.row_stride,
                                .across_log2 = QuantizeMxLaunch::across_log2(input.cols)};
  launcher.launch(spec, Pass::main,
                  shape_of(QuantizeMxLaunch::grid(input.rows, input.cols, static_cast<u64>(size_of(spec.in)))), params,
                  stream);
}

void float_quantize(const FloatQuantizeSpec& spec, const FloatQuantizeTensors& tensors, Stream& stream,
                    Launcher& launcher) {
  const Tensor& input = tensors.input;
  if (input.empty()) return;
  constexpr std::array<Tensor, kMaxPointwiseInputs> kNone{};  // the expression has no input but x
  const ElementwiseParams params{.source = source_of(input, kNone),
                                 .output = tensors.output.data,
                                 .output_stride = tensors.output.row_stride,
                                 .across_log2 = ElementwiseLaunch::across_log2(input.cols)};
  launcher.launch(spec, Pass::main,
                  shape_of(ElementwiseLaunch::grid(input.rows, input.cols, static_cast<u64>(size_of(spec.in)))), params,
                  stream);
}

}  // namespace ingot::cuda
