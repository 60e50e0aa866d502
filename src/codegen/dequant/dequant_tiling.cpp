#include "ingot/codegen/dequant/dequant_tiling.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cstddef>
#include <utility>

#include "ingot/codegen/dequant/dequant_sm90.h"

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

// Takes the number up to `end` off the text, and `end` with it. '\0' as end: the number is all that is left.
std::optional<int> take_number(std::string_view& text, char end) {
  const auto stop = end == '\0' ? text.size() : text.find(end);
  if (stop == std::string_view::npos || stop == 0 || text[0] == '-') return std::nullopt;
  int value = 0;
  const auto [last, error] = std::from_chars(text.data(), text.data() + stop, value);
  if (error != std::errc() || last != text.data() + stop) return std::nullopt;
  text.remove_prefix(end == '\0' ? stop : stop + 1);
  return value;
}

std::string mma_fault(const DequantTiling& t) {
  if (t.wgmma) return "instruction wgmma, but kernel mma has mma.sync only";
  if (t.tokens != 8 && t.tokens != 16 && t.tokens != 32 && t.tokens != 64) {
    return fmt::format("{} tokens, but kernel mma takes 8, 16, 32 or 64", t.tokens);
  }
  if (t.rows != 64 && t.rows != 128) return fmt::format("{} rows, but kernel mma takes 64 or 128", t.rows);
  if (t.k_warps != 1 && t.k_warps != 2 && t.k_warps != 4) {
    return fmt::format("{} units along K, but kernel mma takes 1, 2 or 4", t.k_warps);
  }
  if (t.rows / 16 * t.k_warps > 16) {
    return fmt::format("{} rows and {} units along K, but a block of kernel mma has 16 warps of 16 rows at most",
                       t.rows, t.k_warps);
  }
  if (t.depth != 64 * t.k_warps) {
    return fmt::format("a depth of {}, but in kernel mma it is 64 for each unit along K: {}", t.depth, 64 * t.k_warps);
  }
  if (t.stages != 3) return fmt::format("{} stages, but kernel mma has 3", t.stages);
  if (t.waves != 1 || t.multicast != 1 || t.blocks != 1 || t.stream_k) {
    return "waves, multicast, blocks or stream-K, which kernel mma has not";
  }
  if (t.tokens == 64 && t.rows / 16 * t.k_warps > 8) {
    return fmt::format(
        "64 tokens, {} rows and {} units along K, but with 64 tokens a block has 8 warps at most: its "
        "registers hold no more sums",
        t.rows, t.k_warps);
  }
  if (t.split < 1 || t.split > 64) return fmt::format("a split of {}, but it must be 1 to 64", t.split);
  return {};
}

// The rules are those of templates/dequant/dequant_sm90_tiling.cuh; those that a typing error may break have their own
// messages.
std::string sm90_fault(const DequantMatmulSpec& spec, const DequantTiling& t) {
  if (t.k_warps != 1 && (t.wgmma || (t.k_warps != 2 && t.k_warps != 4))) {
    return fmt::format("{} units along K, but kernel sm90 has 1, 2 or 4 with mma, and 1 with wgmma", t.k_warps);
  }
  if (t.waves < 1 || t.waves > 4 || t.rows < 1 || t.rows % (64 * t.waves) != 0 ||
      t.rows / (64 * t.waves) * t.k_warps > 4) {
    return fmt::format(
        "{} rows in {} waves and {} units along K, but it must be 1 to 4 warpgroups of 64 rows, times 1 "
        "to 4 waves",
        t.rows, t.waves, t.k_warps);
  }
  if (t.stream_k && (t.split != 1 || t.multicast != 1 || t.k_warps != 1)) {
    return "stream-K, but that takes blocks and warps that share neither K nor x: split 1, no multicast, one unit "
           "along K";
  }
  if (dequant_sm90_exists(spec, t)) return {};
  DequantTiling fewest = t;
  fewest.stages = 2;
  if (t.stages > 2 && t.stages <= 32 && dequant_sm90_exists(spec, fewest)) {
    return fmt::format("{} stages, but shared memory has no room for that many: take {} or fewer", t.stages,
                       with_all_stages(spec, t).stages);
  }
  return fmt::format(
      "{}, which kernel sm90 cannot be made of with such factors: its sums do not fit into registers, or "
      "its tokens, depth, stages, split or cluster are none that it has; leave the tiling out",
      print(DequantKernel::sm90, t));
}

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

bool has_group_factors(const DequantMatmulSpec& spec) { return spec.scale.cols != 0; }

std::string dequant_tiling_fault(const DequantMatmulSpec& spec, const DequantTiling& tiling) {
  return spec.kernel == DequantKernel::mma ? mma_fault(tiling) : sm90_fault(spec, tiling);
}

}  // namespace ingot
