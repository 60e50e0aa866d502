// The command `ingot tune`: plans what to tune, tunes it on this machine's GPU and prints the outcome. The work on the
// list itself is in tune_session.h.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "command_line.h"
#include "commands.h"
#include "ingot/nn/recipe/recipes.h"
#include "ingot/runtime/context/context.h"
#include "ingot/runtime/measure/matmul_tuning.h"
#include "ingot/runtime/tuning/tuning_record.h"
#include "ingot/runtime/util/count_of.h"
#include "ingot/runtime/util/error.h"
#include "ingot/runtime/util/write_file.h"
#include "interrupts.h"
#include "progress.h"
#include "text.h"
#include "tune/tune_plan.h"
#include "tune/tune_report.h"
#include "tune/tune_session.h"
#include "usage_error.h"

namespace ingot::tools {
namespace {

struct TuneOptions {
  std::vector<std::string> mnk{};  // tokens, out_features, in_features
  std::string set{};
  std::string tokens{};  // of --set; empty: its default
  std::string recipe{};
  std::string weight_only{};
  std::string weight_scale{};
  std::string activations{};
  std::filesystem::path recording{};
  std::string budget{};  // "60s"; empty: as long as it takes
  bool again = false;    // also tune what has a record
  bool list = false;
  bool json = false;
  std::filesystem::path import_from{};
  std::filesystem::path export_to{};
};

[[noreturn]] void refuse_frozen(const char* what) {
  throw Error(ErrorCode::invalid_argument, "tune",
              fmt::format("INGOT_TUNING=frozen, and {} writes tuning records; set INGOT_TUNING=on", what));
}

// A machine with a GPU imports only its own records; one without imports all of them, as they may be for any machine.
// Returns false if it was interrupted.
bool import_records(Context& context, const std::filesystem::path& path, const Interrupts& interrupts) {
  const TuningFile file = read_tuning_file(path, [&] { return interrupts.pending(); });
  const bool for_any = context.device().type == DeviceType::cpu;
  std::size_t taken = 0;
  std::size_t foreign = 0;
  std::string how;
  bool stopped = file.stopped;
  for (const TuningRecord& record : file.records) {
    stopped = stopped || interrupts.pending();
    if (stopped) break;
    const std::string differs = for_any ? "" : difference(record.machine, context.tuning_machine());
    if (!differs.empty()) {
      if (foreign++ == 0) how = differs;
      continue;
    }
    if (!context.tuning_store().put(record)) {
      throw Error(ErrorCode::io_failed, context.tuning_store().root().string(),
                  context.tuning_store().disabled_reason());
    }
    ++taken;
  }
  if (file.damaged > 0) {
    warn(fmt::format("{}: {}; {} damaged {} ignored", path.string(), file.problem, file.damaged,
                     file.damaged == 1 ? "line is" : "lines are"));
  }
  if (foreign > 0) {
    warn(fmt::format("{}: {} {} another machine's ({}) and {} ignored", path.string(), foreign,
                     foreign == 1 ? "record is" : "records are", how, foreign == 1 ? "is" : "are"));
  }
  fmt::print(stderr, "{} imported from {}{}\n", count_of(taken, "record"), path.string(),
             stopped ? "; interrupted: run the same command again to take the rest" : "");
  if (taken == 0 && !stopped) {
    throw Error(ErrorCode::invalid_argument, path.string(),
                "has no record for this machine, so nothing was imported; `ingot tune --export` on a machine of this "
                "kind writes one");
  }
  return !stopped;
}

// Sorted, so that equal records give equal files. Returns false if it was interrupted; the file is then as it was.
bool export_records(Context& context, const std::filesystem::path& path, const Interrupts& interrupts) {
  const auto interrupted = [&] { return interrupts.pending(); };
  std::vector<std::string> lines;
  for (const TuningRecord& record : context.tuning_store().load(interrupted)) {
    if (interrupted()) break;
    if (context.device().type == DeviceType::cuda && record.machine != context.tuning_machine()) continue;
    lines.push_back(print(record) + "\n");
  }
  if (interrupted()) {
    fmt::print(stderr, "interrupted: nothing is exported to {}\n", path.string());
    return false;
  }
  if (lines.empty()) {
    const std::string problem = context.tuning_store().disabled_reason();
    throw Error(ErrorCode::not_found, "ingot tune",
                fmt::format("nothing is exported to {}, because there is no record of this machine: {}", path.string(),
                            problem.empty() ? "tune first (--set, --mnk or --recording), or --import" : problem));
  }
  std::ranges::sort(lines);
  FileWriter file(path);
  for (const std::string& line : lines) file.write(line);
  file.publish();
  fmt::print(stderr, "{} exported to {}\n", count_of(lines.size(), "record"), path.string());
  return true;
}

std::string describe(const TunedGemm& gemm) {
  const PlannedGemm& planned = gemm.planned;
  return fmt::format("{}{}{}", planned.label, planned.label.empty() ? "" : "  ", print(planned.call));
}

// Returns false if it was interrupted.
bool tune_on_gpu(Context& context, std::vector<TunedGemm>& gemms, const TuneOptions& options, double seconds,
                 const Interrupts& interrupts) {
  GpuMatmuls matmuls(context, "--list shows what would be tuned, --import brings records from elsewhere");
  std::unique_ptr<Progress> progress;
  TuneSession session{.store = &context.tuning_store(),
                      .machine = context.tuning_machine(),
                      .candidates = [&](const MatmulCall& call) { return matmuls.candidates(call); },
                      .measurer = [&](const MatmulCall& call) { return matmuls.measurer(call); },
                      .interrupted = [&] { return interrupts.pending(); },
                      .seconds = seconds};
  session.warn = [&](const std::string& text) { progress->note("ingot: warning: " + text); };
  session.begin = [&](const TunedGemm& gemm) { progress->begin(describe(gemm)); };
  session.end = [&](const TunedGemm& gemm, double weight) {
    progress->end(weight, gemm.record ? fmt::format("{}, {:.1f} us", kernel_of(gemm.record->chosen), gemm.record->us)
                                      : gemm.problem);
  };
  if (!options.again) find_records(session, gemms);
  double weight = 0;
  int missing = 0;
  for (const TunedGemm& gemm : gemms) {
    if (gemm.record) continue;
    weight += tuning_weight(gemm.planned.call);
    ++missing;
  }
  if (missing == 0) return true;
  if (context.tuning() == Tuning::frozen) refuse_frozen("tuning");
  progress = std::make_unique<Progress>(missing, weight);
  return tune_missing(session, gemms);
}

// Tunes what is planned and prints the outcome. Returns the exit code.
int tune_and_report(Context& context, const std::vector<PlannedGemm>& planned, const TuneOptions& options,
                    double seconds, const Interrupts& interrupts) {
  std::vector<TunedGemm> gemms;
  for (const PlannedGemm& gemm : planned) gemms.push_back({.planned = gemm});
  const bool finished = tune_on_gpu(context, gemms, options, seconds, interrupts);
  fmt::print("{}\n", options.json ? json(gemms, context.tuning_machine()) : table(gemms));
  const auto measured = std::ranges::count_if(gemms, [](const TunedGemm& g) { return g.record.has_value(); });
  const auto untried = std::ranges::count_if(gemms, [](const TunedGemm& g) { return !g.record && g.problem.empty(); });
  if (untried > 0) {
    fmt::print(stderr, "{} of {} GEMMs are not tuned yet; run the same command again to go on\n", untried,
               gemms.size());
  }
  const bool failed = std::ranges::any_of(gemms, [](const TunedGemm& g) { return !g.problem.empty(); });
  if (!finished) return kStopped;
  if (measured == 0) fmt::print(stderr, "ingot: error: no GEMM has a record; give more time (--budget)\n");
  return failed || measured == 0 ? kFailed : 0;
}

int tune(const TuneOptions& options) {
  const InterruptsEnd interrupts_end;
  const std::vector<PlannedGemm> planned = plan({.mnk = options.mnk,
                                                 .set = options.set,
                                                 .tokens = parse_tokens(options.tokens),
                                                 .recipe = options.recipe,
                                                 .weight_only = options.weight_only,
                                                 .weight_scale = options.weight_scale,
                                                 .activations = options.activations,
                                                 .recording = options.recording,
                                                 .warn = warn});
  const double seconds = options.budget.empty() ? 1e6 : parse_seconds(options.budget);
  if (planned.empty() && options.import_from.empty() && options.export_to.empty()) {
    const char* const nothing =
        "there is nothing to tune; give shapes (--mnk 16384,8192,7168), a model (--set llama3-8b), a recording "
        "(--recording run.ingot), or --import or --export";
    if (options.recording.empty()) throw UsageError("ingot tune", nothing);
    throw Error(ErrorCode::invalid_argument, "ingot tune", nothing);  // the command line is right, the file is empty
  }
  if (options.list) {
    fmt::print("{}", options.json ? list_json(planned) : list(planned));
    return 0;
  }
  Interrupts interrupts;  // before there are threads
  Context context;
  if (!options.import_from.empty()) {
    if (context.tuning() == Tuning::frozen) refuse_frozen("--import");
    if (!import_records(context, options.import_from, interrupts)) return kStopped;
  }
  const int status = planned.empty() ? 0 : tune_and_report(context, planned, options, seconds, interrupts);
  if (options.export_to.empty()) return status;
  if (status == kStopped) interrupts.forget();  // what was tuned until then is exported
  return export_records(context, options.export_to, interrupts) ? status : kStopped;
}

constexpr const char* kTuneNotes = R"(
Examples:
  ingot tune --mnk 16384,8192,7168
      a layer's GEMMs
  ingot tune --set llama3-8b --tokens 16 --weight-only e4m3fn
      decoding with FP8 weights
  ingot tune --recording run.ingot --budget 60s
      what a run asked for
  ingot tune --export records.json
      for another machine of the kind: --import

It may be interrupted at any time: the same command continues with what is left.

Exit codes:
  0    all went well
  1    an error, described in one line on stderr
  2    the command line is wrong
  130  it was interrupted (Ctrl-C, SIGTERM); run it again to go on)";

}  // namespace

