// What the program registers with CLI11, as plain values: man pages and completions are written from it, so that they
// name every option.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace ingot::tools {

// What a shell completes the value of an option with.
enum class ValueKind { none, any, words, file, folder };

struct OptionText {
  std::vector<std::string> names;  // "-h", "--help"; of a positional "spec"
  std::string description;         // one sentence, or more
  std::string value{};             // "MODEL"; empty: it takes none
  ValueKind kind = ValueKind::none;
  std::vector<std::string> words{};  // of ValueKind::words
  bool positional = false;
  bool required = false;
  bool repeatable = false;
  bool list = false;  // several values in one word, with commas between them
};

struct CommandText {
  std::string name;  // "warm"
  std::string path;  // as it is typed: "ingot warm"
  std::string description;
  std::string footer;                 // what it says itself, without notes
  std::vector<OptionText> options;    // positionals too; those that are hidden are left out
  std::vector<CommandText> commands;  // likewise
  bool passes_on = false;             // the rest of the command line goes to another program
};

// Does all that follows the command go to another program?
bool passes_on(const CLI::App& command);

// To be called when all is registered, and before add_notes().
CommandText command_tree(const CLI::App& program);

// The page of a command: "ingot", "ingot-warm".
std::string page_name(const CommandText& program, const CommandText& command);

}  // namespace ingot::tools
