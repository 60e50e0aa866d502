#include "harness.h"

#include <cstdint>

#include "ingot/runtime/measure/timing.h"

namespace ingot::bench {
namespace {

constexpr unsigned char kPoison = 0xa5;

}  // namespace

void poison(MeasuredGpu& gpu, const Placed& placed) {
  for (const Operand& operand : placed.operation().operands) {
    const std::size_t bytes = byte_count(operand);
    if (operand.role != Operand::Role::output || bytes == 0) continue;
    if (operand.value) {
      const std::vector<float> values(bytes / sizeof(float), *operand.value);
      gpu.device_api().copy_from_host(placed.tensors()[operand.name].data, values.data(), bytes, gpu.stream());
      continue;
    }
    gpu.fill(placed.tensors()[operand.name].data, kPoison, bytes);
  }
}

Rotation::Rotation(MeasuredGpu& gpu, RandomData& random, const Operation& operation) {
  const int count = copies_for(working_set(operation));
  for (int i = 0; i < count; ++i) {
    copies_.emplace_back(operation, gpu.backend());
    fill(random, copies_.back(), static_cast<std::uint64_t>(i) * 1000);
  }
}

RotatedCall Rotation::call(MeasuredGpu& gpu) const {
  return {.copies = static_cast<int>(copies_.size()),
          .enqueue = [this, &gpu](int copy) { copies_[static_cast<std::size_t>(copy)].enqueue(gpu.stream()); }};
}

}  // namespace ingot::bench