void add_tune(CLI::App& app, int& status) {
  const auto options = std::make_shared<TuneOptions>();
  CLI::App* const command = app.add_subcommand(
      "tune", "Measure which kernel is the fastest for each GEMM, and keep records that the library then follows");
  command->add_option("--mnk", options->mnk, "A linear layer: tokens,out_features,in_features; repeatable")
      ->type_name("M,N,K");
  command
      ->add_option("--set", options->set,
                   "The layers of a known model, of a mixture all but the experts: " + model_names())
      ->type_name(kModelValue);
  command
      ->add_option("--tokens", options->tokens,
                   "Tokens in a step, for the layers of --set (default: 8192, with --weight-only 16); --mnk has its "
                   "own")
      ->type_name("COUNT");
  command->add_option("--recipe", options->recipe, "Only this recipe's GEMMs: one of " + recipe_names())
      ->type_name(kRecipeValue);
  command
      ->add_option("--weight-only", options->weight_only,
                   "Instead of the recipes' GEMMs, matmuls with packed weights of this dtype, such as e4m3fn, "
                   "and the same matmuls in 16 bits")
      ->type_name(kWeightValue);
  command
      ->add_option("--weight-scale", options->weight_scale,
                   "Granularity of those weights' scale_inv: tensor, row, 1x128, 1x64, 1x32, 128x128 or mx (default: "
                   "row for FP8, mx for fewer bits)")
      ->type_name("SCALE");
  command
      ->add_option("--activations", options->activations,
                   "Dtype of the activations that those weights are packed for: bf16 or f16 (default: bf16)")
      ->type_name(kDtypeValue);
  command->add_option("--recording", options->recording, "The matmuls of what a run with INGOT_RECORD asked for")
      ->type_name(kFileValue);
  command->add_option("--budget", options->budget, "Stop after this time, such as 60s or 5m; the next run goes on")
      ->type_name("TIME");
  command->add_flag("--again", options->again, "Measure again what has a record");
  command->add_flag("--list", options->list, "Print the GEMMs and exit; needs no GPU");
  command->add_flag("--json", options->json, "Print JSON, with --list too");
  command->add_option("--import", options->import_from, "Take records from this file first")->type_name(kFileValue);
  command->add_option("--export", options->export_to, "Write all records to this file at the end")
      ->type_name(kFileValue);
  command->footer(kTuneNotes);
  command->callback([options, &status] { status = tune(*options); });
}

}  // namespace ingot::tools
