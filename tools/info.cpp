#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "commands.h"
#include "ingot/runtime/context.h"

namespace ingot::tools {
namespace {

nlohmann::ordered_json to_json(const ContextInfo& info) {
  nlohmann::ordered_json libraries = nlohmann::ordered_json::array();
  for (const LibraryInfo& library : info.libraries) {
    libraries.push_back({{"name", library.name},
                         {"found", library.problem.empty()},
                         {"version", library.version},
                         {"path", library.path},
                         {"problem", library.problem}});
  }
  return {{"ingot", info.ingot_version},
          {"device", {{"id", print(info.device)}, {"name", info.device_name}, {"reason", info.reason}}},
          {"target", print(info.target)},
          {"libraries", libraries},
          {"store",
           {{"path", info.store_root.string()},
            {"files", info.store_usage.files},
            {"bytes", info.store_usage.bytes},
            {"problem", info.store_problem}}}};
}

constexpr std::size_t kLabelWidth = 14;
constexpr std::size_t kTextWidth = 84;

// Lines of at most kTextWidth, broken at spaces; a longer word (a path) has a line of its own.
std::vector<std::string> wrap(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    if (lines.empty() || lines.back().size() + 1 + word.size() > kTextWidth) {
      lines.push_back(word);
    } else {
      lines.back() += " " + word;
    }
  }
  return lines;
}

void print_row(const std::string& label, const std::string& value) {
  fmt::print("  {:<{}}{}\n", label, kLabelWidth, value);
}

void print_rows(std::string label, const std::string& text) {
  for (const std::string& line : wrap(text)) {
    print_row(label, line);
    label.clear();
  }
}

void print_store(const ContextInfo& info) {
  if (info.store_root.empty()) {
    print_row("store", "none: kernels are kept in memory only");
    if (info.store_problem.empty()) return;
  } else {
    print_row("store", info.store_root.string());
    print_row("", fmt::format("{} {}, {}", info.store_usage.files, info.store_usage.files == 1 ? "kernel" : "kernels",
                              print_bytes(static_cast<double>(info.store_usage.bytes))));
  }
  if (!info.store_problem.empty()) print_rows("", "keeps nothing: " + info.store_problem);
}

void print_table(const ContextInfo& info) {
  const bool is_cpu = info.device.type == DeviceType::cpu;
  const auto is_missing = [](const LibraryInfo& library) { return !library.problem.empty(); };
  fmt::print("Ingot {}\n\n", info.ingot_version);
  print_row("device", fmt::format("{} ({})", info.device_name, print(info.device)));
  // A reason that is one of the missing libraries is told below.
  const bool told_below = std::ranges::find(info.libraries, info.reason, &LibraryInfo::problem) != info.libraries.end();
  if (!told_below) print_rows("", info.reason);
  print_row("target", print(info.target) + (is_cpu ? ", which kernels are compiled for without a GPU" : ""));
  fmt::print("\n");
  for (const LibraryInfo& library : info.libraries) {
    print_row(library.name, is_missing(library) ? "missing" : fmt::format("{:<10}{}", library.version, library.path));
  }
  fmt::print("\n");
  print_store(info);
  if (std::ranges::none_of(info.libraries, is_missing)) return;
  fmt::print("\nMissing\n");
  for (const LibraryInfo& library : info.libraries) {
    if (is_missing(library)) print_rows(library.name, library.problem);
  }
}

}  // namespace

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

void info(const InfoOptions& options) {
  const Context context;
  const ContextInfo found = context.info();
  if (options.json) {
    fmt::print("{}\n", to_json(found).dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
  } else {
    print_table(found);
  }
}

}  // namespace ingot::tools
