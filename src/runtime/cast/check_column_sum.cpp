// The check of column_sum's tensors.
#include "ingot/runtime/cast/column_sum_operation.h"
#include "ingot/runtime/check_tensor.h"

namespace ingot {

void check(const ColumnSumSpec& spec, const ColumnSumTensors& tensors, Device device) {
  validate_spec(spec);
  const Range in = check_matrix("column_sum input", tensors.input, spec.in, device);
  const Range out = check_vector("column_sum sum", tensors.sum, spec.out, tensors.input.cols, device,
                                 "one for each column of the input");
  check_overlaps({&in, 1}, {&out, 1});
}

}  // namespace ingot
