// `ingot cache path` and `ingot cache list`.
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cache.h"
#include "cache_store.h"
#include "cache_text.h"
#include "commands.h"
#include "ingot/runtime/error.h"
#include "ingot/runtime/jit/kernel_file.h"
#include "ingot/runtime/jit/kernel_listing.h"
#include "pass_name.h"

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
  fmt::print("{}: {}, {}\n", place, count_of(static_cast<std::int64_t>(listing.kernels.size()), "kernel"),
             print_bytes(static_cast<double>(bytes)));
}

// Those that were used last come first; a bundle keeps its order.
void sort_by_use(KernelListing& listing) {
  std::ranges::stable_sort(listing.kernels, std::greater{},
                           [](const ListedKernel& kernel) { return kernel.entry.used; });
}

}  // namespace

int cache_path() {
  const std::filesystem::path root = default_store_root();
  if (root.empty()) {
    throw Error(ErrorCode::not_found, "ingot cache",
                "there is no store directory: INGOT_CACHE_DIR, XDG_CACHE_HOME and HOME are all unset; set "
                "INGOT_CACHE_DIR to a directory of yours");
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

}  // namespace ingot::tools
