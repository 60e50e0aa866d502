#include "random_inputs.h"

#include <vector>

namespace ingot::bench {

void fill(RandomData& random, const Placed& placed, std::uint64_t seed) {
  for (const Operand& operand : placed.operation().operands) {
    if (operand.role != Operand::Role::input && !operand.value) continue;
    ++seed;
    void* const to = placed.tensors()[operand.name].data;
    if (operand.value) {
      const std::vector<float> values(byte_count(operand) / sizeof(float), *operand.value);
      placed.backend().device_api().copy_from_host(to, values.data(), byte_count(operand), random.stream());
    } else {
      random.fill(to, byte_count(operand), operand.dtype, seed);
    }
  }
}

}  // namespace ingot::bench
