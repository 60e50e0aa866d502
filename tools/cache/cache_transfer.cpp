// `ingot cache import` and `ingot cache export`: the store's kernels and tuning records from and to other places.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cache/cache.h"
#include "cache/cache_store.h"
#include "ingot/codegen/recording.h"
#include "ingot/codegen/types/target.h"
#include "ingot/runtime/jit/kernel_bundle.h"
#include "ingot/runtime/jit/kernel_listing.h"
#include "ingot/runtime/jit/recorder.h"
#include "ingot/runtime/tuning/tuning_import.h"
#include "ingot/runtime/tuning/tuning_record.h"
#include "ingot/runtime/util/count_of.h"
#include "ingot/runtime/util/error.h"
#include "interrupts.h"
#include "text.h"
#include "usage_error.h"

namespace ingot::tools {
namespace {

namespace fs = std::filesystem;

// ---- import ---------------------------------------------------------------------------------------------------------

struct Imported {
  ImportedKernels kernels{};
  ImportedRecords records{};
  bool stopped() const { return kernels.stopped || records.stopped; }
};

// A machine with a GPU takes only its own records; one without takes all of them, as they may be for any machine.
ImportedRecords import_tuning(const TuningFile& file, CacheStore& store, const Context& context,
                              const std::function<bool()>& stop) {
  ImportedRecords imported{.stopped = file.stopped};
  if (context.tuning() == Tuning::frozen) {
    const auto count = static_cast<std::int64_t>(file.records.size());
    const char* const why = "INGOT_TUNING=frozen, so nothing writes tuning records; set INGOT_TUNING=on";
    if (count > 0) add_refused(imported.refused, {.why = why, .first = "tuning records", .count = count});
  } else if (!file.stopped) {
    const bool for_any = context.device().type == DeviceType::cpu;
    imported = import_records(file.records, store.tuning, for_any ? nullptr : &context.tuning_machine(), stop);
  }
  if (file.damaged > 0) {
    add_refused(imported.refused,
                {.why = file.problem, .first = "a tuning record", .count = file.damaged, .damaged = true});
  }
  return imported;
}

Imported import_from(const CacheImportOptions& options, CacheStore& store) {
  const std::unique_ptr<KernelTier> tier = open_tier(options.from);
  const Interrupts interrupts;  // before there are threads
  const auto stop = [&interrupts] { return interrupts.pending(); };
  ContextOptions context_options = store.options;
  context_options.tiers.clear();
  context_options.warn = [](const std::string&) {};
  const Context context(context_options);
  const Compiler* const compiler = context.compiler();
  const ImportRules rules{.identity = store.identity, .toolchain = compiler != nullptr ? compiler->toolchain() : ""};
  Imported imported;
  imported.kernels = import_kernels(*tier, store.kernels, rules, stop);
  if (imported.kernels.stopped) return imported;
  imported.records = import_tuning(read_tuning_of(*tier, stop), store, context, stop);
  return imported;
}

nlohmann::ordered_json to_json(const std::vector<Refused>& all) {
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const Refused& each : all) {
    json.push_back({{"why", each.why}, {"count", each.count}, {"first", each.first}, {"damaged", each.damaged}});
  }
  return json;
}

template <class Result>
nlohmann::ordered_json to_json(const Result& result) {
  return {{"added", result.added}, {"there", result.there}, {"refused", to_json(result.refused)}};
}

template <class Result>
void print_part(const Result& result, const char* what) {
  std::int64_t refused = 0;
  for (const Refused& each : result.refused) refused += each.count;
  fmt::print("{}: {} new, {} already there, {} refused\n", what, result.added, result.there, refused);
  for (const Refused& each : result.refused) {
    fmt::print("  {} refused: {} (the first: {})\n", each.count, each.why, one_line(each.first));
  }
}

// Failed: something is damaged, or none of what there was could be imported.
template <class Result>
bool failed(const Result& result) {
  return std::ranges::any_of(result.refused, &Refused::damaged) ||
         (result.added + result.there == 0 && !result.refused.empty());
}

// ---- export ---------------------------------------------------------------------------------------------------------

struct Exported {
  ExportedKernels kernels{};  // once written, without the kernels themselves
  std::int64_t count = 0;     // of kernels
  std::int64_t records = 0;
  std::int64_t missing = 0;  // kernels that the recordings name and the store lacks
  std::int64_t bytes = 0;
  bool stopped = false;
};

class Exporting {
 public:
  Exporting(const CacheExportOptions& options, CacheStore& store)
      : options_(options), store_(store), targets_(parse_targets(options.targets)) {}

  Exported run() {
    const Interrupts interrupts;
    const auto stop = [&interrupts] { return interrupts.pending(); };
    read_records(stop);
    read_recordings(stop);
    Exported exported;
    exported.kernels = export_kernels(
        store_.kernels, store_.identity, [this](const KernelFile& file) { return wanted(file); }, stop);
    exported.stopped = stop();
    if (exported.stopped) return exported;
    exported.records = static_cast<std::int64_t>(records_.size());
    exported.missing = static_cast<std::int64_t>(named_.size());
    exported.count = static_cast<std::int64_t>(exported.kernels.kernels.size());
    exported.bytes = write(std::exchange(exported.kernels.kernels, {}));
    return exported;
  }

 private:
  bool is_wanted(Target target) const {
    return targets_.empty() || std::ranges::find(targets_, target) != targets_.end();
  }

  // Of Ingot's own kernels those that the recordings may need; a program's own are in no recording.
  bool wanted(const KernelFile& file) {
    if (!is_wanted(file.target)) return false;
    named_.erase(file.source.text);
    return options_.recordings.empty() || needed_.contains(file.source.text) || !is_generated(file.source);
  }

