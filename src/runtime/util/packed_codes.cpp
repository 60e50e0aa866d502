#include "ingot/runtime/util/packed_codes.h"

#include <fmt/format.h>

#include <algorithm>

#include "ingot/runtime/util/count_of.h"
#include "ingot/runtime/util/error.h"

namespace ingot {
namespace {

void check_sizes(const char* what, Dtype dtype, std::size_t codes, std::size_t row) {
  if (bits_of(dtype) > 8) {
    throw Error(ErrorCode::invalid_argument, what,
                fmt::format("the dtype is {}, but must be one of 8 bits or less", name(dtype)));
  }
  const auto bytes = row_bytes(dtype, static_cast<std::int64_t>(codes));
  if (static_cast<std::int64_t>(row) != bytes) {
    throw Error(ErrorCode::invalid_argument, what,
                fmt::format("the row has {}, but {} of {} take {}", count_of(row, "byte"), count_of(codes, "code"),
                            name(dtype), bytes));
  }
}

}  // namespace

void pack_codes(Dtype dtype, std::span<const std::uint8_t> codes, std::span<std::uint8_t> row) {
  check_sizes("pack_codes", dtype, codes.size(), row.size());
  const auto bits = static_cast<std::size_t>(bits_of(dtype));
  const auto wide = std::ranges::find_if(codes, [&](std::uint8_t code) { return code >> bits != 0; });
  if (wide != codes.end()) {
    throw Error(ErrorCode::invalid_argument, "pack_codes",
                fmt::format("code {} is {:#04x}, but those of {} have {} bits: mask the others", wide - codes.begin(),
                            *wide, name(dtype), bits));
  }
  std::ranges::fill(row, std::uint8_t{0});
  for (std::size_t i = 0; i < codes.size(); ++i) {
    const std::size_t first = i * bits;
    const unsigned placed = unsigned{codes[i]} << (first % 8);
    row[first / 8] = static_cast<std::uint8_t>(row[first / 8] | placed);
    if (placed > 0xff) row[first / 8 + 1] = static_cast<std::uint8_t>(placed >> 8);
  }
}

void unpack_codes(Dtype dtype, std::span<const std::uint8_t> row, std::span<std::uint8_t> codes) {
  check_sizes("unpack_codes", dtype, codes.size(), row.size());
  const auto bits = static_cast<std::size_t>(bits_of(dtype));
  for (std::size_t i = 0; i < codes.size(); ++i) {
    const std::size_t first = i * bits;
    const unsigned next = first / 8 + 1 < row.size() ? row[first / 8 + 1] : 0U;
    const unsigned both = row[first / 8] | next << 8;
    codes[i] = static_cast<std::uint8_t>(both >> (first % 8) & ((1U << bits) - 1U));
  }
}

}  // namespace ingot
