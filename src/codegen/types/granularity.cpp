#include "ingot/codegen/types/granularity.h"

#include <charconv>
#include <cstddef>

namespace ingot {
namespace {

std::optional<int> parse_extent(std::string_view text) {
  int value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc{} || stop != end || value < 0) return std::nullopt;
  return value;
}

// Scales along one dimension: an extent of 0 is the whole of it, one scale even where the dimension is empty.
std::int64_t scales_along(int extent, std::int64_t size) {
  if (extent == 0) return 1;
  return size / extent + (size % extent != 0 ? 1 : 0);
}

}  // namespace

std::string print(ScaleGranularity granularity) {
  if (granularity == kTensorwise) return "tensor";
  if (granularity == kRowwise) return "row";
  if (granularity == kColumnwise) return "col";
  return std::to_string(granularity.rows) + "x" + std::to_string(granularity.cols);
}

std::optional<ScaleGranularity> parse_granularity(std::string_view text) {
  if (text == "tensor") return kTensorwise;
  if (text == "row") return kRowwise;
  if (text == "col") return kColumnwise;
  const auto x = text.find('x');
  if (x == std::string_view::npos) return std::nullopt;
  const auto rows = parse_extent(text.substr(0, x));
  const auto cols = parse_extent(text.substr(x + 1));
  if (!rows || !cols) return std::nullopt;
  return ScaleGranularity{*rows, *cols};
}

std::string one_of(std::span<const ScaleGranularity> granularities) {
  std::string text;
  for (std::size_t i = 0; i < granularities.size(); ++i) {
    text.append(i == 0 ? "" : i + 1 < granularities.size() ? ", " : " or ").append(print(granularities[i]));
  }
  return text;
}

std::int64_t scale_count(ScaleGranularity granularity, std::int64_t rows, std::int64_t cols) {
  return scales_along(granularity.rows, rows) * scales_along(granularity.cols, cols);
}

}  // namespace ingot
