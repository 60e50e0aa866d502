#include "copy_operation.h"

#include "ingot/codegen/cast/elementwise_spec.h"
#include "ingot/codegen/pointwise/pointwise.h"
#include "ingot/runtime/cast/cast_tensors.h"

namespace ingot::bench {

Operation copy_operation(int bytes_per_element, std::int64_t rows, std::int64_t cols) {
  using Role = Operand::Role;
  constexpr int kBytesRead = 2;
  const std::int64_t copied = rows * bytes_per_element / (2 * kBytesRead);
  const ElementwiseSpec spec{.in = Dtype::bf16, .pointwise = parse_pointwise("x")};
  return {.operands = {{.name = "input", .role = Role::input, .rows = copied, .cols = cols},
                       {.name = "output", .role = Role::output, .rows = copied, .cols = cols}},
          .call = [spec](Backend& backend, const Tensors& tensors, Stream& stream) {
            backend.elementwise(spec, {.input = tensors["input"], .output = tensors["output"]}, stream);
          }};
}

}  // namespace ingot::bench
