#include "ingot/codegen/gemm/gemm_tiling.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <utility>

namespace ingot {
namespace {

constexpr std::string_view kStreamK = ":streamk";
constexpr std::array<std::string_view, 5> kNames{"automatic", "cublaslt", "sm90", "mma", "simt"};

// Takes the number up to `end` off the text, and `end` with it. '\0' as end: the number is all that is left.
std::optional<int> take_number(std::string_view& text, char end) {
  const auto stop = end == '\0' ? text.size() : text.find(end);
  if (stop == std::string_view::npos || stop == 0) return std::nullopt;
  int value = 0;
  const auto [last, error] = std::from_chars(text.data(), text.data() + stop, value);
  if (error != std::errc() || last != text.data() + stop || text[0] == '-') return std::nullopt;
  text.remove_prefix(end == '\0' ? stop : stop + 1);
  return value;
}

}  // namespace

std::string_view name(GemmKernel kernel) {
  const auto index = static_cast<std::size_t>(kernel);
  return index < kNames.size() ? kNames[index] : "unknown kernel";
}

std::optional<GemmKernel> parse_gemm_kernel(std::string_view text) {
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    if (kNames[i] == text) return static_cast<GemmKernel>(i);
  }
  return std::nullopt;
}

std::string print(const GemmTiling& t) {
  return fmt::format("{}x{}:{}x{}:{}:{}{}", t.m, t.n, t.cluster_m, t.cluster_n, t.stages,
                     t.pingpong ? "pingpong" : "cooperative", t.stream_k ? kStreamK : "");
}

std::optional<GemmTiling> parse_gemm_tiling(std::string_view text) {
  GemmTiling tiling;
  for (const auto& [field, end] :
       {std::pair{&tiling.m, 'x'}, std::pair{&tiling.n, ':'}, std::pair{&tiling.cluster_m, 'x'},
        std::pair{&tiling.cluster_n, ':'}, std::pair{&tiling.stages, ':'}}) {
    const std::optional<int> value = take_number(text, end);
    if (!value) return std::nullopt;
    *field = *value;
  }
  tiling.stream_k = text.ends_with(kStreamK);
  if (tiling.stream_k) text.remove_suffix(kStreamK.size());
  if (text != "pingpong" && text != "cooperative") return std::nullopt;
  tiling.pingpong = text == "pingpong";
  return tiling;
}

std::string print_mma_tiling(const GemmTiling& t) { return fmt::format("{}x{}", t.m, t.n); }

std::optional<GemmTiling> parse_mma_tiling(std::string_view text) {
  for (const GemmTiling& tiling : kMmaTilings) {
    if (print_mma_tiling(tiling) == text) return tiling;
  }
  return std::nullopt;
}

}  // namespace ingot
