// The part of a matrix that shares one scale. Where the scales come from.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "ingot/api.h"

namespace ingot {

// Extent in rows and columns that shares one scale; 0 = the whole dimension. An extent of 1 x (whole row) is "rowwise"
// (torchao calls it axiswise), and so on.
struct ScaleGranularity {
  int rows = 0;
  int cols = 0;
  auto operator<=>(const ScaleGranularity&) const = default;
};

inline constexpr ScaleGranularity kTensorwise{0, 0};
inline constexpr ScaleGranularity kRowwise{1, 0};
inline constexpr ScaleGranularity kColumnwise{0, 1};
inline constexpr ScaleGranularity kRowGroups{1, 128};
inline constexpr ScaleGranularity kRowGroups64{1, 64};
inline constexpr ScaleGranularity kRowGroups32{1, 32};
inline constexpr ScaleGranularity kColumnGroups{128, 1};
inline constexpr ScaleGranularity kBlocks{128, 128};
// The granularities that casts support.
inline constexpr std::array kCastGranularities{kTensorwise, kRowwise, kColumnwise, kRowGroups, kColumnGroups, kBlocks};

constexpr bool among(std::span<const ScaleGranularity> granularities, ScaleGranularity granularity) {
  for (const ScaleGranularity each : granularities) {
    if (each == granularity) return true;
  }
  return false;
}

// The same in terms of the transposed matrix.
constexpr ScaleGranularity transposed(ScaleGranularity granularity) { return {granularity.cols, granularity.rows}; }

// "tensor", "row", "col", or rows x cols such as "1x128".
INGOT_API std::string print(ScaleGranularity granularity);
INGOT_API std::optional<ScaleGranularity> parse_granularity(std::string_view text);

// "tensor, row or 1x128".
INGOT_API std::string one_of(std::span<const ScaleGranularity> granularities);

// Number of scales of a rows x cols matrix: 1 for tensorwise (also when the matrix is empty), rows for rowwise, rows *
// ceil(cols / 128) for groups of 128 in a row ... Arrays of scales are dense and go row by row over the extents.
INGOT_API std::int64_t scale_count(ScaleGranularity granularity, std::int64_t rows, std::int64_t cols);

// dynamic: from the maxima of the values that are cast. given: from the caller (static scaling, or delayed scaling with
// earlier maxima); the kernel then records the maxima, for the next scales.
enum class ScaleSource : std::uint8_t { dynamic, given };

}  // namespace ingot
