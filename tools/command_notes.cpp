#include "command_notes.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <initializer_list>
#include <string>

#include "command_tree.h"

namespace ingot::tools {
namespace {

constexpr NotedTerm kWell{"0", "all went well"};
constexpr NotedTerm kError{"1", "an error, which stderr tells in one line"};
constexpr NotedTerm kWrongUsage{"2", "the command line is wrong"};

std::vector<NotedTerm> variables(std::initializer_list<std::string_view> names) {
  std::vector<NotedTerm> chosen;
  for (const NotedTerm& variable : environment_variables()) {
    if (std::ranges::find(names, variable.term) != names.end()) chosen.push_back(variable);
  }
  return chosen;
}

constexpr NotedTerm kStore{
    "$XDG_CACHE_HOME/ingot, or ~/.cache/ingot",
    "The store: compiled kernels, and in its folder tuning/ the tuning records. It is a cache, and "
    "may be deleted at any time."};

CommandNotes program_notes() {
  return {.about = {"Ingot generates CUDA kernels for FP8 arithmetic, compiles them when they are first needed and "
                    "keeps them in a store on disk. This program shows what Ingot finds on a machine and which kernels "
                    "it generates, measures which are the fastest, and compiles them ahead of a run.",
                    "A spec is one line that names a kernel: on this command line, in code, in logs and in messages.",
                    "Results go to stdout, progress and errors to stderr. No output has colours."},
          .examples = {{"ingot info", "the device, libraries and store, and what is missing"},
                       {"ingot show \"cast bf16->e4m3fn scale=row out=codes\"", "the kernel of a spec"},
                       {"ingot warm --set llama3-8b", "compile ahead what a model needs"}},
          .exit_codes = {kWell, kError, kWrongUsage, {"130", "tune, warm or cache was interrupted"}},
          .environment = {environment_variables().begin(), environment_variables().end()},
          .files = {kStore}};
}

CommandNotes info_notes() {
  return {
      .about = {"Prints the device that a program would use, and why; the CUDA libraries that were found, where, and "
                "for those that are missing how to get them; the kernel store, the read-only tiers beside it, and "
                "what is wrong with any of them; and how many tuning records there are for this machine."},
      .examples = {{"ingot info", "as a table"},
                   {"INGOT_DEVICE=cpu ingot info --json", "as JSON, without using a GPU"}},
      .exit_codes = {kWell, kError, kWrongUsage},
      .environment = variables({"INGOT_CACHE_DIR", "INGOT_CACHE_TIERS", "INGOT_CACHE_MODE", "INGOT_DEVICE",
                                "INGOT_CUDA_ROOT", "INGOT_TUNING", "INGOT_TUNING_FILE"}),
      .files = {kStore}};
}

CommandNotes show_notes() {
  return {.about = {"Generates the kernel of a spec, compiles it, and prints its source, registers, spills, shared "
                    "memory and size. It takes nothing from the store. The kernel of a matmul depends on its size: for "
                    "a spec without kernel= it is the one of a typical size, which a note names."},
          .examples = {{"ingot show \"cast bf16->e4m3fn scale=row out=codes\"", "source and resources"},
                       {"ingot show \"gemm e5m2*e4m3fn->bf16 nt kernel=sm90\" --ptx --target sm_90a", "its PTX"}},
          .exit_codes = {kWell, kError, kWrongUsage},
          .environment = variables({"INGOT_CUDA_ROOT", "INGOT_TEMPLATES"})};
}

CommandNotes tune_notes() {
  return {
      .about =
          {"Without tuning, a matmul runs on cuBLASLt's first choice or on the kernel that a cost model picks. This "
           "command measures all candidates in turns, checks their results, and records the fastest; every "
           "program on this machine then uses it. It needs a GPU, except for --list, --import and --export.",
           "It may be interrupted or killed at any time: the same command goes on with what is left."},
      .examples = {{"ingot tune --mnk 16384,8192,7168", "a layer's GEMMs"},
                   {"ingot tune --set llama3-8b --tokens 16 --weight-only e4m3fn", "decoding with FP8 weights"},
                   {"ingot tune --manifest run.gemms --budget 60s", "what a run noted"},
                   {"ingot tune --export records.json", "for another machine of the kind: --import"}},
      .exit_codes = {kWell,
                     kError,
                     kWrongUsage,
                     {"130", "it was interrupted (Ctrl-C, SIGTERM); run it again to go on"}},
      .environment = variables({"INGOT_CACHE_DIR", "INGOT_CUDA_ROOT", "INGOT_DEVICE", "INGOT_TUNING",
                                "INGOT_GEMM_MANIFEST", "INGOT_RECORD"}),
      .files = {
          {"$XDG_CACHE_HOME/ingot/tuning, or ~/.cache/ingot/tuning", "The tuning records, one small file each."}}};
}

CommandNotes warm_notes() {
  return {
      .about = {"Finds which kernels a model will ask for by running its layers dry, and compiles those that the store "
                "lacks, in parallel. It needs NVRTC, but no GPU. A bundle is one file with all of them, to ship with "
                "an image; processes read it when INGOT_CACHE_TIERS names it.",
                "It may be interrupted or killed at any time: every kernel is kept as soon as it is compiled, and the "
                "same command goes on with the rest.",
                "Kernels of a program's own source are in no recording and no set: run the program once with "
                "INGOT_CACHE_MODE=auto, write its store to a bundle with `ingot cache export`, and name that bundle "
                "in INGOT_CACHE_TIERS beside the one of this command.",
                "To run without compiling: INGOT_CACHE_TIERS=FILE INGOT_CACHE_MODE=strict. A kernel that is missing is "
                "then an error, whose message says how to get it. Only a run on a GPU shows that nothing is missing: "
                "on the CPU no kernel of Ingot's own is looked up. With INGOT_CACHE_MODE=strict, this command only "
                "checks, as with "
                "--check."},
      .examples = {{"ingot warm --set llama3-8b", "all recipes, training and decoding"},
                   {"ingot warm --recording run.ingot --gpu h200,h20", "what a run with INGOT_RECORD noted"},
                   {"ingot warm --layers model.json --bundle model.bundle", "everything in one file"},
                   {"ingot warm --set llama3-8b --list", "only print the kernels"},
                   {"INGOT_CACHE_TIERS=model.bundle ingot warm --set llama3-8b --check", "is anything missing?"}},
      .exit_codes = {kWell,
                     {"1", "a kernel failed, is not kept or (--check) missing, or another error, which stderr tells"},
                     kWrongUsage,
                     {"130", "it was interrupted (Ctrl-C, SIGTERM); run it again to go on"}},
      .environment = variables({"INGOT_CACHE_DIR", "INGOT_CACHE_MAX_BYTES", "INGOT_CACHE_TIERS", "INGOT_CACHE_MODE",
                                "INGOT_CUDA_ROOT", "INGOT_TEMPLATES", "INGOT_RECORD"}),
      .files = {kStore}};
}

CommandNotes cache_notes() {
  return {.about =
              {"Looks after the kernel store. Every run keeps what it compiles there, and finds it the next time; what "
               "is removed is compiled again when it is needed.",
               "`export` writes all that a run has left in the store to one file, kernels of the program's own source "
               "included, which no recording has. So for a program with such kernels: run it once with "
               "INGOT_CACHE_MODE=auto, export, and run the others with INGOT_CACHE_TIERS=FILE INGOT_CACHE_MODE=strict.",
               "A store is private: its folders have mode 0700, its files 0600. For others to use it as a tier, it "
               "must be root's or their own, and readable: run `chmod -R a+rX` on it or on a copy. A bundle is as "
               "readable as the umask of the one who wrote it says."},
          .examples = {{"ingot cache stat", "how much there is, and whether anything is damaged"},
                       {"ingot cache prune --max-size 500M", "remove what was used longest ago"},
                       {"ingot cache export model.bundle", "one file that other machines and users can read"},
                       {"ingot cache verify --tier model.bundle", "check it where it lies"}},
          .exit_codes = {kWell, kError, kWrongUsage},
          .environment = variables(
              {"INGOT_CACHE_DIR", "INGOT_CACHE_MAX_BYTES", "INGOT_CACHE_TIERS", "INGOT_CACHE_MODE", "INGOT_CUDA_ROOT"}),
          .files = {kStore,
                    {"<store>/quarantine", "Files that failed their check, at most 16."},
                    {"<store>/tmp", "Files that are being written."}}};
}

CommandNotes bench_notes() {
  return {
      .about = {"Runs a benchmark by its name, with all that follows the name as its command line: ingot bench gemm "
                "--help lists the options of that one. Each checks its results before it times them. The "
                "benchmarks are programs of their own, built with Ingot, and looked for in ../bench and "
                "../libexec/ingot beside the folder of this program."},
      .examples = {{"ingot bench --list", "the benchmarks"},
                   {"ingot bench gemm --help", "the options of one of them"},
                   {"ingot bench gemm --quick --filter 4096x4096x4096", "run it"},
                   {"ingot bench linear --recipe rowwise --json figures.json", "keep the figures"}},
      .exit_codes = {{"0", "the benchmark's own, as are all others"},
                     {"1", "an error, or the benchmark is not built"},
                     kWrongUsage,
                     {"77", "skipped: the benchmark needs a GPU, and there is none"}},
      .environment = variables({"INGOT_CUDA_ROOT", "INGOT_CACHE_DIR", "INGOT_TUNING"}),
      .files = {{"../libexec/ingot/bench_*", "The benchmarks of an installation, beside the program's folder."}}};
}

CommandNotes man_notes() {
  return {.about = {"Prints a man page. The pages are made from what the program registers, so they name every option "
                    "that it has."},
          .examples = {{"ingot man warm | man -l -", "read a page that is not installed"},
                       {"ingot man --folder ~/.local/share/man/man1", "install them for yourself"}},
          .exit_codes = {kWell, kError, kWrongUsage}};
}

CommandNotes completion_notes() {
  return {
      .about = {"Prints a script with which a shell completes commands, options and the values that are known: sets, "
                "recipes, GPUs, dtypes and files."},
      .examples = {{"eval \"$(ingot completion bash)\"", "in this shell"},
                   {"ingot completion zsh > ~/.zfunc/_ingot", "for zsh, in a folder of its fpath"}},
      .exit_codes = {kWell, kError, kWrongUsage},
      .files = {{"share/bash-completion/completions/ingot, share/zsh/site-functions/_ingot",
                 "Where an installation puts the scripts."}}};
}

std::string footer_of(const CommandNotes& notes) {
  std::string text;
  const auto add = [&](const char* title, const std::vector<NotedTerm>& terms, auto print) {
    if (terms.empty()) return;
    text += fmt::format("\n{}:\n", title);
    for (const NotedTerm& each : terms) text += print(each);
  };
  add("Examples", notes.examples,
      [](const NotedTerm& each) { return fmt::format("  {}\n      {}\n", each.term, each.meaning); });
  add("Exit codes", notes.exit_codes,
      [](const NotedTerm& each) { return fmt::format("  {:<5}{}\n", each.term, each.meaning); });
  if (!text.empty()) text.pop_back();
  return text;
}

// `path`: "cache list".
void add_footers(CLI::App& command, const std::string& path) {
  if (passes_on(command)) return;  // its help is that of another program
  CommandNotes notes = notes_of(path);
  const std::string footer = command.get_footer();
  if (tells_exit_codes(footer)) notes.exit_codes.clear();
  const std::string noted = footer_of(notes);
  command.footer(footer + (footer.empty() || noted.empty() ? "" : "\n") + noted);
  for (CLI::App* nested : command.get_subcommands([](CLI::App*) { return true; })) {
    add_footers(*nested, (command.get_parent() == nullptr ? "" : path + " ") + nested->get_name());
  }
}

}  // namespace

CommandNotes notes_of(std::string_view path) {
  struct Named {
    std::string_view name;
    CommandNotes (*notes)();
  };
  static constexpr std::array kNotes{
      Named{"ingot", program_notes}, Named{"info", info_notes}, Named{"show", show_notes},
      Named{"tune", tune_notes},     Named{"warm", warm_notes}, Named{"cache", cache_notes},
      Named{"bench", bench_notes},   Named{"man", man_notes},   Named{"completion", completion_notes}};
  const auto* const found = std::ranges::find(kNotes, path, &Named::name);
  return found == kNotes.end() ? CommandNotes{.exit_codes = {kWell, kError, kWrongUsage}} : found->notes();
}

std::span<const NotedTerm> environment_variables() {
  static constexpr std::array kVariables{
      NotedTerm{"INGOT_CACHE_DIR",
                "The kernel store: where compiled kernels are kept (default: $XDG_CACHE_HOME/ingot, else "
                "~/.cache/ingot)."},
      NotedTerm{"INGOT_CACHE_MAX_BYTES",
                "When the kernel store outgrows this, the least recently used kernels are removed (default: 2 GiB)."},
      NotedTerm{"INGOT_CACHE_TIERS", "Bundles and other users' stores, with colons between them, that are only read."},
      NotedTerm{"INGOT_CACHE_MODE",
                "auto (the default); strict: nothing is compiled, and a missing kernel is an error; memory: nothing on "
                "disk is "
                "read or written; verify: what is found on disk is compiled again and compared."},
      NotedTerm{"INGOT_DEVICE", "cpu, cuda or cuda:1 (default: a GPU if there is one)."},
      NotedTerm{
          "INGOT_CUDA_ROOT",
          "The CUDA toolkit to take NVRTC, cuBLASLt and NVTX from; none: use none of them (default: they are searched "
          "for)."},
      NotedTerm{"INGOT_TEMPLATES",
                "A folder with the kernels' templates, to work on them without rebuilding (default: the "
                "embedded ones)."},
      NotedTerm{"INGOT_CPU_THREADS", "Threads of the CPU reference (default: all cores)."},
      NotedTerm{"INGOT_TUNING",
                "on (the default), off: ignore tuning records, or frozen: use them and let nothing write them."},
      NotedTerm{"INGOT_TUNING_FILE", "Take tuning records from this exported file instead of the store."},
      NotedTerm{"INGOT_GEMM_MANIFEST", "A file in which a run notes its GEMMs, for `ingot tune --manifest`."},
      NotedTerm{"INGOT_WARM", "A recording whose kernels are compiled in the background from the start."},
      NotedTerm{"INGOT_CHECK_MEMORY",
                "1: layers look for memory that changed or was freed between forward and backward; slow."},
      NotedTerm{"INGOT_LOG", "1: a line on stderr for each kernel, from where it came and how long that took."},
      NotedTerm{"INGOT_STATS",
                "1: a line on stderr when a context ends, with the kernels compiled and read, and launches."},
      NotedTerm{"INGOT_RECORD",
                "A file in which a run notes the kernels and matmuls that it asks for, for `ingot warm "
                "--recording` and `ingot tune --manifest`."}};
  return kVariables;
}

bool tells_exit_codes(std::string_view footer) { return footer.find("Exit code") != std::string_view::npos; }

void add_notes(CLI::App& program) { add_footers(program, program.get_name()); }

}  // namespace ingot::tools
