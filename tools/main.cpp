// The program `ingot`: reads the command line and runs the command.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <memory>
#include <string>
#include <system_error>

#include "bench.h"
#include "cache_command.h"
#include "command_notes.h"
#include "command_tree.h"
#include "commands.h"
#include "documents.h"
#include "exit_codes.h"
#include "help_formatter.h"
#include "ingot/nn/recipe/recipes.h"
#include "ingot/runtime/context.h"
#include "ingot/runtime/error.h"
#include "ingot/runtime/util/printable.h"
#include "ingot/runtime/util/standard_output.h"
#include "option_values.h"
#include "usage_error.h"

namespace {

namespace tools = ingot::tools;

constexpr const char* kSpecs = R"(
Specs:
  amax bf16 scale=tensor
  cast bf16->e4m3fn scale=row out=codes,transposed pow2
  cast bf16->e4m3fn scale=row+col out=codes,transposed
  cast bf16->e4m3fn of="silu(x) * gate + bias[col]" scale=row out=codes,result,sum:f32
  cast bf16->e4m3fn scale=tensor out=codes given
  cast bf16->e4m3fn scale=tensor out=codes,transposed list
  gemm e4m3fn*e5m2->bf16 nt scale=tensor,tensor bias fast
  gemm e4m3fn*e4m3fn->bf16 nt scale=row,row epilogue="silu(x) * gate" also=preactivation
  gemm e5m2*e5m2->bf16 nt scale=row,row kernel=sm90
  gemm_pair first="bf16*bf16->bf16 nn kernel=sm90:128x128:1x1:6:pingpong" second="bf16*bf16->bf16 tn kernel=sm90:128x128:1x1:6:pingpong"
  dequant_matmul bf16*e4m3fn->bf16 packed scale=row bias epilogue="silu(x) * gate"
  dequant_matmul f16*e2m1fn->f16 packed scale=1x32 factors=e8m0fnu batch_invariant
  dequant_matmul bf16*e4m3fn->bf16 packed scale=1x128 kernel=sm90
  dequant_matmul bf16*e4m3fn->bf16 row_major scale=row kernel=mma
  dequant_matmul f16*e4m3fn->f16 packed_f16 scale=row
  pack_weight e4m3fn packed_f16
  quantize_mx bf16->e2m1fn
  float_quantize bf16 e4m3
  column_sum bf16->f32
  elementwise bf16 of="silu(x) * gate"
  relayout transposed
  cast_stats bf16->e4m3fn scale=1x128 transposed
  norm rms bf16->e4m3fn affine scale=row out=codes,stats
  norm_backward rms bf16 affine sums=f32
  amax_history reduce=max finite)";

constexpr const char* kLayers = R"(
A file for --layers:
  {"training": [{"name": "qkv", "in_features": 4096, "out_features": 6144, "kind": "rms_norm_linear"},
                {"name": "mlp", "in_features": 4096, "out_features": 14336, "kind": "gated_mlp"}],
   "decoding": [{"name": "qkv", "in_features": 4096, "out_features": 6144}]}
  kind: linear (the default), rms_norm_linear, layer_norm_linear, or an MLP, whose out_features are its hidden
  features: gated_mlp, layer_norm_mlp, rms_norm_gated_mlp. "bias" and, for decoding, "f32_output" are false by default.
  Without "decoding", the layers of kind linear also decode.)";

// "llama2-7b, llama2-70b, ..."
std::string listed(const char* value) {
  std::string text;
  for (const std::string& word : tools::words_for(value)) text += (text.empty() ? "" : ", ") + word;
  return text;
}

void add_info(CLI::App& app, ingot::tools::InfoOptions& options) {
  CLI::App* const command = app.add_subcommand(
      "info", "Device, libraries, kernel store and tuning records; what is missing and how to get it");
  command->add_flag("--json", options.json, "Print JSON");
  command->callback([&] { ingot::tools::info(options); });
}

