#include "program.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <memory>
#include <string>
#include <system_error>

#include "command_line.h"
#include "commands.h"
#include "ingot/runtime/context/context.h"
#include "ingot/runtime/util/error.h"
#include "ingot/runtime/util/standard_output.h"
#include "ingot/runtime/util/text.h"
#include "usage_error.h"

namespace ingot::tools {
namespace {

constexpr const char* kProgramNotes = R"(
A spec is one line that names a kernel: on this command line, in code, in logs and in messages. Results go to stdout,
progress and errors to stderr.

Examples:
  ingot info
      the device, libraries and store, and what is missing
  ingot show "cast bf16->e4m3fn scale=row out=codes"
      the kernel of a spec
  ingot warm --set llama3-8b
      compile ahead what a model needs

Environment variables (docs/environment.md): INGOT_CACHE_DIR, INGOT_CACHE_MAX_BYTES, INGOT_CACHE_TIERS,
INGOT_CACHE_MODE, INGOT_DEVICE, INGOT_CUDA_ROOT, INGOT_TEMPLATES, INGOT_CPU_THREADS, INGOT_TUNING, INGOT_TUNING_FILE,
INGOT_WARM, INGOT_CHECK_MEMORY, INGOT_CHECK_EXPERTS, INGOT_LOG, INGOT_STATS, INGOT_RECORD.
The store is $INGOT_CACHE_DIR, else $XDG_CACHE_HOME/ingot, else ~/.cache/ingot. It may be deleted at any time.

Exit codes:
  0    all went well
  1    an error, described in one line on stderr
  2    the command line is wrong
  130  tune, warm or cache was interrupted)";

bool has_command(const CLI::App& app, const std::string& name) {
  return !app.get_subcommands([&](const CLI::App* command) { return command->get_name() == name; }).empty();
}

// fputs, as fmt::print() throws where nothing can be written.
int fail(const std::string& message, const std::string& log = {}) {
  std::fputs(fmt::format("ingot: error: {}\n", without_controls(message)).c_str(), stderr);
  if (!log.empty()) std::fputs(fmt::format("\n{}\n", log).c_str(), stderr);
  return kFailed;
}

int run_command(int argc, char** argv) {
  CLI::App app{"Ingot: FP8 kernels generated, compiled and cached at run time.", "ingot"};
  app.set_version_flag("--version", "ingot " + version());
  app.formatter(std::make_shared<HelpFormatter>());
  app.require_subcommand(1);

  int status = 0;
  add_info(app);
  add_show(app);
  add_tune(app, status);
  add_warm(app, status);
  add_plan(app);
  add_bench(app);
  add_cache(app, status);
  app.set_help_all_flag("--help-all", "Print the help of all commands and exit");  // now: of the program alone
  app.footer(kProgramNotes);
  refuse_empty_names(app);

  if (argc > 1 && argv[1][0] != '-' && !has_command(app, argv[1])) {
    fail(fmt::format("no command \"{}\"; expected {}", argv[1], command_names(app)));
    return kUsage;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    fail(usage_error(app, error));
    return kUsage;
  } catch (const Error& error) {
    fail(error.what(), error.log());
    return is_usage_error(error) ? kUsage : kFailed;
  } catch (const std::system_error& error) {  // what fmt::print() throws
    return fail("standard output: cannot be written: " + error.code().message());
  } catch (const std::exception& error) {
    return fail(error.what());
  }
  return status;
}

}  // namespace

int run_program(int argc, char** argv) {
  const int status = run_command(argc, argv);
  try {
    finish_standard_output();
  } catch (const Error& error) {
    if (status == 0) return fail(error.what());
  }
  return status;
}

}  // namespace ingot::tools
