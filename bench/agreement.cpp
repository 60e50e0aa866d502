#include "agreement.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <type_traits>
#include <vector>

#include "ingot/runtime/core/visit.h"

#include "numerics.cuh"

namespace ingot::bench {
namespace {

std::string hexadecimal(const std::byte* element, std::int64_t bytes) {
  std::string text = "0x";
  for (std::int64_t i = bytes; i-- > 0;) text += fmt::format("{:02x}", std::to_integer<unsigned>(element[i]));
  return text;
}

std::string found_at(const Operand& operand, std::int64_t index, const std::byte* expected,
                     const std::vector<std::byte>& found) {
  const std::int64_t size = size_of(operand.dtype);
  return fmt::format("{}: first at index {} (row {}, col {}): expected {}, got {}", operand.name, index,
                     index / operand.cols, index % operand.cols, hexadecimal(expected + index * size, size),
                     hexadecimal(found.data() + index * size, size));
}

std::string difference(const Operand& operand, const std::byte* expected, const std::vector<std::byte>& found) {
  const auto [at, unused] = std::mismatch(found.begin(), found.end(), expected);
  if (at == found.end()) return {};
  return found_at(operand, (at - found.begin()) / size_of(operand.dtype), expected, found);
}

template <class T>
T element(const std::byte* bytes, std::size_t i) {
  T value;
  std::memcpy(&value, bytes + i * sizeof(T), sizeof(T));
  return value;
}

// The rank of an element among the values of its dtype; both zeros have the same rank.
template <class T>
std::int64_t rank(T value) {
  using Bits = std::conditional_t<sizeof(T) == 1, std::uint8_t,
                                  std::conditional_t<sizeof(T) == 2, std::uint16_t, std::uint32_t>>;
  constexpr auto kSign = static_cast<Bits>(Bits{1} << (8 * sizeof(T) - 1));
  const auto bits = std::bit_cast<Bits>(value);
  const auto magnitude = static_cast<std::int64_t>(bits & static_cast<Bits>(~kSign));
  return (bits & kSign) != 0 ? -magnitude : magnitude;
}

template <class T>
std::string fast_difference(const Operand& operand, const std::byte* expected, const std::vector<std::byte>& found,
                            bool given) {
  const std::size_t count = found.size() / sizeof(T);
  float largest = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const float value = std::fabs(to_float(element<T>(expected, i)));
    if (std::isfinite(value)) largest = std::max(largest, value);
  }
  const float of_largest = (operand.name == "sum" ? 1e-3F : 1e-5F) * largest;
  std::size_t moved = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const T wanted = element<T>(expected, i);
    const T got = element<T>(found.data(), i);
    if (rank(wanted) == rank(got)) continue;
    ++moved;
    const float e = to_float(wanted);
    const float distance = std::fabs(e - to_float(got));
    const bool near = distance <= of_largest;
    const bool next = sizeof(T) < 4 ? std::abs(rank(wanted) - rank(got)) <= 1 && !std::isnan(distance)
                                    : distance <= 0x1p-7F * std::fabs(e);
    const bool both_nan = std::isnan(e) && std::isnan(to_float(got));
    if (!near && !next && !both_nan) return found_at(operand, static_cast<std::int64_t>(i), expected, found);
  }
  if (sizeof(T) == 1 && given && moved > 1 + count / 1000) {
    return fmt::format("{}: {} of {} codes differ, but at most one in 1000 may", operand.name, moved, count);
  }
  return {};
}

std::string fast_difference(const Operand& operand, const std::byte* expected, const std::vector<std::byte>& found,
                            bool given) {
  // An expression's result never has another dtype.
  if (!is_gemm_operand(operand.dtype)) return difference(operand, expected, found);
  return visit_dtype(operand.dtype,
                     [&]<class T>(Type<T>) { return fast_difference<T>(operand, expected, found, given); });
}

}  // namespace

std::string disagreement(const Placed& placed, Stream& stream, Backend& reference) {
  const Operation& operation = placed.operation();
  const Placed expected(operation, reference);
  Stream reference_stream(reference);
  const auto fetch = [&](const Operand& operand, std::vector<std::byte>& bytes) {
    bytes.resize(byte_count(operand));
    placed.backend().device_api().copy_to_host(bytes.data(), placed.tensors()[operand.name].data, bytes.size(), stream);
  };
  std::vector<std::byte> bytes;
  for (const Operand& operand : operation.operands) {
    if (operand.role != Operand::Role::input && !operand.value) continue;
    fetch(operand, bytes);
    if (operand.role != Operand::Role::input) {
      const std::vector<float> start(bytes.size() / sizeof(float), *operand.value);
      reference.device_api().copy_from_host(expected.tensors()[operand.name].data, start.data(), bytes.size(),
                                            reference_stream);
      continue;
    }
    reference.device_api().copy_from_host(expected.tensors()[operand.name].data, bytes.data(), bytes.size(),
                                          reference_stream);
  }
  expected.enqueue(reference_stream);
  const bool given = std::ranges::any_of(operation.operands, [](const Operand& o) { return o.name == "scales"; });
  for (const Operand& operand : operation.operands) {
    if (operand.role != Operand::Role::output) continue;
    fetch(operand, bytes);
    const auto* const wanted = static_cast<const std::byte*>(expected.tensors()[operand.name].data);
    std::string fault =
        operation.exact ? difference(operand, wanted, bytes) : fast_difference(operand, wanted, bytes, given);
    if (!fault.empty()) return fault;
  }
  return {};
}

}  // namespace ingot::bench
