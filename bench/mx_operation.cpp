#include "mx_operation.h"

namespace ingot::bench {

Operation mx_operation(const MxQuantizeSpec& spec, std::int64_t rows, std::int64_t cols) {
  using Role = Operand::Role;
  return {
      .operands =
          {{.name = "input", .role = Role::input, .dtype = spec.in, .rows = rows, .cols = cols},
           {.name = "codes", .role = Role::output, .dtype = spec.out, .rows = rows, .cols = cols},
           {.name = "scales", .role = Role::output, .dtype = Dtype::e8m0fnu, .rows = rows, .cols = (cols + 31) / 32}},
      .call = [spec](Backend& backend, const Tensors& tensors, Stream& stream) {
        backend.quantize_mx(spec, {.input = tensors["input"], .codes = tensors["codes"], .scales = tensors["scales"]},
                            stream);
      }};
}

}  // namespace ingot::bench
