#include "text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "ingot/runtime/util/text.h"

namespace ingot::tools {
namespace {

struct Unit {
  std::string_view name;
  std::int64_t factor;
};

// A whole number and one of the units. Nothing if it is something else, or does not fit.
template <std::size_t count>
std::optional<std::int64_t> parse_with_unit(std::string_view text, const std::array<Unit, count>& units) {
  std::int64_t number = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || number < 0) return std::nullopt;
  const std::string_view name = text.substr(static_cast<std::size_t>(stop - text.data()));
  const auto unit = std::ranges::find(units, name, &Unit::name);
  if (unit == units.end() || number > std::numeric_limits<std::int64_t>::max() / unit->factor) return std::nullopt;
  return number * unit->factor;
}

}  // namespace

std::optional<std::int64_t> parse_size(std::string_view text) {
  constexpr std::int64_t kKilo = 1024;
  static constexpr std::array kUnits{Unit{"", 1}, Unit{"K", kKilo}, Unit{"M", kKilo * kKilo},
                                     Unit{"G", kKilo * kKilo * kKilo}, Unit{"T", kKilo * kKilo * kKilo * kKilo}};
  if (text.ends_with("iB")) {
    text.remove_suffix(2);
  } else if (text.ends_with('B')) {
    text.remove_suffix(1);
  }
  return parse_with_unit(text, kUnits);
}

std::optional<std::chrono::seconds> parse_age(std::string_view text) {
  static constexpr std::array kUnits{Unit{"s", 1}, Unit{"m", 60}, Unit{"h", 3600}, Unit{"d", 86400},
                                     Unit{"w", 7 * 86400}};
  const auto seconds = parse_with_unit(text, kUnits);
  if (!seconds) return std::nullopt;
  return std::chrono::seconds(*seconds);
}

std::string size_problem(const std::string& text) {
  return parse_size(text) ? "" : fmt::format("\"{}\" is no size; give one such as 500M or 2G", one_line(text));
}

std::string age_problem(const std::string& text) {
  return parse_age(text) ? "" : fmt::format("\"{}\" is no time; give one such as 12h, 30d or 4w", one_line(text));
}

std::string target_problem(const std::string& text) {
  return parse_target(text) ? "" : fmt::format("\"{}\" is no architecture; give one such as sm_90a", one_line(text));
}

std::vector<Target> parse_targets(const std::vector<std::string>& names) {
  std::vector<Target> targets;
  targets.reserve(names.size());
  for (const std::string& name : names) targets.push_back(parse_target(name).value_or(Target{}));
  return targets;
}

std::string print_age(std::int64_t seconds) {
  constexpr std::int64_t kMinute = 60;
  constexpr std::int64_t kHour = 60 * kMinute;
  constexpr std::int64_t kDay = 24 * kHour;
  if (seconds < 2 * kMinute) return fmt::format("{} s", std::max<std::int64_t>(0, seconds));
  if (seconds < 2 * kHour) return fmt::format("{} min", seconds / kMinute);
  if (seconds < 2 * kDay) return fmt::format("{} h", seconds / kHour);
  return fmt::format("{} d", seconds / kDay);
}

std::string one_line(std::string text) {
  for (char& c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte >= 0x7f) c = '?';
  }
  return text;
}

std::string print_bytes(double bytes) {
  if (bytes < 1024) return fmt::format("{:.0f} B", bytes);
  const char* unit = "KiB";
  bytes /= 1024;
  for (const char* next : {"MiB", "GiB", "TiB"}) {
    if (bytes < 1024) break;
    bytes /= 1024;
    unit = next;
  }
  return fmt::format("{:.1f} {}", bytes, unit);
}

const char* pass_name(Pass pass) {
  switch (pass.variant) {
    case Variant::standard: break;
    case Variant::whole: return "whole";
    case Variant::unaligned: return "unaligned";
    case Variant::wide: return pass.stage == Stage::first ? "first_wide" : "wide";
    case Variant::keeping: return "keeping";
    case Variant::kept: return "kept";
  }
  return pass.stage == Stage::first ? "first" : pass.stage == Stage::main ? "main" : "finish";
}

std::string dump(const nlohmann::ordered_json& json) {
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

void warn(const std::string& text) { fmt::print(stderr, "ingot: warning: {}\n", without_controls(text)); }

std::string advice_about(const std::string& store_problem) {
  const bool is_roots = store_problem.find(" is owned by user 0;") != std::string::npos;
  return is_roots ? ", and to use what root has there, name it in INGOT_CACHE_TIERS" : "";
}

}  // namespace ingot::tools
