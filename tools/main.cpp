// The program `ingot`: reads the command line and runs the command.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <string>
#include <system_error>

#include "commands.h"
#include "ingot/nn/recipes.h"
#include "ingot/runtime/context.h"
#include "ingot/runtime/error.h"
#include "ingot/runtime/util/standard_output.h"

namespace {

constexpr int kFailed = 1;
constexpr int kUsage = 2;

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
  dequant_matmul bf16*e4m3fn->bf16 packed scale=row bias epilogue="silu(x) * gate"
  dequant_matmul f16*e2m1fn->f16 packed scale=1x32 factors=e8m0fnu batch_invariant
  dequant_matmul bf16*e4m3fn->bf16 packed scale=1x128 kernel=sm90
  dequant_matmul bf16*e4m3fn->bf16 row_major scale=row kernel=mma
  dequant_matmul f16*e4m3fn->f16 packed_f16 scale=row
  pack_weight e4m3fn packed_f16
  quantize_mx bf16->e2m1fn
  float_quantize bf16 e4m3
  column_sum bf16->f32
  cast_stats bf16->e4m3fn scale=1x128 transposed
  norm rms bf16->e4m3fn affine scale=row out=codes,stats
  norm_backward rms bf16 affine sums=f32
  amax_history reduce=max)";

void add_info(CLI::App& app, ingot::tools::InfoOptions& options) {
  CLI::App* const command = app.add_subcommand(
      "info", "Device, libraries, kernel store and tuning records; what is missing and how to get it");
  command->add_flag("--json", options.json, "Print JSON");
  command->callback([&] { ingot::tools::info(options); });
}

void add_show(CLI::App& app, ingot::tools::ShowOptions& options) {
  CLI::App* const command =
      app.add_subcommand("show", "Compile a spec and show its source, PTX and resources; needs no GPU");
  command->add_option("spec", options.spec, "The spec's line, in quotes")->required();
  command->add_option("--target", options.target, "Architecture, such as sm_90a (default: this GPU's, else sm_90a)");
  CLI::Option* const source = command->add_flag("--source", options.source, "Print the generated source only");
  CLI::Option* const ptx = command->add_flag("--ptx", options.ptx, "Print the PTX only")->excludes(source);
  CLI::Option* const sass =
      command->add_flag("--sass", options.sass, "Print the machine code as text only; needs nvdisasm of a CUDA toolkit")
          ->excludes(source)
          ->excludes(ptx);
  command->add_flag("--json", options.json, "Print all of it as JSON")->excludes(source)->excludes(ptx)->excludes(sass);
  command->add_option("--cubin", options.cubin,
                      "Write the machine code to this file (passes other than the main one to FILE.first, FILE.finish, "
                      "FILE.whole)");
  command->footer(kSpecs);
  command->callback([&] { ingot::tools::show(options); });
}

void add_tune(CLI::App& app, ingot::tools::TuneOptions& options, int& status) {
  CLI::App* const command = app.add_subcommand(
      "tune", "Measure which kernel is the fastest for each GEMM, and keep records that the library then follows");
  command->add_option("--mnk", options.mnk, "A linear layer: tokens,out_features,in_features; repeatable");
  command->add_option("--set", options.set, "The layers of llama2-7b, llama2-70b, llama3-8b or llama3-70b");
  command->add_option("--tokens", options.tokens,
                      "Tokens in a step, for the layers of --set (default: 8192, with --weight-only 16); --mnk has its "
                      "own");
  command->add_option("--recipe", options.recipe, "Only this recipe's GEMMs: one of " + ingot::recipe_names());
  command->add_option("--weight-only", options.weight_only,
                      "Instead of the recipes' GEMMs, matmuls with packed weights of this dtype, such as e4m3fn, "
                      "beside the same matmuls in 16 bits");
  command->add_option("--weight-scale", options.weight_scale,
                      "Granularity of those weights' factors: tensor, row, 1x128, 1x64, 1x32, 128x128 or mx (default: "
                      "row for FP8, mx for fewer bits)");
  command->add_option("--activations", options.activations,
                      "Dtype of the activations that those weights are packed for: bf16 or f16 (default: bf16)");
  command->add_option("--manifest", options.manifest, "The GEMMs recorded by a run with INGOT_GEMM_MANIFEST");
  command->add_option("--budget", options.budget, "Stop after this time, such as 60s or 5m; the next run goes on");
  command->add_flag("--again", options.again, "Measure again what has a record");
  command->add_flag("--list", options.list, "Print the GEMMs and exit; needs no GPU");
  command->add_flag("--json", options.json, "Print JSON, with --list too");
  command->add_option("--import", options.import_from, "Take records from this file first");
  command->add_option("--export", options.export_to, "Write all records to this file at the end");
  command->callback([&] { status = ingot::tools::tune(options); });
}

