#include "documents.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <system_error>

#include "completion.h"
#include "ingot/runtime/context.h"
#include "ingot/runtime/error.h"
#include "ingot/runtime/util/write_file.h"
#include "manual.h"
#include "usage_error.h"

namespace ingot::tools {
namespace {

const CommandText& command_named(const CommandText& program, const std::string& name) {
  if (name.empty() || name == program.name) return program;
  const auto found = std::ranges::find(program.commands, name, &CommandText::name);
  if (found != program.commands.end()) return *found;
  std::string names = program.name;
  for (const CommandText& each : program.commands) names += ", " + each.name;
  throw UsageError("ingot man", fmt::format("\"{}\" must be one of {}", name, names));
}

void write_page(const CommandText& program, const CommandText& command, const std::filesystem::path& folder) {
  write_file(folder / (page_name(program, command) + ".1"), {manual_page(program, command, version())});
}

}  // namespace

void man(const CommandText& program, const ManOptions& options) {
  if (options.folder.empty()) {
    const CommandText& command = command_named(program, options.command);
    fmt::print("{}", manual_page(program, command, version()));
    if (isatty(STDOUT_FILENO) == 1) {
      const std::string name = &command == &program ? "" : " " + command.name;
      fmt::print(stderr, "ingot: note: this is the page's source; to read it: ingot man{} | man -l -\n", name);
    }
    return;
  }
  std::error_code error;
  std::filesystem::create_directories(options.folder, error);
  if (error) throw Error(ErrorCode::io_failed, options.folder.string(), "cannot be made: " + error.message());
  write_page(program, program, options.folder);
  for (const CommandText& command : program.commands) write_page(program, command, options.folder);
}

void completion(const CommandText& program, const CompletionOptions& options) {
  if (options.shell != "bash" && options.shell != "zsh") {
    throw UsageError("ingot completion", fmt::format("\"{}\" must be bash or zsh", options.shell));
  }
  fmt::print("{}", options.shell == "bash" ? bash_completion(program) : zsh_completion(program));
}

}  // namespace ingot::tools
