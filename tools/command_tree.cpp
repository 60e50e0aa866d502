#include "command_tree.h"

#include <CLI/CLI.hpp>

#include "option_values.h"

namespace ingot::tools {
namespace {

std::vector<std::string> names_of(const CLI::Option& option) {
  if (option.get_positional()) return {option.get_name(true)};
  std::vector<std::string> names;
  for (const std::string& name : option.get_snames()) names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) names.push_back("--" + name);
  return names;
}

OptionText option_text(const CLI::Option& option, const std::vector<std::string>& commands) {
  OptionText text{.names = names_of(option), .description = option.get_description()};
  text.positional = option.get_positional();
  text.required = option.get_required();
  if (option.get_items_expected_max() == 0) return text;
  // "N" of "N:INT in [1 - 4096]", where CLI11 adds what it checks.
  text.value = option.get_type_name().substr(0, option.get_type_name().find(':'));
  text.repeatable = option.get_items_expected_max() > 1;
  text.list = option.get_delimiter() != '\0';
  text.words = text.value == kCommandValue ? commands : words_for(text.value);
  text.kind = text.words.empty() ? kind_of(text.value) : ValueKind::words;
  return text;
}

bool is_shown(const CLI::App* command) { return !command->get_name().empty() && !command->get_group().empty(); }

CommandText read(const CLI::App& app, const std::string& before, const std::vector<std::string>& commands) {
  CommandText text{.name = app.get_name(),
                   .path = before.empty() ? app.get_name() : before + " " + app.get_name(),
                   .description = app.get_description(),
                   .footer = app.get_footer(),
                   .options = {},
                   .commands = {}};
  text.passes_on = passes_on(app);
  for (const CLI::Option* option : app.get_options()) {
    if (!option->get_group().empty()) text.options.push_back(option_text(*option, commands));
  }
  for (const CLI::App* command : app.get_subcommands(is_shown)) {
    text.commands.push_back(read(*command, text.path, commands));
  }
  return text;
}

}  // namespace

bool passes_on(const CLI::App& command) {
  return command.get_prefix_command() && command.get_subcommands([](const CLI::App*) { return true; }).empty();
}

CommandText command_tree(const CLI::App& program) {
  std::vector<std::string> commands{program.get_name()};  // it has a page, too
  for (const CLI::App* command : program.get_subcommands(is_shown)) commands.push_back(command->get_name());
  return read(program, "", commands);
}

std::string page_name(const CommandText& program, const CommandText& command) {
  return &program == &command ? program.name : program.name + "-" + command.name;
}

}  // namespace ingot::tools
