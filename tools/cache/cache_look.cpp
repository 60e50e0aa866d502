// `ingot cache path`, `ingot cache list` and `ingot cache stat`, which change nothing.
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cache/cache.h"
#include "cache/cache_store.h"
#include "ingot/runtime/jit/kernel_file.h"
#include "ingot/runtime/jit/kernel_listing.h"
#include "ingot/runtime/tuning/tuning_record.h"
#include "ingot/runtime/util/count_of.h"
#include "ingot/runtime/util/error.h"
#include "text.h"

namespace ingot::tools {
namespace {

nlohmann::ordered_json seconds_or_null(const std::optional<std::time_t>& time) {
  return time ? nlohmann::ordered_json(static_cast<std::int64_t>(*time)) : nlohmann::ordered_json(nullptr);
}

std::optional<std::time_t> used(const KernelEntry& entry) {
  return entry.used ? std::optional(entry.used->first) : std::nullopt;
}

nlohmann::ordered_json to_json(const ListedKernel& kernel) {
  nlohmann::ordered_json json = {{"kernel", kernel.name},
                                 {"operation", kernel.operation},
                                 {"pass", kernel.operation.empty() ? "" : pass_name(kernel.pass)},
                                 {"target", print(kernel.target)},
                                 {"bytes", kernel.entry.bytes},
                                 {"used", seconds_or_null(used(kernel.entry))},
                                 {"made", seconds_or_null(kernel.entry.made)},
                                 {"compiler", kernel.compiler},
                                 {"symbol", kernel.symbol},
                                 {"current", kernel.current},
                                 {"file", kernel_file_path(kernel.entry.key)}};
  return json;
}

std::string describe(const ListedKernel& kernel) {
  std::string text = one_line(kernel.name.empty() ? kernel.symbol : kernel.name);
  if (kernel.operation.empty()) text += "  (a program's own source)";
  if (!kernel.current) text += "  (of another version of Ingot)";
  return text;
}

void print_table(const KernelListing& listing, const std::string& place) {
  const std::time_t now = std::time(nullptr);
  const auto ago = [now](const std::optional<std::time_t>& time) { return time ? print_age(now - *time) : "-"; };
  std::int64_t bytes = 0;
  if (!listing.kernels.empty()) {
    fmt::print("{:<9}{:<9}{:<9}{:>10}  {:<13}{}\n", "used", "made", "target", "size", "compiler", "kernel");
  }
  for (const ListedKernel& kernel : listing.kernels) {
    bytes += kernel.entry.bytes;
    fmt::print("{:<9}{:<9}{:<9}{:>10}  {:<13}{}\n", ago(used(kernel.entry)), ago(kernel.entry.made),
               print(kernel.target), print_bytes(static_cast<double>(kernel.entry.bytes)),
               one_line(compiler_version(kernel.compiler)), describe(kernel));
  }
  for (const DamagedKernel& kernel : listing.damaged) {
    fmt::print("damaged: {} {}\n", kernel_file_path(kernel.entry.key), kernel.problem);
  }
  fmt::print("{}: {}, {}\n", place, count_of(listing.kernels.size(), "kernel"),
             print_bytes(static_cast<double>(bytes)));
}

// Those that were used last come first; a bundle keeps its order.
void sort_by_use(KernelListing& listing) {
  std::ranges::stable_sort(listing.kernels, std::greater{},
                           [](const ListedKernel& kernel) { return kernel.entry.used; });
}

// ---- stat -----------------------------------------------------------------------------------------------------------

struct Amount {
  std::int64_t kernels = 0;
  std::int64_t bytes = 0;
  void add(std::int64_t more) {
    ++kernels;
    bytes += more;
  }
};

struct TierAmount {
  std::string path;
  Amount amount{};
  std::string problem{};
};

struct StoreCounts {
  std::string path;
  Amount all{};
  std::int64_t limit = 0;
  std::map<std::string, Amount> by_target{};
  std::map<std::string, Amount> by_operation{};  // of this Ingot; "" for programs' own sources
  Amount of_other_versions{};
  std::int64_t damaged = 0;
  std::int64_t quarantined = 0;
  std::int64_t temporaries = 0;
  std::int64_t records_here = 0;
  std::int64_t records_elsewhere = 0;
  std::int64_t records_damaged = 0;
  std::vector<TierAmount> tiers{};
};

void count(const KernelListing& listing, StoreCounts& counts) {
  for (const ListedKernel& kernel : listing.kernels) {
    counts.all.add(kernel.entry.bytes);
    counts.by_target[print(kernel.target)].add(kernel.entry.bytes);
    (kernel.current ? counts.by_operation[kernel.operation] : counts.of_other_versions).add(kernel.entry.bytes);
  }
  counts.damaged = static_cast<std::int64_t>(listing.damaged.size());
}

void count_kernels(CacheStore& store, StoreCounts& counts) {
  count(list_kernels(store.kernels, store.identity), counts);
  counts.limit = store.kernels.max_bytes();
  counts.quarantined = static_cast<std::int64_t>(store.kernels.directory().quarantined().size());
  counts.temporaries = static_cast<std::int64_t>(store.kernels.directory().temporaries().size());
}

// Only a context knows which records are this machine's, because it knows the GPU and its libraries.
void count_records(CacheStore& store, StoreCounts& counts) {
  const TuningStore::Survey survey = store.tuning.survey(StoreDirectory::Damaged::stays);
  counts.records_damaged = static_cast<std::int64_t>(survey.damaged.size());
  if (survey.records.empty()) return;
  ContextOptions options = store.options;
  options.tiers.clear();
  options.warn = [](const std::string&) {};
  Context context(options);
  counts.records_here = std::ranges::count(survey.records, context.tuning_machine(), &TuningRecord::machine);
  counts.records_elsewhere = static_cast<std::int64_t>(survey.records.size()) - counts.records_here;
}

void count_tiers(const CacheStore& store, StoreCounts& counts) {
  for (const std::filesystem::path& path : store.options.tiers) {
    TierAmount tier{.path = path.string()};
    try {
      for (const KernelEntry& entry : open_tier(path)->list()) tier.amount.add(entry.bytes);
    } catch (const Error& error) {
      tier.problem = error.message();
    }
    counts.tiers.push_back(std::move(tier));
  }
}

nlohmann::ordered_json to_json(const std::map<std::string, Amount>& amounts, const char* key) {
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const auto& [name, amount] : amounts) {
    json.push_back({{key, name}, {"kernels", amount.kernels}, {"bytes", amount.bytes}});
  }
  return json;
}

nlohmann::ordered_json to_json(const Amount& amount) { return {{"kernels", amount.kernels}, {"bytes", amount.bytes}}; }

nlohmann::ordered_json to_json(const StoreCounts& counts) {
  nlohmann::ordered_json tiers = nlohmann::ordered_json::array();
  for (const TierAmount& tier : counts.tiers) {
    tiers.push_back({{"path", tier.path},
                     {"kernels", tier.amount.kernels},
                     {"bytes", tier.amount.bytes},
                     {"problem", tier.problem}});
  }
  return {{"path", counts.path},
          {"kernels", counts.all.kernels},
          {"bytes", counts.all.bytes},
          {"limit", counts.limit},
          {"targets", to_json(counts.by_target, "target")},
          {"operations", to_json(counts.by_operation, "operation")},
          {"other_versions", to_json(counts.of_other_versions)},
          {"damaged", counts.damaged},
          {"quarantined", counts.quarantined},
          {"temporaries", counts.temporaries},
          {"tuning",
           {{"this_machine", counts.records_here},
            {"other_machines", counts.records_elsewhere},
            {"damaged", counts.records_damaged}}},
          {"tiers", tiers}};
}

void print_row(const std::string& label, const std::string& text) { fmt::print("{:<18}{}\n", label, text); }

std::string print(const Amount& amount) {
  return fmt::format("{:<12} {}", count_of(amount.kernels, "kernel"), print_bytes(static_cast<double>(amount.bytes)));
}

void print_kinds(const StoreCounts& counts) {
  for (const auto& [target, amount] : counts.by_target) print_row("  " + target, print(amount));
  for (const auto& [operation, amount] : counts.by_operation) {
    print_row("  " + (operation.empty() ? "own sources" : operation), print(amount));
  }
  if (counts.of_other_versions.kernels > 0) {
    print_row("  unused", print(counts.of_other_versions) + ", of other versions of Ingot");
  }
}

void print_table(const StoreCounts& counts) {
  print_row("store", counts.path);
  print_row("kernels",
            fmt::format("{} of at most {}", print(counts.all), print_bytes(static_cast<double>(counts.limit))));
  print_kinds(counts);
  print_row("damaged", fmt::format("{}{}", counts.damaged, counts.damaged > 0 ? ": see `ingot cache verify`" : ""));
  print_row("quarantined", fmt::format("{}", counts.quarantined));
  print_row("temporaries", fmt::format("{}", counts.temporaries));
  print_row("tuning records", fmt::format("{} for this machine, {} for other machines, {} damaged", counts.records_here,
                                          counts.records_elsewhere, counts.records_damaged));
  for (const TierAmount& tier : counts.tiers) {
    print_row("tier", tier.path);
    print_row("", tier.problem.empty() ? print(tier.amount) : "is not used: it " + tier.problem);
  }
}

int stat_tier(const CacheStatOptions& options) {
  const std::unique_ptr<KernelTier> tier = open_tier(options.tier);
  StoreCounts counts{.path = tier->name()};
  count(list_kernels(*tier, kernel_identity_of(ContextOptions::from_environment())), counts);
  const TuningFile tuning = read_tuning_of(*tier);
  const auto records = static_cast<std::int64_t>(tuning.records.size());
  if (options.json) {
    fmt::print("{}\n", dump({{"path", counts.path},
                             {"kernels", counts.all.kernels},
                             {"bytes", counts.all.bytes},
                             {"targets", to_json(counts.by_target, "target")},
                             {"operations", to_json(counts.by_operation, "operation")},
                             {"other_versions", to_json(counts.of_other_versions)},
                             {"damaged", counts.damaged},
                             {"tuning", {{"records", records}, {"damaged", tuning.damaged}}}}));
    return 0;
  }
  print_row("tier", counts.path);
  print_row("kernels", print(counts.all));
  print_kinds(counts);
  print_row("damaged", fmt::format("{}{}", counts.damaged, counts.damaged > 0 ? ": `ingot cache verify --tier`" : ""));
  print_row("tuning records", fmt::format("{}, {} damaged", records, tuning.damaged));
  return 0;
}

}  // namespace

