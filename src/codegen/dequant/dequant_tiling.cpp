#include "ingot/codegen/dequant/dequant_tiling.h"

#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <utility>

#include "ingot/codegen/types/spec_reader.h"

namespace ingot {
namespace {

constexpr std::array<std::string_view, 3> kNames{"automatic", "sm90", "mma"};

// Fields that a tiling's text has at its end, where they are not 1.
struct Extra {
  std::string_view word;
  int DequantTiling::*field;
};
constexpr std::array kExtras{Extra{":waves", &DequantTiling::waves}, Extra{":multicast", &DequantTiling::multicast},
                             Extra{":blocks", &DequantTiling::blocks}};
constexpr std::string_view kStreamKSuffix = ":streamk";

}  // namespace

std::string_view name(DequantKernel kernel) {
  const auto index = static_cast<std::size_t>(kernel);
  return index < kNames.size() ? kNames[index] : "unknown kernel";
}

std::optional<DequantKernel> parse_dequant_kernel(std::string_view text) {
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    if (kNames[i] == text) return static_cast<DequantKernel>(i);
  }
  return std::nullopt;
}

std::string print(DequantKernel kernel, const DequantTiling& t) {
  const char* const instruction = t.wgmma ? "wgmma:" : kernel == DequantKernel::mma ? "" : "mma:";
  std::string text =
      fmt::format("{}{}x{}x{}:{}:{}:{}", instruction, t.tokens, t.rows, t.depth, t.stages, t.split, t.k_warps);
  for (const Extra& extra : kExtras) {
    if (t.*extra.field != 1) text += fmt::format("{}{}", extra.word, t.*extra.field);
  }
  if (t.stream_k) text += kStreamKSuffix;
  return text;
}

std::optional<DequantTiling> parse_dequant_tiling(DequantKernel kernel, std::string_view text) {
  DequantTiling tiling;
  tiling.wgmma = text.starts_with("wgmma:");
  if (tiling.wgmma) {
    text.remove_prefix(6);
  } else if (kernel != DequantKernel::mma) {
    if (!text.starts_with("mma:")) return std::nullopt;
    text.remove_prefix(4);
  }
  tiling.stream_k = kernel != DequantKernel::mma && text.ends_with(kStreamKSuffix);
  if (tiling.stream_k) text.remove_suffix(kStreamKSuffix.size());
  // Read from the end: each extra field at most once, in their order, and none that says 1.
  for (auto extra = kExtras.rbegin(); extra != kExtras.rend(); ++extra) {
    const auto at = text.rfind(extra->word);
    if (at == std::string_view::npos) continue;
    std::string_view number = text.substr(at + extra->word.size());
    const std::optional<int> value = take_number(number, '\0');
    if (!value || *value == 1) return std::nullopt;
    tiling.*(extra->field) = *value;
    text = text.substr(0, at);
  }
  for (const auto& [field, end] :
       {std::pair{&tiling.tokens, 'x'}, std::pair{&tiling.rows, 'x'}, std::pair{&tiling.depth, ':'},
        std::pair{&tiling.stages, ':'}, std::pair{&tiling.split, ':'}, std::pair{&tiling.k_warps, '\0'}}) {
    const std::optional<int> value = take_number(text, end);
    if (!value) return std::nullopt;
    *field = *value;
  }
  return tiling;
}

}  // namespace ingot
