#include "ingot/codegen/gemm/gemm_tiling.h"

#include <fmt/format.h>

#include <array>
#include <utility>

#include "ingot/codegen/types/spec_reader.h"

namespace ingot {
namespace {

constexpr std::string_view kStreamK = ":streamk";
constexpr std::array<std::string_view, 5> kNames{"automatic", "cublaslt", "sm90", "mma", "simt"};

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