void add_show(CLI::App& app, ingot::tools::ShowOptions& options) {
  CLI::App* const command =
      app.add_subcommand("show", "Compile a spec and show its source, PTX and resources; needs no GPU");
  command->add_option("spec", options.spec, "The spec's line, in quotes")->type_name("SPEC")->required();
  command->add_option("--target", options.target, "Architecture, such as sm_90a (default: this GPU's, else sm_90a)")
      ->type_name(tools::kTargetValue);
  CLI::Option* const source = command->add_flag("--source", options.source, "Print the generated source only");
  CLI::Option* const ptx = command->add_flag("--ptx", options.ptx, "Print the PTX only")->excludes(source);
  CLI::Option* const sass =
      command->add_flag("--sass", options.sass, "Print the machine code as text only; needs nvdisasm of a CUDA toolkit")
          ->excludes(source)
          ->excludes(ptx);
  command->add_flag("--json", options.json, "Print all of it as JSON")->excludes(source)->excludes(ptx)->excludes(sass);
  command
      ->add_option("--cubin", options.cubin,
                   "Write the machine code to this file (passes other than the main one to FILE.first, FILE.finish, "
                   "FILE.whole, FILE.unaligned, FILE.wide, FILE.pair, FILE.keeping, FILE.kept)")
      ->type_name(tools::kFileValue);
  command->footer(kSpecs);
  command->callback([&] { ingot::tools::show(options); });
}

void add_tune(CLI::App& app, ingot::tools::TuneOptions& options, int& status) {
  CLI::App* const command = app.add_subcommand(
      "tune", "Measure which kernel is the fastest for each GEMM, and keep records that the library then follows");
  command->add_option("--mnk", options.mnk, "A linear layer: tokens,out_features,in_features; repeatable")
      ->type_name("M,N,K");
  command->add_option("--set", options.set, "The layers of a known model: " + listed(tools::kModelValue))
      ->type_name(tools::kModelValue);
  command
      ->add_option("--tokens", options.tokens,
                   "Tokens in a step, for the layers of --set (default: 8192, with --weight-only 16); --mnk has its "
                   "own")
      ->type_name("COUNT");
  command->add_option("--recipe", options.recipe, "Only this recipe's GEMMs: one of " + ingot::recipe_names())
      ->type_name(tools::kRecipeValue);
  command
      ->add_option("--weight-only", options.weight_only,
                   "Instead of the recipes' GEMMs, matmuls with packed weights of this dtype, such as e4m3fn, "
                   "beside the same matmuls in 16 bits")
      ->type_name(tools::kWeightValue);
  command
      ->add_option("--weight-scale", options.weight_scale,
                   "Granularity of those weights' factors: tensor, row, 1x128, 1x64, 1x32, 128x128 or mx (default: "
                   "row for FP8, mx for fewer bits)")
      ->type_name(tools::kScaleValue);
  command
      ->add_option("--activations", options.activations,
                   "Dtype of the activations that those weights are packed for: bf16 or f16 (default: bf16)")
      ->type_name(tools::kActivationValue);
  command
      ->add_option("--manifest", options.manifest,
                   "The matmuls recorded by a run with INGOT_RECORD or INGOT_GEMM_MANIFEST")
      ->type_name(tools::kFileValue);
  command->add_option("--budget", options.budget, "Stop after this time, such as 60s or 5m; the next run goes on")
      ->type_name("TIME");
  command->add_flag("--again", options.again, "Measure again what has a record");
  command->add_flag("--list", options.list, "Print the GEMMs and exit; needs no GPU");
  command->add_flag("--json", options.json, "Print JSON, with --list too");
  command->add_option("--import", options.import_from, "Take records from this file first")
      ->type_name(tools::kFileValue);
  command->add_option("--export", options.export_to, "Write all records to this file at the end")
      ->type_name(tools::kFileValue);
  command->callback([&] { status = ingot::tools::tune(options); });
}