int cache_path() {
  const std::filesystem::path root = default_store_root();
  if (root.empty()) {
    throw Error(ErrorCode::not_found, "ingot cache", no_store_root() + "; set INGOT_CACHE_DIR to a directory of yours");
  }
  fmt::print("{}\n", std::filesystem::absolute(root).string());
  return 0;
}

int cache_list(const CacheListOptions& options) {
  KernelListing listing;
  std::string place;
  if (options.tier.empty()) {
    CacheStore store;
    place = store.kernels.root().string();
    listing = list_kernels(store.kernels, store.identity);
  } else {
    const std::unique_ptr<KernelTier> tier = open_tier(options.tier);
    place = tier->name();
    listing = list_kernels(*tier, kernel_identity_of(ContextOptions::from_environment()));
  }
  sort_by_use(listing);
  if (!options.json) {
    print_table(listing, place);
    return 0;
  }
  nlohmann::ordered_json kernels = nlohmann::ordered_json::array();
  for (const ListedKernel& kernel : listing.kernels) kernels.push_back(to_json(kernel));
  nlohmann::ordered_json damaged = nlohmann::ordered_json::array();
  for (const DamagedKernel& kernel : listing.damaged) {
    damaged.push_back({{"file", kernel_file_path(kernel.entry.key)}, {"problem", kernel.problem}});
  }
  fmt::print("{}\n", dump({{"path", place}, {"kernels", kernels}, {"damaged", damaged}}));
  return 0;
}

int cache_stat(const CacheStatOptions& options) {
  if (!options.tier.empty()) return stat_tier(options);
  CacheStore store;
  StoreCounts counts{.path = store.kernels.root().string()};
  count_kernels(store, counts);
  count_records(store, counts);
  count_tiers(store, counts);
  if (options.json) {
    fmt::print("{}\n", dump(to_json(counts)));
  } else {
    print_table(counts);
  }
  return 0;
}

}  // namespace ingot::tools