void add_warm(CLI::App& app, ingot::tools::WarmOptions& options, int& status) {
  CLI::App* const command =
      app.add_subcommand("warm", "Compile ahead what a model will ask for, into the store or a bundle; needs no GPU");
  command->add_option("--set", options.sets,
                      "A known model: llama2-7b, llama2-70b, llama3-8b or llama3-70b; repeatable");
  command->add_option("--layers", options.layers, "A JSON file with a model's layers; repeatable");
  command->add_option("--recording", options.recordings, "What a run with INGOT_RECORD asked for; repeatable");
  command->add_option("--gpu", options.gpus, "GPUs by name, such as h200,h100,h20 (default: h200)")->delimiter(',');
  command->add_option("--recipe", options.recipes, "Only these recipes of " + ingot::recipe_names())->delimiter(',');
  command->add_option("--tokens", options.tokens,
                      "Tokens in a training step: numbers and ranges, such as 4096,8192 (default: 8192), or none");
  command
      ->add_option("--weight-only", options.weights,
                   "Formats of weights that decode, such as e4m3fn or e2m1fn:mx (default: e4m3fn)")
      ->delimiter(',');
  command->add_option("--decode", options.decode,
                      "Tokens decoded at once: numbers and ranges, of which the powers of two are taken (default: "
                      "1-256), or none");
  command->add_option("--dtype", options.dtype, "Dtype of activations: bf16 or f16 (default: bf16)");
  command
      ->add_option("--grad-weight", options.grad_weights,
                   "Dtypes of weights' gradients: f32, or that of activations (default: that of activations)")
      ->delimiter(',');
  command->add_flag("--accumulate", options.accumulate, "Gradients are also added to those of the micro-batch before");
  command->add_option("--tuning", options.tuning, "Tuning records (`ingot tune --export`) whose kernels are made too");
  command->add_flag("--candidates", options.candidates, "Also every kernel that `ingot tune` would measure");
  command->add_option("--jobs", options.jobs, "Processes that compile (default: one per core)")
      ->check(CLI::Range(1, 4096));
  command->add_option("--shard", options.shard, "Only this share of the kernels: 0/4 is the first of four");
  command->add_option("--bundle", options.bundle, "Write all of the kernels and the tuning records to this file");
  command->add_flag("--list", options.list, "Print the kernels and exit; compiles nothing");
  command->add_flag("--json", options.json, "Print JSON, with --list too");
  command->footer("Exit code: 0, 1 if a kernel failed, 2 for a wrong command line, 130 if it was stopped (Ctrl-C).");
  command->callback([&] { status = ingot::tools::warm(options); });
}

bool has_command(const CLI::App& app, const std::string& name) {
  return !app.get_subcommands([&](const CLI::App* command) { return command->get_name() == name; }).empty();
}

// "info, show, tune or warm"
std::string command_names(const CLI::App& app) {
  const auto commands = app.get_subcommands({});
  std::string names;
  for (const CLI::App* command : commands) {
    if (!names.empty()) names += command == commands.back() ? " or " : ", ";
    names += command->get_name();
  }
  return names;
}

// fputs, as fmt::print() throws where nothing can be written.
int fail(const std::string& message, const std::string& log = {}) {
  std::fputs(fmt::format("ingot: error: {}\n", message).c_str(), stderr);
  if (!log.empty()) std::fputs(fmt::format("\n{}\n", log).c_str(), stderr);
  return kFailed;
}

int run(int argc, char** argv) {
  CLI::App app{"Ingot: FP8 kernels generated, compiled and cached at run time.", "ingot"};
  app.set_version_flag("--version", "ingot " + ingot::version());
  app.require_subcommand(1);

  int status = 0;
  ingot::tools::InfoOptions info;
  ingot::tools::ShowOptions show;
  ingot::tools::TuneOptions tune;
  ingot::tools::WarmOptions warm;
  add_info(app, info);
  add_show(app, show);
  add_tune(app, tune, status);
  add_warm(app, warm, status);

  if (argc > 1 && argv[1][0] != '-' && !has_command(app, argv[1])) {
    fail(fmt::format("no command \"{}\"; expected {}", argv[1], command_names(app)));
    return kUsage;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kUsage;
  } catch (const ingot::Error& error) {
    return fail(error.what(), error.log());
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