void add_warm(CLI::App& app, ingot::tools::WarmOptions& options, int& status) {
  CLI::App* const command =
      app.add_subcommand("warm", "Compile ahead what a model will ask for, into the store or a bundle; needs no GPU");
  command->add_option("--set", options.sets, "A known model: " + listed(tools::kModelValue) + "; repeatable")
      ->type_name(tools::kModelValue)
      ->delimiter(',');
  command->add_option("--layers", options.layers, "A JSON file with a model's layers; repeatable")
      ->type_name(tools::kFileValue);
  command->add_option("--recording", options.recordings, "What a run with INGOT_RECORD asked for; repeatable")
      ->type_name(tools::kFileValue);
  command->add_option("--gpu", options.gpus, "GPUs by name, such as h200,h100,h20 (default: h200)")
      ->type_name(tools::kGpuValue)
      ->delimiter(',');
  command->add_option("--recipe", options.recipes, "Only these recipes of " + ingot::recipe_names())
      ->type_name(tools::kRecipeValue)
      ->delimiter(',');
  command
      ->add_option("--tokens", options.tokens,
                   "Tokens in a training step: numbers and ranges, such as 4096,8000-8192 (default: 8192), or none")
      ->type_name("COUNTS");
  command
      ->add_option("--weight-only", options.weights,
                   "Formats of weights that decode, such as e4m3fn or e2m1fn:mx (default: e4m3fn)")
      ->type_name(tools::kWeightValue)
      ->delimiter(',');
  command
      ->add_option("--decode", options.decode,
                   "Tokens decoded at once: numbers and ranges, such as 1,16-64 (default: 1-256), or none")
      ->type_name("COUNTS");
  command->add_option("--dtype", options.dtype, "Dtype of activations: bf16 or f16 (default: bf16)")
      ->type_name(tools::kActivationValue);
  command
      ->add_option("--grad-weight", options.grad_weights,
                   "Dtypes of weights' gradients: f32, or that of activations (default: that of activations)")
      ->type_name(tools::kGradientValue)
      ->delimiter(',');
  command->add_flag("--accumulate", options.accumulate, "Gradients are also added to those of the micro-batch before");
  command->add_flag("--weight-lists", options.weight_lists, "Weights are also cast together, as WeightCasts does");
  command->add_option("--tuning", options.tuning, "Tuning records (`ingot tune --export`) whose kernels are made too")
      ->type_name(tools::kFileValue);
  command->add_flag("--candidates", options.candidates, "Also every kernel that `ingot tune` would measure");
  command->add_option("--jobs", options.jobs, "Processes that compile (default: one per core)")
      ->type_name("N")
      ->check(CLI::Range(1, 4096));
  command->add_option("--shard", options.shard, "Only this share of the kernels: 0/4 is the first of four")
      ->type_name("I/N");
  command->add_option("--bundle", options.bundle, "Write all of the kernels and the tuning records to this file")
      ->type_name(tools::kFileValue);
  CLI::Option* const list = command->add_flag("--list", options.list, "Print the kernels and exit; compiles nothing");
  command
      ->add_flag("--check", options.check,
                 "Compile nothing: list what is missing in the store and the tiers, and exit with 1 if anything is "
                 "(always so with INGOT_CACHE_MODE=strict)")
      ->excludes(list);
  command->add_flag("--json", options.json, "Print JSON, with --list too");
  command->footer(kLayers);
  command->callback([&] { status = ingot::tools::warm(options); });
}

void add_bench(CLI::App& app, tools::BenchOptions& options) {
  CLI::App* const command = app.add_subcommand("bench", "Run a benchmark by its name");
  command->require_subcommand(0, 1);
  CLI::Option* const list = command->add_flag("--list", options.list, "Print the benchmarks and exit");
  command->add_flag("--json", options.json, "Print the list as JSON")->needs(list);
  for (const tools::Benchmark& each : tools::benchmarks()) {
    CLI::App* const named = command->add_subcommand(std::string(each.name), std::string(each.description));
    named->prefix_command();
    named->set_help_flag();
  }
  command->callback([&options, command] {
    const auto chosen = command->get_subcommands();
    if (chosen.empty() && !options.list) throw CLI::RequiredError("A benchmark");
    if (!chosen.empty() && options.list) throw CLI::ExcludesError("--list", "the name of a benchmark");
    if (!options.list) {
      options.name = chosen.front()->get_name();
      options.arguments = chosen.front()->remaining();
    }
    tools::bench(options);
  });
}

