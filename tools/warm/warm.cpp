// The command `ingot warm`: plans which kernels are needed, finds out which of them are missing, compiles those in
// worker processes, and packs all of them into a bundle if one is wanted. Every kernel is in the store as soon as it is
// compiled, so the next run goes on where this one was stopped.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "command_line.h"
#include "commands.h"
#include "ingot/nn/recipe/recipes.h"
#include "ingot/runtime/context/context.h"
#include "ingot/runtime/jit/kernel_bundle.h"
#include "ingot/runtime/jit/kernel_file.h"
#include "ingot/runtime/tuning/tuning_record.h"
#include "ingot/runtime/util/count_of.h"
#include "ingot/runtime/util/error.h"
#include "ingot/runtime/util/text.h"
#include "interrupts.h"
#include "progress.h"
#include "text.h"
#include "usage_error.h"
#include "warm/model_recording.h"
#include "warm/warm_plan.h"
#include "worker_processes.h"

namespace ingot::tools {
namespace {

struct WarmOptions {
  std::vector<std::string> sets{};
  std::vector<std::filesystem::path> layers{};
  std::vector<std::filesystem::path> recordings{};
  RecordedModel models{};
  std::vector<std::string> gpus{};     // empty: h200
  std::vector<std::string> recipes{};  // empty: all
  std::vector<std::string> weights{};  // weight-only formats; empty: e4m3fn
  std::string dtype = "bf16";
  std::optional<std::string> tokens{};  // in a training step, "none" for no training
  std::optional<std::string> decode{};  // decoded at once, "none" for no decoding
  std::filesystem::path tuning{};       // an exported file of tuning records
  int jobs = 0;                         // worker processes; 0: one per core
  std::filesystem::path bundle{};
  bool list = false;
  bool check = false;  // compile nothing, only list what is missing
  bool json = false;
};

struct Failure {
  std::string name;
  std::string text;
};

struct Outcome {
  std::size_t planned = 0;
  std::size_t there = 0;  // before
  std::size_t compiled = 0;
  std::vector<std::string> missing{};  // where nothing is compiled
  std::vector<Failure> failures{};
  std::size_t lost = 0;  // were there or compiled, and are not found at the end
  bool stopped = false;
  double seconds = 0;
  std::int64_t bundle_bytes = 0;
  std::string store{};  // its path; empty if there is none
};

WarmRequest request_of(const WarmOptions& options, const std::vector<TuningRecord>& tuned) {
  WarmRequest request;
  request.sets = options.sets;
  request.layers = options.layers;
  request.recordings = options.recordings;
  if (!options.gpus.empty()) request.gpus = options.gpus;
  request.recipes = options.recipes;
  request.weights = options.weights;
  request.dtype = options.dtype;
  if (options.tokens) request.training_tokens = *options.tokens == "none" ? "" : *options.tokens;
  if (options.decode) request.decoding_tokens = *options.decode == "none" ? "" : *options.decode;
  request.tuned = tuned;
  request.warn = warn;
  return request;
}

std::vector<TuningRecord> read_tuning(const std::filesystem::path& file) {
  if (file.empty()) return {};
  TuningFile read = read_tuning_file(file);
  if (read.damaged > 0) {
    warn(fmt::format("{}: {} ignored; {}", file.string(),
                     read.damaged == 1 ? "1 damaged record is" : fmt::format("{} damaged records are", read.damaged),
                     read.problem));
  }
  if (read.records.empty()) {
    throw Error(ErrorCode::invalid_argument, file.string(),
                "has no tuning record that can be read; `ingot tune --export` writes such a file");
  }
  return std::move(read.records);
}

// The CPU's context: kernels are compiled for the targets asked for, not for this machine's GPU. It starts no threads,
// so it can be used by the workers, which are forked from it.
ContextOptions context_options() {
  ContextOptions options = ContextOptions::from_environment();
  options.where = ContextOptions::Where::cpu;
  options.cpu_threads = 1;
  options.cache_mode = CacheMode::automatic;
  return options;
}

void print_list(const std::vector<WarmJob>& jobs, bool json) {
  if (!json) {
    for (const WarmJob& job : jobs) fmt::print("{}  {}\n", print(job.target), job.name);
    return;
  }
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const WarmJob& job : jobs) list.push_back({{"target", print(job.target)}, {"kernel", job.name}});
  fmt::print("{}\n", dump(list));
}

std::string describe(const WarmJob& job) { return fmt::format("{} {}", print(job.target), job.name); }

class Warming {
 public:
  Warming(const WarmOptions& options, std::vector<WarmJob> jobs, std::span<const TuningRecord> tuned)
      : options_(options), jobs_(std::move(jobs)), tuned_(tuned), context_(context_options()) {
    outcome_.planned = jobs_.size();
    outcome_.store = context_.store().root().string();
  }

