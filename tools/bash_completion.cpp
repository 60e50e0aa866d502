// The script has two tables, of each command's words and of each option's values, and one function that reads them.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string>
#include <vector>

#include "completion.h"

namespace ingot::tools {
namespace {

constexpr const char* kFunction = R"bash(
_ingot() {
  local cur=${COMP_WORDS[COMP_CWORD]} command=ingot option= values prefix= word i
  [[ $cur == = ]] && cur=  # "--set=x" is three words to bash
  for ((i = 1; i < COMP_CWORD; i++)); do
    word=${COMP_WORDS[i]}
    if [[ $word == = ]]; then
      continue
    elif [[ -n $option ]]; then
      option=  # this word is its value
    elif [[ $word == -* ]]; then
      [[ -n $(_ingot_values "$command $word") ]] && option=$word
    elif [[ -n $(_ingot_options "$command $word") ]]; then
      command+=" $word"
    fi
  done

  values=$(_ingot_values "$command $option")
  if [[ -z $option && ($cur == -* || -z $values) ]]; then
    values="words $(_ingot_commands "$command") $(_ingot_options "$command")"
  fi
  COMPREPLY=()
  case $values in
    words\ *)
      mapfile -t COMPREPLY < <(compgen -W "${values#* }" -- "$cur")
      ;;
    list\ *)
      compopt -o nospace 2>/dev/null
      [[ $cur == *,* ]] && prefix=${cur%,*},
      mapfile -t COMPREPLY < <(compgen -P "$prefix" -W "${values#* }" -- "${cur#"$prefix"}")
      ;;
    folder)
      compopt -o filenames 2>/dev/null
      mapfile -t COMPREPLY < <(compgen -d -- "$cur")
      ;;
    file)
      compopt -o filenames 2>/dev/null
      mapfile -t COMPREPLY < <(compgen -f -- "$cur")
      ;;
  esac
}
complete -F _ingot ingot
)bash";

std::string joined(const std::vector<std::string>& words) { return fmt::format("{}", fmt::join(words, " ")); }

// Empty: there is nothing to complete.
std::string values_of(const OptionText& option) {
  switch (option.kind) {
    case ValueKind::none: return "";
    case ValueKind::any: return option.positional ? "" : "nothing";
    case ValueKind::file: return "file";
    case ValueKind::folder: return "folder";
    case ValueKind::words: return (option.list ? "list " : "words ") + joined(option.words);
  }
  return "";
}

// Calls `visit` for the command and all that are nested in it.
template <class Visit>
void for_each(const CommandText& command, const Visit& visit) {
  visit(command);
  for (const CommandText& nested : command.commands) for_each(nested, visit);
}

// A shell function that answers with the text of its first argument's case. `cases`: "    pattern) text".
std::string table(const char* name, const std::string& cases) {
  return fmt::format("{}() {{\n  case $1 in\n{}  esac\n}}\n", name, cases);
}

std::string one_case(const std::string& pattern, const std::string& text) {
  return fmt::format("    '{}') echo '{}' ;;\n", pattern, text);
}

}  // namespace

std::string bash_completion(const CommandText& program) {
  std::string options;
  std::string commands;
  std::string values;
  for_each(program, [&](const CommandText& command) {
    std::vector<std::string> names;
    for (const OptionText& option : command.options) {
      if (!option.positional) names.insert(names.end(), option.names.begin(), option.names.end());
      const std::string of_option = values_of(option);
      if (of_option.empty()) continue;
      for (const std::string& name : option.names) {
        values += one_case(command.path + " " + (option.positional ? "" : name), of_option);
      }
    }
    if (command.passes_on) {  // the other program has help, and may take files
      names = {"--help"};
      values += one_case(command.path + " ", "file");
    }
    options += one_case(command.path, joined(names));
    std::vector<std::string> nested;
    for (const CommandText& each : command.commands) nested.push_back(each.name);
    if (!nested.empty()) commands += one_case(command.path, joined(nested));
  });
  return "# bash completion of ingot, printed by `ingot completion bash`\n" + table("_ingot_options", options) +
         table("_ingot_commands", commands) + table("_ingot_values", values) + kFunction;
}

}  // namespace ingot::tools
