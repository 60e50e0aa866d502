#include "mx_operation.h"

namespace ingot::bench {

Operation mx_operation(const MxQuantizeSpec& spec, std::int64_t rows, std::int64_t cols) {
  using Role = Operand::Role;
  const std::int64_t groups = (cols + 31) / 32;
  return {
      .operands = {{.name = "input", .role = Role::input, .dtype = spec.in, .rows = rows, .cols = cols},
                   {.name = "codes", .role = Role::output, .dtype = spec.out, .rows = rows, .cols = cols},
                   {.name = "scales", .role = Role::output, .dtype = Dtype::e8m0fnu, .rows = 1, .cols = rows * groups}},
      .call = [=](Backend& backend, const Tensors& tensors, Stream& stream) {
        const Tensor scales = tensors["scales"];
        backend.quantize_mx(spec,
                            {.input = tensors["input"],
                             .codes = tensors["codes"],
                             .scales = matrix(scales.data, scales.dtype, rows, groups, scales.device)},
                            stream);
      }};
}

}  // namespace ingot::bench