void add_man(CLI::App& app, const tools::CommandText& tree, tools::ManOptions& options) {
  CLI::App* const command = app.add_subcommand("man", "Print a man page of this program");
  CLI::Option* const name = command->add_option("command", options.command, "The command (default: the program itself)")
                                ->type_name(tools::kCommandValue);
  command->add_option("--folder", options.folder, "Write all pages to this folder")
      ->type_name(tools::kFolderValue)
      ->excludes(name);
  command->callback([&] { tools::man(tree, options); });
}

void add_completion(CLI::App& app, const tools::CommandText& tree, tools::CompletionOptions& options) {
  CLI::App* const command =
      app.add_subcommand("completion", "Print a script that completes command lines, for bash or zsh");
  command->add_option("shell", options.shell, "bash or zsh")->type_name(tools::kShellValue)->required();
  command->callback([&] { tools::completion(tree, options); });
}

// "$UNSET" must not be taken for an option that is not given.
void refuse_empty_names(CLI::App& app) {
  for (CLI::Option* const option : app.get_options()) {
    const std::string type = option->get_type_name();
    if (!type.ends_with(tools::kFileValue) && !type.ends_with(tools::kFolderValue)) continue;
    option->check(
        [](const std::string& name) { return std::string(name.empty() ? "\"\" names nothing; give a name" : ""); });
  }
  for (CLI::App* const command : app.get_subcommands({})) refuse_empty_names(*command);
}

bool has_command(const CLI::App& app, const std::string& name) {
  return !app.get_subcommands([&](const CLI::App* command) { return command->get_name() == name; }).empty();
}

// fputs, as fmt::print() throws where nothing can be written.
int fail(const std::string& message, const std::string& log = {}) {
  std::fputs(fmt::format("ingot: error: {}\n", ingot::without_controls(message)).c_str(), stderr);
  if (!log.empty()) std::fputs(fmt::format("\n{}\n", log).c_str(), stderr);
  return tools::kFailed;
}

int run(int argc, char** argv) {
  CLI::App app{"Ingot: FP8 kernels generated, compiled and cached at run time.", "ingot"};
  app.set_version_flag("--version", "ingot " + ingot::version());
  app.formatter(std::make_shared<tools::HelpFormatter>());
  app.require_subcommand(1);

  int status = 0;
  ingot::tools::InfoOptions info;
  ingot::tools::ShowOptions show;
  ingot::tools::TuneOptions tune;
  ingot::tools::WarmOptions warm;
  tools::BenchOptions bench;
  tools::CommandText tree;  // of all that is registered below
  tools::ManOptions man;
  tools::CompletionOptions completion;
  add_info(app, info);
  add_show(app, show);
  add_tune(app, tune, status);
  add_warm(app, warm, status);
  add_bench(app, bench);
  tools::CacheOptions cache;
  tools::add_cache(app, cache, status);
  add_man(app, tree, man);
  add_completion(app, tree, completion);
  app.set_help_all_flag("--help-all", "Print the help of all commands and exit");  // now: of the program alone
  tree = tools::command_tree(app);
  refuse_empty_names(app);
  tools::add_notes(app);

  if (argc > 1 && argv[1][0] != '-' && !has_command(app, argv[1])) {
    fail(fmt::format("no command \"{}\"; expected {}", argv[1], tools::command_names(app)));
    return tools::kUsage;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    fail(tools::usage_error(app, error));
    return tools::kUsage;
  } catch (const ingot::Error& error) {
    fail(error.what(), error.log());
    return tools::is_usage_error(error) ? tools::kUsage : tools::kFailed;
  } catch (const std::system_error& error) {  // what fmt::print() throws
    return fail("standard output: cannot be written: " + error.code().message());
  } catch (const std::exception& error) {
    return fail(error.what());
  }
  return status;
}

}  // namespace

int main(int argc, char** argv) {
  ingot::reserve_standard_streams();
  const int status = run(argc, argv);
  try {
    ingot::finish_standard_output();
  } catch (const ingot::Error& error) {
    if (status == 0) return fail(error.what());
  }
  return status;
}
