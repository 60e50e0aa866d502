// The command `ingot info`: prints the device, the libraries, the kernel store and the tuning records.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "commands.h"
#include "ingot/runtime/context/context.h"
#include "ingot/runtime/util/count_of.h"
#include "ingot/runtime/util/text.h"
#include "text.h"
#include "tuning_summary.h"

namespace ingot::tools {
namespace {

const char* name(Tuning mode) { return mode == Tuning::on ? "on" : mode == Tuning::off ? "off" : "frozen"; }

const char* name(CacheMode mode) {
  switch (mode) {
    case CacheMode::automatic: return "auto";
    case CacheMode::strict: return "strict";
    case CacheMode::memory: return "memory";
    case CacheMode::verify: return "verify";
  }
  return "unknown";
}

const char* text(CacheMode mode) {
  switch (mode) {
    case CacheMode::automatic: return "auto";
    case CacheMode::strict: return "strict: a kernel that is not there is an error, and nothing is compiled";
    case CacheMode::memory: return "memory: nothing on disk is read or written";
    case CacheMode::verify: return "verify: what is found on disk is compiled again and compared";
  }
  return "unknown";
}

nlohmann::ordered_json to_json(const std::vector<TierInfo>& tiers) {
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const TierInfo& tier : tiers) {
    json.push_back({{"path", tier.path},
                    {"kernels", tier.kernels},
                    {"tuning_records", tier.tuning_records},
                    {"problem", tier.problem}});
  }
  return json;
}

nlohmann::ordered_json to_json(const TuningSummary& tuning) {
  return {{"mode", name(tuning.mode)},
          {"path", tuning.path.string()},
          {"this_machine", tuning.this_machine},
          {"other_machines", tuning.other_machines},
          {"damaged", tuning.damaged}};
}

nlohmann::ordered_json to_json(const ContextInfo& info, const TuningSummary& tuning) {
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
            {"problem", info.store_problem},
            {"mode", name(info.cache_mode)},
            {"tiers", to_json(info.tiers)}}},
          {"tuning", to_json(tuning)}};
}

constexpr std::size_t kLabelWidth = 14;
constexpr std::size_t kTextWidth = 84;

// Lines of at most kTextWidth characters, broken at spaces; a longer word (a path) gets its own line.
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

void print_info_row(const std::string& label, const std::string& value) {
  fmt::print("  {:<{}}{}\n", label, kLabelWidth, without_controls(value));
}

void print_rows(std::string label, const std::string& text) {
  for (const std::string& line : wrap(text)) {
    print_info_row(label, line);
    label.clear();
  }
}

void print_store(const ContextInfo& info) {
  if (info.store_root.empty()) {
    print_info_row("store", "none: kernels are kept in memory only");
    if (info.store_problem.empty()) return;
  } else {
    print_info_row("store", info.store_root.string());
    print_info_row("", fmt::format("{}, {}", count_of(info.store_usage.files, "kernel"),
                                   print_bytes(static_cast<double>(info.store_usage.bytes))));
  }
  if (!info.store_problem.empty())
    print_rows("", "keeps nothing: " + info.store_problem + advice_about(info.store_problem));
}

void print_tiers(const ContextInfo& info) {
  std::string label = "tiers";
  for (const TierInfo& tier : info.tiers) {
    print_info_row(std::exchange(label, ""), tier.path);
    if (!tier.problem.empty()) {
      print_rows("", "is not used: it " + tier.problem);
      continue;
    }
    std::string holds;
    if (tier.kernels > 0) holds = count_of(tier.kernels, "kernel") + ", ";
    if (tier.tuning_records > 0) {
      holds += count_of(tier.tuning_records, "tuning record") + ", ";
    }
    print_info_row("", holds + "only read");
  }
  if (info.cache_mode != CacheMode::automatic) print_rows("mode", text(info.cache_mode));
}

void print_tuning(const TuningSummary& tuning) {
  const auto mode_text = [&] {
    if (tuning.mode == Tuning::off) return "off: the records are not used";
    if (tuning.mode == Tuning::frozen) return "frozen: the records are used, and none are written";
    return "on: the records are used, and `ingot tune` writes them";
  };
  print_info_row("tuning", mode_text());
  if (tuning.path.empty()) {
    print_info_row("", "no records: there is no store");
    return;
  }
  print_info_row("", tuning.path.string() + (tuning.is_file ? " (INGOT_TUNING_FILE)" : ""));
  std::string counts = count_of(tuning.this_machine, "record") + " for this machine";
  if (tuning.other_machines > 0) counts += fmt::format(", {} for other machines", tuning.other_machines);
  if (tuning.damaged > 0) {
    counts += fmt::format(", {} damaged{}", tuning.damaged, tuning.is_file ? "" : " and moved to quarantine");
  }
  print_info_row("", counts);
}

void print_table(const ContextInfo& info, const TuningSummary& tuning) {
  const bool is_cpu = info.device.type == DeviceType::cpu;
  const auto is_missing = [](const LibraryInfo& library) { return !library.problem.empty(); };
  fmt::print("Ingot {}\n\n", info.ingot_version);
  print_info_row("device", fmt::format("{} ({})", info.device_name, print(info.device)));
  // The section "Missing" repeats the reason where it is that of a library.
  const bool told_below = std::ranges::find(info.libraries, info.reason, &LibraryInfo::problem) != info.libraries.end();
  if (!told_below) print_rows("", info.reason);
  print_info_row("target", print(info.target) + (is_cpu ? ", which kernels are compiled for without a GPU" : ""));
  fmt::print("\n");
  for (const LibraryInfo& library : info.libraries) {
    print_info_row(library.name,
                   is_missing(library) ? "missing" : fmt::format("{:<10}{}", library.version, library.path));
  }
  fmt::print("\n");
  print_store(info);
  print_tiers(info);
  print_tuning(tuning);
  if (std::ranges::none_of(info.libraries, is_missing)) return;
  fmt::print("\nMissing\n");
  for (const LibraryInfo& library : info.libraries) {
    if (is_missing(library)) print_rows(library.name, library.problem);
  }
}

void info(bool json) {
  const ContextOptions environment = ContextOptions::from_environment();
  Context context(environment);
  const ContextInfo found = context.info();
  const TuningSummary tuning =
      summarize_tuning(context.tuning(), context.tuning_store(), environment.tuning_file, context.tuning_machine());
  if (json) {
    fmt::print("{}\n", dump(to_json(found, tuning)));
  } else {
    print_table(found, tuning);
  }
}

constexpr const char* kInfoNotes = R"(
Examples:
  ingot info
      as a table
  INGOT_DEVICE=cpu ingot info --json
      as JSON, without using a GPU

Exit codes:
  0    all went well
  1    an error, described in one line on stderr
  2    the command line is wrong)";

}  // namespace

void add_info(CLI::App& app) {
  const auto json = std::make_shared<bool>(false);
  CLI::App* const command = app.add_subcommand(
      "info", "Device, libraries, kernel store and tuning records; what is missing and how to get it");
  command->add_flag("--json", *json, "Print JSON");
  command->footer(kInfoNotes);
  command->callback([json] { info(*json); });
}

}  // namespace ingot::tools
