// The checks of amax_history's tensors.
#include <cstdint>

#include "ingot/runtime/cast/amax_history_operation.h"
#include "ingot/runtime/check_tensor.h"

namespace ingot {

void check(const AmaxHistorySpec& spec, const AmaxHistoryTensors& tensors, Device device) {
  validate_spec(spec);
  const Range history = check_matrix("amax_history history", tensors.history, Dtype::f32, device);
  const std::int64_t slots = tensors.history.rows;
  if (slots != 0 && tensors.history.cols == 0) {
    refuse("amax_history history", tensors.history, "it must have a column for each step that it keeps, at least one");
  }
  const auto check_slots = [&](const char* what, const Tensor& tensor) {
    return check_vector(what, tensor, Dtype::f32, slots, device, "one for each row of the history");
  };
  const Range inputs[] = {check_slots("amax_history limits", tensors.limits),
                          check_slots("amax_history pow2", tensors.pow2),
                          tensors.known.data == nullptr ? Range{} : check_slots("amax_history known", tensors.known)};
  const Range outputs[] = {check_slots("amax_history amax", tensors.amax), history,
                           check_slots("amax_history scale", tensors.scale)};
  check_overlaps(inputs, outputs);
}

}  // namespace ingot
