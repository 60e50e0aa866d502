#include "agreement.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <vector>

namespace ingot::bench {
namespace {

std::string hexadecimal(const std::byte* element, std::int64_t bytes) {
  std::string text = "0x";
  for (std::int64_t i = bytes; i-- > 0;) text += fmt::format("{:02x}", std::to_integer<unsigned>(element[i]));
  return text;
}

std::string difference(const Operand& operand, const std::byte* expected, const std::vector<std::byte>& found) {
  const auto [at, unused] = std::mismatch(found.begin(), found.end(), expected);
  if (at == found.end()) return {};
  const std::int64_t size = size_of(operand.dtype);
  const std::int64_t index = (at - found.begin()) / size;
  return fmt::format("{}: first at index {} (row {}, col {}): expected {}, got {}", operand.name, index,
                     index / operand.cols, index % operand.cols, hexadecimal(expected + index * size, size),
                     hexadecimal(found.data() + index * size, size));
}

}  // namespace

std::string disagreement(const Placed& placed, Stream& stream, Backend& reference) {
  const Operation& operation = placed.operation();
  const Placed expected(operation, reference);
  Stream reference_stream(reference);
  const auto fetch = [&](const Operand& operand, std::vector<std::byte>& bytes) {
    bytes.resize(byte_count(operand));
    placed.backend().copy_to_host(bytes.data(), placed.tensors()[operand.name].data, bytes.size(), stream);
  };
  std::vector<std::byte> bytes;
  for (const Operand& operand : operation.operands) {
    if (operand.role != Operand::Role::input && !operand.value) continue;
    fetch(operand, bytes);
    if (operand.role != Operand::Role::input) {
      const std::vector<float> start(bytes.size() / sizeof(float), *operand.value);
      reference.copy_from_host(expected.tensors()[operand.name].data, start.data(), bytes.size(), reference_stream);
      continue;
    }
    reference.copy_from_host(expected.tensors()[operand.name].data, bytes.data(), bytes.size(), reference_stream);
  }
  expected.enqueue(reference_stream);
  for (const Operand& operand : operation.operands) {
    if (operand.role != Operand::Role::output) continue;
    fetch(operand, bytes);
    const auto* const wanted = static_cast<const std::byte*>(expected.tensors()[operand.name].data);
    if (std::string fault = difference(operand, wanted, bytes); !fault.empty()) return fault;
  }
  return {};
}

}  // namespace ingot::bench