  // The records that this Ingot would use, of all machines.
  void read_records(const std::function<bool()>& stop) {
    for (TuningRecord& record : store_.tuning.survey(StoreDirectory::Damaged::stays, stop).records) {
      const std::optional<Target> target = parse_target(record.machine.target);
      if (record.machine.compiler != store_.identity || !target || !is_wanted(*target)) continue;
      records_.push_back(std::move(record));
    }
    std::ranges::sort(records_, {}, [](const TuningRecord& record) { return print(record); });
  }

  // A recording does not say on which GPU the next run will be, so this exports what any known GPU may need.
  void read_recordings(const std::function<bool()>& stop) {
    Recording recording;
    for (const fs::path& file : options_.recordings) {
      const RecordingFile read = read_usable_recording(file);
      if (!read.problem.empty()) warn(read.problem);
      recording.add(read.recording);
    }
    if (recording.empty()) return;
    for (const KernelSpec& spec : recording.kernels()) {
      for (const Pass pass : passes(spec)) named_.insert(generate(spec, pass).text);
    }
    for (const Gpu& gpu : known_gpus()) {
      if (!is_wanted(gpu.target)) continue;
      const TunedKernels tuned(tuned_for(gpu));
      for (const auto& [spec, pass] : kernels_of(recording, matmul_device(gpu), {.tuned = tuned, .stop = stop})) {
        needed_.insert(generate(spec, pass).text);
      }
    }
    needed_.insert(named_.begin(), named_.end());
  }

  std::vector<TunedMatmul> tuned_for(const Gpu& gpu) const {
    std::vector<TunedMatmul> tuned;
    for (const TuningRecord& record : records_) {
      const bool same =
          record.machine.target == print(gpu.target) && record.machine.multiprocessors == gpu.multiprocessors;
      if (same) tuned.push_back({.call = {.spec = record.spec, .size = record.size}, .chosen = record.chosen});
    }
    return tuned;
  }

  // Returns the bundle's size.
  std::int64_t write(std::vector<BundleContent::Kernel> kernels) {
    if (kernels.empty() && records_.empty()) {
      throw Error(ErrorCode::not_found, store_.kernels.root().string(),
                  "has nothing to export for this version of Ingot and what was asked for; `ingot cache list` shows "
                  "what it has, `ingot warm` compiles more");
    }
    BundleContent content{.identity = store_.identity, .kernels = std::move(kernels), .tuning = {}};
    for (const TuningRecord& record : records_) content.tuning += print(record) + "\n";
    return write_bundle(options_.to, std::move(content));
  }

  const CacheExportOptions& options_;
  CacheStore& store_;
  std::vector<Target> targets_;
  std::vector<TuningRecord> records_{};
  std::set<std::string> needed_{};  // texts of sources
  std::set<std::string> named_{};   // of those, what the recordings name and the store has not shown yet
};

nlohmann::ordered_json to_json(const Exported& exported, const fs::path& to) {
  return {{"bundle", to.string()},
          {"bytes", exported.bytes},
          {"kernels", exported.count},
          {"tuning_records", exported.records},
          {"not_wanted", exported.kernels.not_wanted},
          {"of_other_versions", exported.kernels.of_other_versions},
          {"missing", exported.missing},
          {"damaged", exported.kernels.damaged},
          {"stopped", exported.stopped}};
}

void print_text(const Exported& exported, const fs::path& to) {
  if (exported.stopped) {
    fmt::print("stopped: nothing was exported to {}\n", to.string());
    return;
  }
  fmt::print("{}: {}, {}, {}\n", to.string(), count_of(exported.count, "kernel"),
             count_of(exported.records, "tuning record"), print_bytes(static_cast<double>(exported.bytes)));
  if (exported.kernels.not_wanted > 0) fmt::print("  {} left out: not asked for\n", exported.kernels.not_wanted);
  if (exported.kernels.of_other_versions > 0) {
    fmt::print("  {} left out: of another version of Ingot\n", exported.kernels.of_other_versions);
  }
}

}  // namespace

int cache_import(const CacheImportOptions& options) {
  CacheStore store;
  const Imported imported = import_from(options, store);
  const auto has_nothing = [](const auto& part) { return part.added + part.there == 0 && part.refused.empty(); };
  if (!imported.stopped() && has_nothing(imported.kernels) && has_nothing(imported.records)) {
    refuse_empty_tier(options.from);
  }
  if (options.json) {
    fmt::print("{}\n", dump({{"from", options.from.string()},
                             {"kernels", to_json(imported.kernels)},
                             {"tuning_records", to_json(imported.records)},
                             {"stopped", imported.stopped()}}));
  } else {
    print_part(imported.kernels, "kernels");
    print_part(imported.records, "tuning records");
    if (imported.stopped()) fmt::print("stopped; the same command continues with the rest\n");
  }
  if (imported.stopped()) return kStopped;
  return failed(imported.kernels) || failed(imported.records) ? kFailed : 0;
}

int cache_export(const CacheExportOptions& options) {
  CacheStore store;
  const Exported exported = Exporting(options, store).run();
  if (options.json) {
    fmt::print("{}\n", dump(to_json(exported, options.to)));
  } else {
    print_text(exported, options.to);
  }
  for (const std::string& damaged : exported.kernels.damaged) {
    warn(damaged + "; it was left out, and `ingot cache verify` moves it to the quarantine");
  }
  if (exported.missing > 0 && !exported.stopped) {
    warn(fmt::format("{} that the recordings may need are not in the store; `ingot warm --recording` compiles them",
                     count_of(exported.missing, "kernel")));
  }
  if (exported.stopped) return kStopped;
  return exported.kernels.damaged.empty() ? 0 : kFailed;
}

}  // namespace ingot::tools
