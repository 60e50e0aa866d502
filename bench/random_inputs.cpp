#include "random_inputs.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

namespace ingot::bench {
namespace {

std::vector<std::int32_t> permutation(std::int64_t count, std::uint64_t seed) {
  std::vector<std::int32_t> numbers(static_cast<std::size_t>(count));
  std::iota(numbers.begin(), numbers.end(), 0);
  std::shuffle(numbers.begin(), numbers.end(), std::mt19937_64(seed));
  return numbers;
}

// Each part is larger than the one before it.
std::vector<std::int32_t> ends(std::int64_t parts, std::int64_t rows) {
  std::vector<std::int32_t> numbers;
  for (std::int64_t i = 1; i <= parts; ++i) {
    numbers.push_back(static_cast<std::int32_t>(rows * i * (i + 1) / (parts * (parts + 1))));
  }
  return numbers;
}

}  // namespace

void fill(RandomData& random, const Placed& placed, std::uint64_t seed) {
  for (const Operand& operand : placed.operation().operands) {
    if (operand.role != Operand::Role::input && !operand.value) continue;
    ++seed;
    void* const to = placed.tensors()[operand.name].data;
    if (operand.value) {
      const std::vector<float> values(byte_count(operand) / sizeof(float), *operand.value);
      placed.backend().device_api().copy_from_host(to, values.data(), byte_count(operand), random.stream());
    } else if (operand.permutation || operand.ends_of != 0) {
      const std::vector<std::int32_t> numbers =
          operand.permutation ? permutation(operand.cols, seed) : ends(operand.cols, operand.ends_of);
      placed.backend().device_api().copy_from_host(to, numbers.data(), byte_count(operand), random.stream());
    } else {
      random.fill(to, byte_count(operand), operand.dtype, seed);
    }
  }
}

}  // namespace ingot::bench