  Outcome run() {
    const auto start = std::chrono::steady_clock::now();
    const std::vector<std::size_t> missing = find_missing();
    outcome_.there = jobs_.size() - missing.size();
    if (options_.check) {
      for (const std::size_t i : missing) outcome_.missing.push_back(describe(jobs_[i]));
    } else if (!missing.empty()) {
      compile(missing);
      if (!outcome_.stopped) count_lost();
    }
    const bool complete = !outcome_.stopped && outcome_.missing.empty();
    if (!options_.bundle.empty() && complete) write_bundle();
    outcome_.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return std::move(outcome_);
  }

 private:
  std::vector<std::size_t> find_missing() {
    std::vector<std::size_t> missing;
    for (std::size_t i = 0; i < jobs_.size(); ++i) {
      if (!context_.cache().is_ready(jobs_[i].source, jobs_[i].target)) missing.push_back(i);
    }
    return missing;
  }

  // The store removes what was used longest ago when it outgrows its limit, and so may other processes.
  void count_lost() {
    const std::size_t found = jobs_.size() - find_missing().size();
    const std::size_t expected = jobs_.size() - outcome_.failures.size();
    outcome_.lost = expected > found ? expected - found : 0;
  }

  [[noreturn]] void refuse_to_lose(const std::string& why) const {
    throw Error(ErrorCode::io_failed, "ingot warm",
                fmt::format("{}, so what is compiled would not be kept ({} compiled and kept before); set "
                            "INGOT_CACHE_DIR to a directory of yours that can be written{}",
                            why, outcome_.compiled, advice_about(why)));
  }

  // Why a kernel that this process has just compiled is not on disk, or empty.
  std::string why_lost(const WarmJob& job) {
    if (context_.store().find(context_.cache().key_of(job.source, job.target))) return {};
    const std::string why = context_.store().disabled_reason();
    return why.empty() ? fmt::format(
                             "store directory {} lacks a kernel that was just written to it (is its limit, "
                             "INGOT_CACHE_MAX_BYTES, too small?)",
                             context_.store().root().string())
                       : why;
  }

  void compile(const std::vector<std::size_t>& missing) {
    if (context_.compiler() == nullptr) refuse_to_compile(missing);
    if (const std::string why = context_.store().write_problem(); !why.empty()) refuse_to_lose(why);
    double weight = 0;
    for (const std::size_t i : missing) weight += jobs_[i].weight;
    Progress progress(static_cast<int>(missing.size()), weight);
    const Interrupts interrupts;
    run_in_workers(missing, {.processes = options_.jobs,
                             .work =
                                 [this](std::size_t i) {
                                   context_.cache().compiled(jobs_[i].source, jobs_[i].target);
                                   return why_lost(jobs_[i]);
                                 },
                             .done = [&](const JobResult& result) { note(result, progress); },
                             .stop =
                                 [&] {
                                   outcome_.stopped = outcome_.stopped || interrupts.pending();
                                   return outcome_.stopped || !not_kept_.empty();
                                 }});
    if (!not_kept_.empty()) refuse_to_lose(not_kept_);
  }

