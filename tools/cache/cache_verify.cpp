// `ingot cache verify`: reads every file as a run would, and moves damaged ones of the store aside; with --recompile it
// also compiles every kernel of the store again, in worker processes, and compares the machine code.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cache/cache.h"
#include "cache/cache_store.h"
#include "ingot/runtime/jit/kernel_file.h"
#include "ingot/runtime/jit/kernel_listing.h"
#include "ingot/runtime/tuning/tuning_record.h"
#include "ingot/runtime/util/count_of.h"
#include "ingot/runtime/util/error.h"
#include "interrupts.h"
#include "progress.h"
#include "text.h"
#include "usage_error.h"
#include "worker_processes.h"

namespace ingot::tools {
namespace {

struct Finding {
  std::string file;
  std::string problem;
  bool moved = false;
};

// The result for a bundle or another store, which is only read.
struct TierOutcome {
  std::string path;
  std::int64_t kernels = 0;
  std::int64_t records = 0;
  std::int64_t of_other_versions = 0;
  std::vector<Finding> damaged{};
};

struct VerifyOutcome {
  std::int64_t kernels = 0;
  std::int64_t records = 0;
  std::int64_t recompiled = 0;
  std::int64_t of_other_versions = 0;  // these and the next are not compiled again
  std::int64_t of_other_compilers = 0;
  std::vector<Finding> damaged{};
  std::vector<Finding> differing{};
  std::vector<Finding> failed{};  // to compile
  std::vector<TierOutcome> tiers{};
  bool stopped = false;
};

TierOutcome check_tier(const std::filesystem::path& path, const std::string& identity,
                       const std::function<bool()>& stop) {
  const std::unique_ptr<KernelTier> tier = open_tier(path);
  TierOutcome outcome{.path = tier->name()};
  const KernelListing listing = list_kernels(*tier, identity, stop);
  outcome.kernels = static_cast<std::int64_t>(listing.kernels.size() + listing.damaged.size());
  outcome.of_other_versions = std::ranges::count(listing.kernels, false, &ListedKernel::current);
  for (const DamagedKernel& kernel : listing.damaged) {
    outcome.damaged.push_back({kernel_file_path(kernel.entry.key), kernel.problem});
  }
  if (listing.stopped) return outcome;
  const TuningFile tuning = read_tuning_of(*tier, stop);
  outcome.records = static_cast<std::int64_t>(tuning.records.size()) + tuning.damaged;
  if (tuning.damaged > 0) {
    outcome.damaged.push_back({count_of(tuning.damaged, "damaged tuning record"), tuning.problem});
  }
  return outcome;
}

// One that cannot be used is a finding, too: a run would do without it.
TierOutcome check_tier_or_tell(const std::filesystem::path& path, const std::string& identity,
                               const std::function<bool()>& stop) {
  try {
    return check_tier(path, identity, stop);
  } catch (const Error& error) {
    TierOutcome outcome{.path = path.string()};
    outcome.damaged.push_back({"it", error.message()});
    return outcome;
  }
}

struct CheckedKernel {
  KernelKey key{};
  std::string name{};
  std::string compiler{};
  bool current = false;
};

class Verification {
 public:
  Verification(const CacheVerifyOptions& options, CacheStore& store)
      : options_(options), store_(store), compiles_(options.recompile) {
    if (!compiles_) return;
    // The CPU's context starts no threads, so workers can be forked.
    ContextOptions context = store.options;
    context.where = ContextOptions::Where::cpu;
    context.cpu_threads = 1;
    context.tiers.clear();
    context_.emplace(context);
    if (context_->compiler() == nullptr) {
      throw Error(ErrorCode::not_found, "NVRTC", "--recompile needs it: " + why_no_compiler());
    }
  }

  VerifyOutcome run() {
    const Interrupts interrupts;
    stop_ = [&interrupts] { return interrupts.pending(); };
    check_kernels();
    check_records();
    for (const std::filesystem::path& path : store_.options.tiers) {
      outcome_.stopped = outcome_.stopped || stop_();
      if (outcome_.stopped) break;
      outcome_.tiers.push_back(check_tier_or_tell(path, store_.identity, stop_));
    }
    if (compiles_ && !outcome_.stopped) recompile();
    return std::move(outcome_);
  }

 private:
  std::string why_no_compiler() const {
    const ContextInfo info = context_->info();
    return std::ranges::find(info.libraries, "NVRTC", &LibraryInfo::name)->problem;
  }

