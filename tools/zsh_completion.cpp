// The script has a function for each command, which tells zsh's _arguments its options and what comes after them.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "completion.h"

namespace ingot::tools {
namespace {

// Within single quotes, with a backslash before each of `special`.
std::string escape(std::string_view text, std::string_view special) {
  std::string escaped;
  for (const char letter : text) {
    if (special.find(letter) != std::string_view::npos) escaped += '\\';
    escaped += letter == '\'' ? "'\\''" : std::string(1, letter);
  }
  return escaped;
}

std::string function_name(const CommandText& command) {
  std::string name = "_" + command.path;
  std::ranges::replace(name, ' ', '_');
  return name;
}

// What completes a value: an action of _arguments.
std::string action_of(const OptionText& option) {
  const std::string words = fmt::format("{}", fmt::join(option.words, " "));
  switch (option.kind) {
    case ValueKind::none: return "";
    case ValueKind::any: return " ";
    case ValueKind::file: return "_files";
    case ValueKind::folder: return "_files -/";
    case ValueKind::words:
      return option.list ? fmt::format("_values -s , {} {}", option.value, words) : "(" + words + ")";
  }
  return "";
}

std::string arguments_of(const OptionText& option) {
  const std::string value =
      option.kind == ValueKind::none ? "" : fmt::format(":{}:{}", option.value, action_of(option));
  if (option.positional) return fmt::format("    '{}{}'", option.repeatable ? "*" : "", value);
  std::string text;
  for (const std::string& name : option.names) {
    text += fmt::format("{}    '{}{}{}[{}]{}'", text.empty() ? "" : " \\\n", option.repeatable ? "*" : "", name,
                        value.empty() || !name.starts_with("--") ? "" : "=", escape(option.description, "[]\\"), value);
  }
  return text;
}

std::string function_of(const CommandText& command) {
  std::string text = function_name(command) + "() {\n";
  if (command.passes_on) return text + "  _files\n}\n";
  std::vector<std::string> arguments;
  for (const OptionText& option : command.options) arguments.push_back(arguments_of(option));
  if (command.commands.empty()) {
    return text + fmt::format("  _arguments \\\n{}\n}}\n", fmt::join(arguments, " \\\n"));
  }
  arguments.emplace_back("    '(-): :->command'");
  arguments.emplace_back("    '*:: :->rest'");
  text += fmt::format("  local curcontext=$curcontext context state state_descr line\n  typeset -A opt_args\n");
  text += fmt::format("  _arguments -C \\\n{} && return\n", fmt::join(arguments, " \\\n"));
  text += "  case $state in\n    command)\n      local -a commands=(\n";
  for (const CommandText& each : command.commands) {
    text += fmt::format("        '{}:{}'\n", each.name, escape(each.description, ":\\"));
  }
  text += "      )\n      _describe -t commands command commands\n      ;;\n    rest)\n      case $line[1] in\n";
  for (const CommandText& each : command.commands) {
    text += fmt::format("        {}) {} ;;\n", each.name, function_name(each));
  }
  return text + "      esac\n      ;;\n  esac\n}\n";
}

std::string functions_of(const CommandText& command) {
  std::string text = function_of(command);
  for (const CommandText& nested : command.commands) text += fmt::format("\n{}", functions_of(nested));
  return text;
}

}  // namespace

std::string zsh_completion(const CommandText& program) {
  // Loaded by compinit the file is the body of the function, and is called at once; `eval`ed it only registers it.
  return "#compdef ingot\n# zsh completion of ingot, printed by `ingot completion zsh`\n\n" + functions_of(program) +
         "\nif [[ $funcstack[1] == _ingot ]]; then\n  _ingot \"$@\"\nelse\n  compdef _ingot ingot\nfi\n";
}

}  // namespace ingot::tools