  [[noreturn]] void refuse_to_compile(const std::vector<std::size_t>& missing) const {
    constexpr std::size_t kNamed = 3;
    const ContextInfo info = context_.info();
    const auto nvrtc = std::ranges::find(info.libraries, "NVRTC", &LibraryInfo::name);
    std::string names;
    for (std::size_t i = 0; i < std::min(kNamed, missing.size()); ++i) {
      names += (i == 0 ? "" : "; ") + describe(jobs_[missing[i]]);
    }
    if (missing.size() > kNamed) names += fmt::format("; and {} more, which --check lists", missing.size() - kNamed);
    throw Error(
        ErrorCode::not_found, "NVRTC",
        fmt::format("{} to be compiled ({}), and it is missing: {}. Unset INGOT_CUDA_ROOT or let it name a CUDA "
                    "toolkit, or `pip install nvidia-cuda-nvrtc`, or name a bundle with these kernels in "
                    "INGOT_CACHE_TIERS",
                    missing.size() == 1 ? "1 kernel has" : fmt::format("{} kernels have", missing.size()), names,
                    nvrtc->problem));
  }

  void note(const JobResult& result, Progress& progress) {
    const WarmJob& job = jobs_[result.job];
    progress.begin(describe(job));
    progress.end(job.weight, result.failed          ? "failed"
                             : !result.text.empty() ? "not kept"
                                                    : fmt::format("{:.2f} s", result.seconds));
    if (!result.failed && !result.text.empty()) {
      not_kept_ = result.text;
      return;
    }
    if (!result.failed) {
      ++outcome_.compiled;
      return;
    }
    outcome_.failures.push_back({describe(job), result.text});
    progress.note(fmt::format("ingot: error: {}", result.text));
  }

  void write_bundle() {
    BundleContent content{.identity = context_.cache().identity(), .kernels = {}, .tuning = tuning_lines()};
    for (const WarmJob& job : jobs_) {
      const KernelKey key = context_.cache().key_of(job.source, job.target);
      const auto kernel = context_.cache().ready(job.source, job.target);
      if (!kernel) continue;  // it failed, or another process has removed it: the summary says so
      content.kernels.push_back({.key = key, .file = encode_kernel_file(key, job.source, job.target, *kernel)});
    }
    if (content.kernels.size() < jobs_.size() && outcome_.failures.empty()) {
      throw Error(ErrorCode::io_failed, options_.bundle.string(),
                  fmt::format("{} of {} kernels could not be read back from the store, so no bundle was written; {}",
                              jobs_.size() - content.kernels.size(), jobs_.size(),
                              "`ingot info` says whether the store works"));
    }
    outcome_.bundle_bytes = ingot::write_bundle(options_.bundle, std::move(content));
  }

  std::string tuning_lines() const {
    std::string lines;
    for (const TuningRecord& record : tuned_) lines += print(record) + "\n";
    return lines;
  }

