// What is said of a command beside its options: in --help and in its man page examples and exit codes; in the page
// alone what it is for, and the environment variables and files that matter to it.
#pragma once

#include <span>
#include <string_view>
#include <vector>

namespace CLI {
class App;
}

namespace ingot::tools {

// A word and what it means: an environment variable, a file, an exit code, a command to type.
struct NotedTerm {
  std::string_view term;
  std::string_view meaning;
};

struct CommandNotes {
  std::vector<std::string_view> about{};  // paragraphs
  std::vector<NotedTerm> examples{};
  std::vector<NotedTerm> exit_codes{};
  std::vector<NotedTerm> environment{};
  std::vector<NotedTerm> files{};
};

// `path`: "warm", "cache list", or "ingot" for the program. A command that has no notes of its own has the common exit
// codes.
CommandNotes notes_of(std::string_view path);

// Every environment variable that the library reads, in the order of docs/environment.md.
std::span<const NotedTerm> environment_variables();

// Has a command said so itself?
bool tells_exit_codes(std::string_view footer);

// Appends examples and exit codes to the help of every command, but no exit codes where a command has told them itself.
// To be called when all are registered.
void add_notes(CLI::App& program);

}  // namespace ingot::tools