  void check_kernels() {
    for (const KernelEntry& entry : store_.kernels.list()) {
      outcome_.stopped = stop_();
      if (outcome_.stopped) return;
      std::optional<KernelFile> file;
      const StoreDirectory::Check check = store_.kernels.check(entry.key, &file);
      if (!check.problem.empty()) {
        outcome_.damaged.push_back({path_of(entry.key), check.problem, check.moved});
      }
      if (check.there) ++outcome_.kernels;
      if (!file) continue;
      checked_.push_back({.key = entry.key,
                          .name = fmt::format("{} {}", print(file->target), one_line(file->source.name)),
                          .compiler = file->kernel.toolchain,
                          .current = is_current(*file, entry.key, store_.identity)});
    }
  }

  void check_records() {
    if (outcome_.stopped) return;
    TuningStore::Survey survey = store_.tuning.survey(StoreDirectory::Damaged::is_moved, stop_);
    outcome_.stopped = survey.stopped;
    outcome_.records = static_cast<std::int64_t>(survey.records.size() + survey.damaged.size());
    for (const TuningStore::Damaged& damaged : survey.damaged) {
      outcome_.damaged.push_back({(store_.tuning.root() / damaged.file).string(), damaged.problem, damaged.moved});
    }
  }

  // Only the same compiler is bound to make the same machine code, and only of this Ingot's source and options.
  std::vector<std::size_t> to_recompile() {
    const std::string toolchain = context_->compiler()->toolchain();
    std::vector<std::size_t> jobs;
    for (std::size_t i = 0; i < checked_.size(); ++i) {
      if (!checked_[i].current) {
        ++outcome_.of_other_versions;
      } else if (checked_[i].compiler != toolchain) {
        ++outcome_.of_other_compilers;
      } else {
        jobs.push_back(i);
      }
    }
    return jobs;
  }

  void recompile() {
    const std::vector<std::size_t> jobs = to_recompile();
    if (jobs.empty()) return;
    Progress progress(static_cast<int>(jobs.size()), static_cast<double>(jobs.size()));
    run_in_workers(jobs, {.processes = options_.jobs,
                          .work = [this](std::size_t i) { return difference_of(checked_[i].key); },
                          .done = [&](const JobResult& result) { note(result, progress); },
                          .stop =
                              [this] {
                                outcome_.stopped = outcome_.stopped || stop_();
                                return outcome_.stopped;
                              }});
  }

  // In a worker: how the kernel differs from what the compiler makes of its source, or empty.
  std::string difference_of(const KernelKey& key) {
    std::string problem;
    const std::optional<KernelFile> file = store_.kernels.read(key, problem);
    if (!file) return problem;  // removed meanwhile: no problem
    const CompiledKernel made = context_->compiler()->compile(file->source, file->target);
    if (made.lowered_name != file->kernel.lowered_name) return "has another symbol than the compiler gives it now";
    if (made.cubin != file->kernel.cubin) return "has other machine code than the compiler makes now";
    return {};
  }

  void note(const JobResult& result, Progress& progress) {
    const CheckedKernel& kernel = checked_[result.job];
    const bool differs = !result.failed && !result.text.empty();
    progress.begin(kernel.name);
    progress.end(1, result.failed ? "failed" : differs ? "differs" : fmt::format("{:.2f} s", result.seconds));
    ++outcome_.recompiled;
    if (result.failed) outcome_.failed.push_back({path_of(kernel.key), result.text, false});
    if (!differs) return;
    const bool moved = store_.kernels.set_aside(kernel.key, result.text);
    outcome_.differing.push_back({path_of(kernel.key), result.text, moved});
  }

  std::string path_of(const KernelKey& key) const { return (store_.kernels.root() / kernel_file_path(key)).string(); }