  const WarmOptions& options_;
  std::vector<WarmJob> jobs_;
  std::span<const TuningRecord> tuned_;
  Context context_;
  Outcome outcome_;
  std::string not_kept_{};  // why a kernel that was compiled is not on disk
};

void print_outcome(const Outcome& outcome, const WarmOptions& options) {
  if (options.json) {
    nlohmann::ordered_json failures = nlohmann::ordered_json::array();
    for (const Failure& failure : outcome.failures) {
      failures.push_back({{"kernel", failure.name}, {"error", failure.text}});
    }
    const nlohmann::ordered_json json = {{"kernels", outcome.planned},
                                         {"there", outcome.there},
                                         {"missing", outcome.missing},
                                         {"compiled", outcome.compiled},
                                         {"failed", outcome.failures.size()},
                                         {"lost", outcome.lost},
                                         {"stopped", outcome.stopped},
                                         {"seconds", outcome.seconds},
                                         {"store", outcome.store},
                                         {"bundle", options.bundle.string()},
                                         {"bundle_bytes", outcome.bundle_bytes},
                                         {"failures", failures}};
    fmt::print("{}\n", dump(json));
    return;
  }
  for (const std::string& kernel : outcome.missing) fmt::print("missing: {}\n", kernel);
  const std::string kernels = count_of(outcome.planned, "kernel");
  if (options.check) {
    fmt::print("{}: {} there, {} missing; nothing was compiled\n", kernels, outcome.there, outcome.missing.size());
  } else {
    fmt::print("{}: {} {} there, {} compiled, {} failed; {:.1f} s\n", kernels, outcome.there,
               outcome.there == 1 ? "was" : "were", outcome.compiled, outcome.failures.size(), outcome.seconds);
  }
  if (outcome.lost > 0) {
    fmt::print(
        "{} not found in the store any more: it may have outgrown its limit (INGOT_CACHE_MAX_BYTES), or someone "
        "clears it\n",
        count_of(outcome.lost, "kernel"));
  }
  fmt::print("store: {}\n", outcome.store.empty() ? "none" : without_controls(outcome.store));
  if (outcome.bundle_bytes > 0) {
    fmt::print("{}: {}\n", options.bundle.string(), print_bytes(static_cast<double>(outcome.bundle_bytes)));
  }
  if (outcome.stopped) fmt::print("stopped; the same command continues with the rest\n");
}

std::vector<WarmJob> jobs_of(const WarmOptions& options, const std::vector<TuningRecord>& tuned) {
  WarmRequest request = request_of(options, tuned);
  if (options.models.configs.empty() && options.models.modules.empty()) return plan_warm(request);
  for (const std::string& module : options.models.modules) warn(fmt::format("runs the code of {}", module));
  const TemporaryFiles files;
  const std::vector<std::filesystem::path> recorded = record_models(options.models, request, files.folder());
  request.recordings.insert(request.recordings.end(), recorded.begin(), recorded.end());
  return plan_warm(request);
}

// Returns 0, 1 if a kernel failed or `check` found one missing, or 130 if it was stopped before the end.
int warm(const WarmOptions& given) {
  const InterruptsEnd interrupts_end;
  if (given.sets.empty() && given.layers.empty() && given.recordings.empty() && given.models.configs.empty() &&
      given.models.modules.empty()) {
    throw UsageError("ingot warm",
                     "nothing to warm: name a model (--set, --config or --module), a file of layers (--layers) or a "
                     "recording (--recording)");
  }
  WarmOptions options = given;
  const CacheMode mode = ContextOptions::from_environment().cache_mode;
  options.check = options.check || mode == CacheMode::strict;
  if (mode == CacheMode::memory && !options.list) {
    throw Error(ErrorCode::invalid_argument, "INGOT_CACHE_MODE",
                "is \"memory\", in which nothing on disk is read or written: unset it to warm or check the store");
  }
  const std::vector<TuningRecord> tuned = read_tuning(options.tuning);
  std::vector<WarmJob> jobs = jobs_of(options, tuned);
  if (jobs.empty()) {
    throw Error(ErrorCode::invalid_argument, "ingot warm",
                "nothing to warm: what was named asks for no kernel; see --tokens, --decode, --layers and --recording");
  }
  if (options.list) {
    print_list(jobs, options.json);
    return 0;
  }
  const Outcome outcome = Warming(options, std::move(jobs), tuned).run();
  print_outcome(outcome, options);
  if (outcome.stopped) return kStopped;
  return outcome.failures.empty() && outcome.missing.empty() && outcome.lost == 0 ? 0 : kFailed;
}

constexpr const char* kWarmNotes = R"(
A file for --layers:
  {"training": [{"name": "qkv", "in_features": 4096, "out_features": 6144, "kind": "rms_norm_linear"},
                {"name": "mlp", "in_features": 4096, "out_features": 14336, "kind": "gated_mlp"}],
   "decoding": [{"name": "qkv", "in_features": 4096, "out_features": 6144}]}
  kind: linear (the default), rms_norm_linear, layer_norm_linear, or an MLP, whose out_features are its hidden
  features: gated_mlp, layer_norm_mlp, rms_norm_gated_mlp. "bias" and, for decoding, "f32_output" are false by default.
  The gated MLPs of a mixture of experts are one layer, which trains tensorwise, delayed, rowwise and blockwise, and
  decodes in FP8 and with weights in each format of --weight-only:
    {"name": "experts", "kind": "experts", "experts": 128, "chosen": 8, "in_features": 2048, "out_features": 768}
  "chosen" is how many experts a token has. With "bias" they are gpt-oss's.
  Without "decoding", layers of kind linear and experts also decode.

Examples:
  ingot warm --set llama3-8b
      all recipes, training and decoding
  ingot warm --set qwen3-30b-a3b --recipe rowwise
      a mixture of experts: its linear layers and its experts
  ingot warm --config config.json --recipe rowwise
      a model of transformers that ingot.nn.convert() has converted
  ingot warm --recording run.ingot --gpu h200,h20
      what a run with INGOT_RECORD asked for, f32 gradients and the like included
  ingot warm --layers model.json --bundle model.bundle
      everything in one file; to run from it alone: INGOT_CACHE_TIERS=model.bundle INGOT_CACHE_MODE=strict
  ingot warm --set llama3-8b --list
      only print the kernels
  INGOT_CACHE_TIERS=model.bundle ingot warm --set llama3-8b --check
      is anything missing?

Kernels of a program's own source are in no recording: run it once, then `ingot cache export`.

Exit codes:
  0    all went well
  1    a kernel failed, is not kept or (--check) missing, or another error, described on stderr
  2    the command line is wrong
  130  it was interrupted (Ctrl-C, SIGTERM); run it again to go on)";

}  // namespace

