#include "ingot/codegen/gemm/gemm_tiling.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <utility>

#include "ingot/codegen/gemm/gemm_sm90.h"

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

std::string tiling_fault(const GemmTiling& t, bool fast) {
  const int wave = t.pingpong ? 64 : 128;
  const bool shares_columns = !t.pingpong && t.m == 64;
  if (!shares_columns && (t.m < wave || t.m > 256 || t.m % wave != 0)) {
    return t.pingpong ? fmt::format("a tile of {} rows, but pingpong takes a multiple of 64 up to 256", t.m)
                      : fmt::format("a tile of {} rows, but cooperative takes 64, 128 or 256", t.m);
  }
  if (t.n < 64 || t.n > 256 || t.n % 64 != 0) {
    return fmt::format("a tile of {} columns, but it must be 64, 128, 192 or 256", t.n);
  }
  if (shares_columns && t.n % 128 != 0) {
    return fmt::format("a tile of 64 rows, whose {} columns cooperative shares out: it takes 128 or 256", t.n);
  }
  if (t.cluster_m < 1 || t.cluster_n < 1 || t.cluster_m > 2 || t.cluster_n > 2 || t.cluster_m + t.cluster_n > 3) {
    return fmt::format("a cluster of {}x{}, but it must be 1x1, 2x1 or 1x2", t.cluster_m, t.cluster_n);
  }
  if (t.stream_k && (t.pingpong || t.cluster_m + t.cluster_n > 2)) {
    return "stream-K, but that takes cooperative tiles and a cluster of 1x1";
  }
  if (t.stages < 2 || t.stages > 16) return fmt::format("{} stages, but there must be 2 to 16", t.stages);
  const Sm90Tiling tiling = sm90_tiling(t);
  if (const u32 bytes = sm90_shared_bytes({.tiling = tiling}); bytes > kSm90SharedLimit) {
    return fmt::format("{} bytes of shared memory, but a block has {}: fewer stages or a smaller tile", bytes,
                       kSm90SharedLimit);
  }
  // A thread's 232 registers must hold the sums of its waves and one more wave's, which are added to them.
  const u32 sums = sm90_sums(tiling, !fast);
  constexpr u32 kMostSums = 192;
  if (sums > kMostSums) {
    return fmt::format("{} sums in each thread, but its registers hold {}: take a smaller tile", sums, kMostSums);
  }
  return {};
}

}  // namespace ingot
