// The check of amax's tensors.
#include "ingot/runtime/cast/amax_operation.h"
#include "ingot/runtime/cast/scaled_input.h"
#include "ingot/runtime/check_tensor.h"

namespace ingot {

void check(const AmaxSpec& spec, const AmaxTensors& tensors, Device device) {
  validate_spec(spec);
  const Tensor& input = tensors.input;
  const Range in = check_matrix("amax input", input, spec.in, device);
  const Range out =
      check_scales("amax amax", tensors.amax, Dtype::f32, spec.scale, input.rows, input.cols, device, kScaledInput);
  check_overlaps({&in, 1}, {&out, 1});
}

}  // namespace ingot
