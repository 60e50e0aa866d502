// `ingot cache prune` and `ingot cache clear`.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cache/cache.h"
#include "cache/cache_store.h"
#include "ingot/runtime/jit/kernel_file.h"
#include "ingot/runtime/jit/kernel_listing.h"
#include "ingot/runtime/util/count_of.h"
#include "interrupts.h"
#include "text.h"
#include "usage_error.h"

namespace ingot::tools {
namespace {

int exit_code(const RemovedFiles& removed) { return removed.stopped ? kStopped : removed.failed.empty() ? 0 : kFailed; }

int refuse(const std::string& message) {
  std::fputs(fmt::format("ingot: error: ingot cache: {}\n", message).c_str(), stderr);
  return kUsage;
}

void add(RemovedFiles& all, RemovedFiles more) {
  all.files += more.files;
  all.bytes += more.bytes;
  std::ranges::move(more.left, std::back_inserter(all.left));
  std::ranges::move(more.failed, std::back_inserter(all.failed));
  all.stopped = all.stopped || more.stopped;
}

PruneRules rules_of(const CachePruneOptions& options) {
  PruneRules rules{.targets = parse_targets(options.targets)};
  if (!options.max_size.empty()) rules.max_bytes = parse_size(options.max_size);
  if (!options.older_than.empty()) rules.unused_for = parse_age(options.older_than);
  return rules;
}

std::map<KernelKey, std::string> names_of(const KernelListing& listing) {
  std::map<KernelKey, std::string> names;
  for (const ListedKernel& kernel : listing.kernels) {
    names[kernel.entry.key] = fmt::format("{} {}", print(kernel.target), one_line(kernel.name));
  }
  for (const DamagedKernel& kernel : listing.damaged) {
    names[kernel.entry.key] = fmt::format("{} (damaged)", kernel_file_path(kernel.entry.key));
  }
  return names;
}

struct Pruned {
  RemovedFiles removed{};
  std::vector<std::string> names{};
};

// One by one, so that what is said to be removed is what was removed.
Pruned prune(const CacheStore& store, const KernelListing& listing, const CachePruneOptions& options) {
  const Interrupts interrupts;
  const std::map<KernelKey, std::string> names = names_of(listing);
  Pruned pruned;
  for (const KernelEntry& kernel : kernels_to_prune(listing, rules_of(options), std::time(nullptr))) {
    RemovedFiles removed = options.dry_run
                               ? RemovedFiles{.files = 1, .bytes = kernel.bytes}
                               : store.kernels.remove({kernel}, [&interrupts] { return interrupts.pending(); });
    if (removed.files > 0) pruned.names.push_back(names.at(kernel.key));
    add(pruned.removed, std::move(removed));
    if (pruned.removed.stopped) break;
  }
  return pruned;
}

// A target without kernels may be a typing error.
void warn_of_unknown(const std::vector<Target>& targets, const KernelListing& listing) {
  for (const Target target : targets) {
    if (std::ranges::find(listing.kernels, target, &ListedKernel::target) != listing.kernels.end()) continue;
    std::set<std::string> there;
    for (const ListedKernel& kernel : listing.kernels) there.insert(print(kernel.target));
    warn(fmt::format("--target {}: the store has no kernel for it; it has kernels for {}", print(target),
                     there.empty() ? "no architecture" : fmt::format("{}", fmt::join(there, ", "))));
  }
}

bool confirmed(const CacheStore& store, bool tuning) {
  const KernelStore::Usage usage = store.kernels.usage();
  fmt::print(stderr, "Remove {} ({}){} from {}? [y/N] ", count_of(usage.files, "kernel"),
             print_bytes(static_cast<double>(usage.bytes)), tuning ? " and all tuning records" : "",
             store.kernels.root().string());
  const int answer = std::getchar();
  return answer == 'y' || answer == 'Y';
}

}  // namespace

int cache_prune(const CachePruneOptions& options) {
  if (options.max_size.empty() && options.older_than.empty() && options.targets.empty()) {
    return refuse("prune: say what to remove: --max-size 500M, --older-than 30d or --target sm_90a");
  }
  CacheStore store;
  store.require();
  const KernelListing listing = list_kernels(store.kernels, store.identity);
  warn_of_unknown(parse_targets(options.targets), listing);
  const Pruned pruned = prune(store, listing, options);
  const char* const done = options.dry_run ? "would be removed" : "removed";
  if (options.json) {
    nlohmann::ordered_json json = to_json(pruned.removed);
    json["dry_run"] = options.dry_run;
    json["kernels"] = pruned.names;
    fmt::print("{}\n", dump(json));
  } else {
    for (const std::string& name : pruned.names) fmt::print("{}: {}\n", done, name);
    fmt::print("{}, {}, {}{}\n", count_of(pruned.removed.files, "kernel"),
               print_bytes(static_cast<double>(pruned.removed.bytes)), done,
               pruned.removed.stopped ? "; stopped before the end" : "");
  }
  warn_of_left(pruned.removed);
  return exit_code(pruned.removed);
}

int cache_clear(const CacheClearOptions& options) {
  if (!options.yes && isatty(STDIN_FILENO) == 0) {
    return refuse("clear: there is no terminal to ask at; add --yes to remove everything without being asked");
  }
  CacheStore store;
  store.require();
  if (!options.yes && !confirmed(store, options.tuning)) {
    fmt::print(stderr, "nothing was removed\n");
    return kFailed;
  }
  RemovedFiles removed;
  RemovedFiles records;
  {
    const Interrupts interrupts;
    const auto stop = [&interrupts] { return interrupts.pending(); };
    removed = store.kernels.clear(stop);
    if (options.tuning && !removed.stopped) records = store.tuning.clear(stop);
  }
  const std::int64_t files = removed.files;
  const std::int64_t record_files = records.files;
  add(removed, std::move(records));
  if (options.json) {
    nlohmann::ordered_json json = to_json(removed);
    json["tuning_records"] = record_files;
    fmt::print("{}\n", dump(json));
  } else {
    fmt::print("{}{} removed, {}{}\n", count_of(files, "file"),
               options.tuning ? " and " + count_of(record_files, "tuning record") : "",
               print_bytes(static_cast<double>(removed.bytes)), removed.stopped ? "; stopped before the end" : "");
  }
  warn_of_left(removed);
  return exit_code(removed);
}

}  // namespace ingot::tools
