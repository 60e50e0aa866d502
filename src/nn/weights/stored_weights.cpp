#include "ingot/nn/weights/stored_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "ingot/runtime/dequant/visit_weight.h"

#include "dequant/dequant_fragment.cuh"
#include "dequant/pack_weight.cuh"
#include "numerics.cuh"

namespace ingot {
namespace {

// Decodes whole words instead of single codes, because this runs over all weights of a model.
template <class W, CodeLayout L>
bool has_nan(const u8* fragment) {
  u32 words[Fragment<W>::kWords];
  u32 codes[8];  // two codes in each, in the upper bytes of its halves
  std::memcpy(words, fragment, sizeof words);
  spread_fragment<W, L, 8>(words, codes);
  return std::ranges::any_of(codes, [](u32 two) {
    return is_nan_code<W>(static_cast<u8>(two >> 8U)) || is_nan_code<W>(static_cast<u8>(two >> 24U));
  });
}

template <class W>
bool has_nan(CodeLayout layout, const u8* fragment) {
  if constexpr (kCodeBits<W> == 8) {
    return layout == CodeLayout::packed ? has_nan<W, CodeLayout::packed>(fragment)
                                        : has_nan<W, CodeLayout::packed_f16>(fragment);
  }
  return false;
}

// What look_at() finds in one block of 64 rows.
struct RowBlock {
  bool nan[kDequantRows] = {};
  bool pads_with_zeros = true;
};

template <class W>
RowBlock look_at(CodeLayout layout, const u8* tile, i64 row_block, i64 n, i64 k) {
  RowBlock found;
  const i64 k_blocks = static_cast<i64>(dequant_padded(static_cast<u64>(k)) / kDequantDepth);
  const i64 rows = std::min<i64>(n - row_block * kDequantRows, kDequantRows);
  for (i64 k_block = 0; k_block < k_blocks; ++k_block) {
    const i64 depth = std::clamp<i64>(k - k_block * kDequantDepth, 0, kDequantDepth);
    const bool is_whole = rows == kDequantRows && depth == kDequantDepth;
    for (u32 i = 0; i < kDequantFragments; ++i, tile += Fragment<W>::kBytes) {
      if (is_whole && !has_nan<W>(layout, tile)) continue;
      u32 words[Fragment<W>::kWords];
      u8 codes[16];
      std::memcpy(words, tile, sizeof words);
      unpack_fragment<W>(layout, words, codes);
      for (u32 c = 0; c < 16; ++c) {
        const FragmentPosition at = fragment_position(i / 32, i % 32, c);
        const bool is_padding = at.row >= rows || at.k >= depth;
        if (is_padding && codes[c] != 0) found.pads_with_zeros = false;
        if (is_nan_code<W>(codes[c])) found.nan[at.row] = true;
      }
    }
  }
  return found;
}

}  // namespace

std::string weight_size_fault(std::int64_t n, std::int64_t k) {
  constexpr std::int64_t kLargest = std::int64_t{1} << 40U;
  if (n >= 0 && k >= 0 && n <= kLargest && k <= kLargest && (k == 0 || n <= kLargest / k)) return "";
  return fmt::format("is of a weight [{}, {}], a size that is negative or too large for any device", n, k);
}

std::string packed_weight_fault(const PackedWeight& packed) {
  return visit_weight(packed.dtype, [&]<class W>(Type<W>) -> std::string {
    const std::int64_t n = packed.n, k = packed.k;
    const auto* const codes = reinterpret_cast<const u8*>(packed.bytes.data());
    const u8* const faults = codes + packed_code_bytes(static_cast<u64>(n), static_cast<u64>(k), kCodeBits<W>);
    for (i64 block = 0; block * kDequantRows < n; ++block) {
      const u8* const tiles = codes + packed_tile_offset<W>(static_cast<u64>(block), 0, static_cast<u64>(k));
      const RowBlock found = look_at<W>(code_layout(packed.layout), tiles, block, n, k);
      if (!found.pads_with_zeros) {
        return fmt::format("has nonzero codes in its padding, in the rows from {} on", block * kDequantRows);
      }
      for (i64 r = 0; r < kDequantRows; ++r) {
        const i64 row = block * kDequantRows + r;
        float fault = 0;
        std::memcpy(&fault, faults + 4 * row, sizeof fault);
        if (found.nan[r] ? std::isnan(fault) : std::bit_cast<u32>(fault) == std::bit_cast<u32>(1.0F)) continue;
        return fmt::format("has {} after its codes for the row {}, which has {}; expected {}", fault, row,
                           found.nan[r] ? "a NaN" : "no NaN", found.nan[r] ? "NaN" : "1");
      }
    }
    return "";
  });
}

namespace {

float scale_value(Dtype dtype, const std::byte* bytes) {
  const auto read = [&]<class T>(T value) {
    std::memcpy(&value, bytes, sizeof value);
    return value;
  };
  switch (dtype) {
    case Dtype::f32: return read(float{});
    case Dtype::bf16: return to_float(bf16{read(std::uint16_t{})});
    case Dtype::f16: return to_float(f16{read(std::uint16_t{})});
    default: break;
  }
  return to_float(e8m0fnu{std::to_integer<std::uint8_t>(*bytes)});
}

}  // namespace

std::vector<float> scale_values(Dtype dtype, std::span<const std::byte> bytes) {
  const auto element = static_cast<std::size_t>(size_of(dtype));
  std::vector<float> values(bytes.size() / element);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = scale_value(dtype, &bytes[i * element]);
  return values;
}

}  // namespace ingot