  const CacheVerifyOptions& options_;
  CacheStore& store_;
  bool compiles_;
  std::optional<Context> context_{};
  std::function<bool()> stop_{};
  std::vector<CheckedKernel> checked_{};
  VerifyOutcome outcome_{};
};

nlohmann::ordered_json to_json(const std::vector<Finding>& findings) {
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const Finding& each : findings) {
    json.push_back({{"file", each.file}, {"problem", each.problem}, {"moved", each.moved}});
  }
  return json;
}

nlohmann::ordered_json to_json(const TierOutcome& tier) {
  return {{"path", tier.path},
          {"kernels", tier.kernels},
          {"records", tier.records},
          {"of_other_versions", tier.of_other_versions},
          {"damaged", to_json(tier.damaged)}};
}

void print_json(const VerifyOutcome& outcome) {
  nlohmann::ordered_json tiers = nlohmann::ordered_json::array();
  for (const TierOutcome& tier : outcome.tiers) tiers.push_back(to_json(tier));
  fmt::print("{}\n", dump({{"kernels", outcome.kernels},
                           {"records", outcome.records},
                           {"damaged", to_json(outcome.damaged)},
                           {"recompiled", outcome.recompiled},
                           {"differing", to_json(outcome.differing)},
                           {"failed", to_json(outcome.failed)},
                           {"of_other_versions", outcome.of_other_versions},
                           {"of_other_compilers", outcome.of_other_compilers},
                           {"tiers", tiers},
                           {"stopped", outcome.stopped}}));
}

void print_text(const TierOutcome& tier) {
  for (const Finding& each : tier.damaged) {
    fmt::print("{}: {} {}\n", tier.path, one_line(each.file), one_line(each.problem));
  }
  fmt::print("{}: {} and {} checked: {} damaged\n", tier.path, count_of(tier.kernels, "kernel"),
             count_of(tier.records, "tuning record"), tier.damaged.size());
  if (tier.of_other_versions > 0) {
    fmt::print("{}: {} of another version of Ingot, which this one never uses\n", tier.path,
               count_of(tier.of_other_versions, "kernel"));
  }
}

void print_text(const VerifyOutcome& outcome, bool recompiled) {
  for (const std::vector<Finding>* findings : {&outcome.damaged, &outcome.differing}) {
    for (const Finding& each : *findings) {
      fmt::print("{} {}; {}\n", each.file, each.problem,
                 each.moved ? "moved to the quarantine" : "it could not be moved to the quarantine: remove it");
    }
  }
  for (const Finding& each : outcome.failed) fmt::print("{}: {}\n", each.file, each.problem);
  fmt::print("{} and {} checked: {} damaged\n", count_of(outcome.kernels, "kernel"),
             count_of(outcome.records, "tuning record"), outcome.damaged.size());
  if (recompiled) {
    fmt::print("{} compiled again: {} differ, {} failed\n", count_of(outcome.recompiled, "kernel"),
               outcome.differing.size(), outcome.failed.size());
  }
  if (outcome.of_other_versions > 0) {
    fmt::print("{} not compiled again: of another version of Ingot\n", count_of(outcome.of_other_versions, "kernel"));
  }
  if (outcome.of_other_compilers > 0) {
    fmt::print("{} not compiled again: another build of NVRTC made them\n",
               count_of(outcome.of_other_compilers, "kernel"));
  }
  for (const TierOutcome& tier : outcome.tiers) print_text(tier);
  if (outcome.stopped) fmt::print("stopped before the end\n");
}

int verify_tier(const CacheVerifyOptions& options) {
  const Interrupts interrupts;
  const TierOutcome outcome = check_tier(options.tier, kernel_identity_of(ContextOptions::from_environment()),
                                         [&interrupts] { return interrupts.pending(); });
  if (outcome.kernels + outcome.records == 0 && outcome.damaged.empty() && !interrupts.pending()) {
    refuse_empty_tier(options.tier);
  }
  if (options.json) {
    fmt::print("{}\n", dump(to_json(outcome)));
  } else {
    print_text(outcome);
    if (interrupts.pending()) fmt::print("stopped before the end\n");
  }
  if (interrupts.pending()) return kStopped;
  return outcome.damaged.empty() ? 0 : kFailed;
}

}  // namespace

int cache_verify(const CacheVerifyOptions& options) {
  if (!options.tier.empty()) return verify_tier(options);
  CacheStore store;
  if (store.options.tiers.empty()) store.require();
  const VerifyOutcome outcome = Verification(options, store).run();
  if (options.json) {
    print_json(outcome);
  } else {
    print_text(outcome, options.recompile);
  }
  if (outcome.stopped) return kStopped;
  const bool good = outcome.damaged.empty() && outcome.differing.empty() && outcome.failed.empty() &&
                    std::ranges::all_of(outcome.tiers, [](const TierOutcome& tier) { return tier.damaged.empty(); });
  return good ? 0 : kFailed;
}

}  // namespace ingot::tools