void add_warm(CLI::App& app, int& status) {
  const auto options = std::make_shared<WarmOptions>();
  CLI::App* const command =
      app.add_subcommand("warm", "Compile ahead what a model will ask for, into the store or a bundle; needs no GPU");
  command->add_option("--set", options->sets, "A known model: " + model_names() + "; repeatable")
      ->type_name(kModelValue)
      ->delimiter(',');
  command
      ->add_option("--config", options->models.configs,
                   "A model's config.json of transformers, as ingot.nn.convert() makes it; needs Python; repeatable")
      ->type_name(kFileValue);
  command
      ->add_option("--module", options->models.modules,
                   "A Python function that returns a torch.nn.Module, whose code runs; repeatable")
      ->type_name("PACKAGE:FUNCTION");
  command
      ->add_option("--python", options->models.python,
                   "The Python that has Ingot's package (default: python3 in this program's folder, else that of PATH)")
      ->type_name(kFileValue);
  command->add_option("--layers", options->layers, "A JSON file with a model's layers; repeatable")
      ->type_name(kFileValue);
  command->add_option("--recording", options->recordings, "What a run with INGOT_RECORD asked for; repeatable")
      ->type_name(kFileValue);
  command->add_option("--gpu", options->gpus, "GPUs by name, such as h200,h100,h20 (default: h200)")
      ->type_name("GPU")
      ->delimiter(',');
  command->add_option("--recipe", options->recipes, "Only these recipes of " + recipe_names())
      ->type_name(kRecipeValue)
      ->delimiter(',');
  command
      ->add_option("--tokens", options->tokens,
                   "Tokens in a training step: numbers and ranges, such as 4096,8000-8192 (default: 8192), or none")
      ->type_name("COUNTS");
  command
      ->add_option("--weight-only", options->weights,
                   "Formats of weights that decode, such as e4m3fn or e2m1fn:mx (default: e4m3fn)")
      ->type_name(kWeightValue)
      ->delimiter(',');
  command
      ->add_option("--decode", options->decode,
                   "Tokens decoded at once: numbers and ranges, such as 1,16-64 (default: 1-256), or none")
      ->type_name("COUNTS");
  command->add_option("--dtype", options->dtype, "Dtype of activations: bf16 or f16 (default: bf16)")
      ->type_name(kDtypeValue);
  command->add_option("--tuning", options->tuning, "Tuning records (`ingot tune --export`) whose kernels are made too")
      ->type_name(kFileValue);
  command->add_option("--jobs", options->jobs, "Processes that compile (default: one per core)")
      ->type_name("N")
      ->check(CLI::Range(1, 4096));
  command->add_option("--bundle", options->bundle, "Write all of the kernels and the tuning records to this file")
      ->type_name(kFileValue);
  CLI::Option* const list = command->add_flag("--list", options->list, "Print the kernels and exit; compiles nothing");
  command
      ->add_flag("--check", options->check,
                 "Compile nothing: list what is missing in the store and the tiers, and exit with 1 if anything is "
                 "(always so with INGOT_CACHE_MODE=strict)")
      ->excludes(list);
  command->add_flag("--json", options->json, "Print JSON, with --list too");
  command->footer(kWarmNotes);
  command->callback([options, &status] { status = warm(*options); });
}

}  // namespace ingot::tools
