// The command line of `ingot cache`.
#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "cache/cache.h"
#include "command_line.h"
#include "commands.h"
#include "text.h"
#include "usage_error.h"

namespace ingot::tools {
namespace {

constexpr const char* kExitCodes =
    "Exit code: 0, 1 if something failed or verify, import or export met something damaged, 2 for a wrong command "
    "line, 130 if it was stopped (Ctrl-C).";

constexpr const char* kExamples = R"(
Examples:
  ingot cache stat
      how much there is, and whether anything is damaged
  ingot cache prune --max-size 500M
      remove what was used longest ago
  ingot cache export model.bundle
      one file that other machines and users can read
  ingot cache verify --tier model.bundle
      check it where it is

A store is private. For others to use it as a tier (INGOT_CACHE_TIERS), run `chmod -R a+rX` on it or on a copy.

)";

// For the commands that change nothing.
constexpr const char* kLookingExitCodes =
    "Exit code: 0, even if what it shows is damaged (`ingot cache verify` then ends with 1); 1 if it failed, 2 for a "
    "wrong command line.";

using Options = std::shared_ptr<CacheOptions>;

CLI::App* add_command(CLI::App& cache, const std::string& name, const std::string& description, bool& json) {
  CLI::App* const command = cache.add_subcommand(name, description);
  command->add_flag("--json", json, "Print JSON");
  command->footer(kExitCodes);
  return command;
}

CLI::Option* add_tier(CLI::App* command, std::filesystem::path& tier, const std::string& description) {
  return command->add_option("--tier", tier, description)->type_name(kFileValue);
}

void add_targets(CLI::App* command, std::vector<std::string>& targets) {
  command->add_option("--target", targets, "Only kernels for this architecture, such as sm_90a; repeatable")
      ->type_name(kTargetValue)
      ->delimiter(',')
      ->allow_extra_args(false)  // what follows may be a file
      ->check(target_problem);
}

void add_looking(CLI::App& cache, const Options& options, int& status) {
  CLI::App* const path = cache.add_subcommand("path", "Print the store's folder");
  path->callback([&status] { status = cache_path(); });

  CLI::App* const list =
      add_command(cache, "list", "List the kernels, those used last first; changes nothing", options->list.json);
  add_tier(list, options->list.tier, "List this bundle or other store instead");
  list->footer(kLookingExitCodes);
  list->callback([options, &status] { status = cache_list(options->list); });

  CLI::App* const stat = add_command(
      cache, "stat", "Count kernels, bytes, tuning records and what is damaged; changes nothing", options->stat.json);
  add_tier(stat, options->stat.tier, "Count this bundle or other store instead");
  stat->footer(kLookingExitCodes);
  stat->callback([options, &status] { status = cache_stat(options->stat); });

  CLI::App* const verify = add_command(cache, "verify",
                                       "Check every file of the store, and move damaged ones to the quarantine; check "
                                       "the tiers of INGOT_CACHE_TIERS too, and change nothing there",
                                       options->verify.json);
  CLI::Option* const tier =
      add_tier(verify, options->verify.tier, "Check this bundle or other store instead, where it is; changes nothing");
  verify
      ->add_flag("--recompile", options->verify.recompile,
                 "Also compile every kernel of the store again and compare the machine code; needs NVRTC")
      ->excludes(tier);
  verify->add_option("--jobs", options->verify.jobs, "Processes that compile (default: one per core)")
      ->type_name("N")
      ->check(CLI::Range(1, 4096));
  verify->callback([options, &status] { status = cache_verify(options->verify); });
}

void add_removing(CLI::App& cache, const Options& options, int& status) {
  CachePruneOptions& rules = options->prune;
  CLI::App* const prune = add_command(cache, "prune", "Remove the least recently used kernels", rules.json);
  prune->add_option("--max-size", rules.max_size, "Keep at most this, such as 500M or 2G")
      ->type_name("SIZE")
      ->check(size_problem);
  prune->add_option("--older-than", rules.older_than, "Remove what was not used for this long, such as 12h or 30d")
      ->type_name("AGE")
      ->check(age_problem);
  add_targets(prune, rules.targets);
  prune->add_flag("--dry-run", rules.dry_run, "Say what would be removed, and remove nothing");
  prune->callback([options, &status] { status = cache_prune(options->prune); });

  CLI::App* const clear =
      add_command(cache, "clear", "Remove all kernels, and nothing that is not Ingot's", options->clear.json);
  clear->add_flag("--tuning", options->clear.tuning, "Also the tuning records, which take long to measure again");
  clear->add_flag("--yes", options->clear.yes, "Do not ask; required without a terminal");
  clear->callback([options, &status] { status = cache_clear(options->clear); });
}

void add_moving(CLI::App& cache, const Options& options, int& status) {
  CLI::App* const taking = add_command(cache, "import", "Take kernels and tuning records of a bundle or another store",
                                       options->taking.json);
  taking->add_option("from", options->taking.from, "A bundle, or a store's folder")->type_name(kFileValue)->required();
  taking->callback([options, &status] { status = cache_import(options->taking); });

  CLI::App* const bundle = add_command(
      cache, "export", "Write the store's kernels and tuning records to one file, a bundle", options->bundle.json);
  bundle->add_option("to", options->bundle.to, "The file to write")->type_name(kFileValue)->required();
  add_targets(bundle, options->bundle.targets);
  bundle
      ->add_option("--recording", options->bundle.recordings,
                   "Of Ingot's own kernels, only what this recording may need; repeatable")
      ->type_name(kFileValue)
      ->allow_extra_args(false);
  bundle->callback([options, &status] { status = cache_export(options->bundle); });
}

// In one line, as other wrong commands are refused.
int refuse_command(const CLI::App& cache) {
  std::string names;
  for (const CLI::App* command : cache.get_subcommands({})) names += (names.empty() ? "" : ", ") + command->get_name();
  const std::vector<std::string> words = cache.remaining();
  const std::string problem =
      words.empty() ? "no command is given" : fmt::format("no command \"{}\"", one_line(words.front()));
  std::fputs(fmt::format("ingot: error: ingot cache: {}; expected one of {}\n", problem, names).c_str(), stderr);
  return kUsage;
}

}  // namespace

void add_cache(CLI::App& app, int& status) {
  const auto options = std::make_shared<CacheOptions>();
  CLI::App* const cache =
      app.add_subcommand("cache", "Look after the kernel store: list, verify, prune, clear, import, export");
  cache->require_subcommand(0, 1);
  cache->footer(std::string(kExamples) + kExitCodes);
  add_looking(*cache, options, status);
  add_removing(*cache, options, status);
  add_moving(*cache, options, status);
  cache->prefix_command();  // what is no command ends the line: nothing after it runs
  cache->callback([cache, &status] {
    if (cache->get_subcommands().empty()) status = refuse_command(*cache);
  });
}

}  // namespace ingot::tools
