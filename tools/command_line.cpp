#include "command_line.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "ingot/nn/planning/known_models.h"
#include "usage_error.h"

namespace ingot::tools {
namespace {

// CLI11's sentence without its capital and in one line.
std::string sentence(std::string_view text) {
  std::string line(text);
  std::ranges::replace(line, '\n', ' ');
  if (line.starts_with("The ")) line.front() = 't';
  return line;
}

// Does all that follows the command go to another program?
bool passes_on(const CLI::App& command) {
  return command.get_prefix_command() && command.get_subcommands([](const CLI::App*) { return true; }).empty();
}

}  // namespace

std::string model_names() {
  std::string names;
  for (const KnownModel& model : known_models()) names += fmt::format("{}{}", names.empty() ? "" : ", ", model.name);
  return names;
}

void refuse_empty_names(CLI::App& app) {
  for (CLI::Option* const option : app.get_options()) {
    if (option->get_type_name() != kFileValue) continue;
    option->check(
        [](const std::string& name) { return std::string(name.empty() ? "\"\" names nothing; give a name" : ""); });
  }
  for (CLI::App* const command : app.get_subcommands({})) refuse_empty_names(*command);
}

std::string command_names(const CLI::App& app) {
  const auto commands = app.get_subcommands([](const CLI::App* command) { return !command->get_group().empty(); });
  std::string names;
  for (const CLI::App* command : commands) {
    if (!names.empty()) names += command == commands.back() ? " or " : ", ";
    names += command->get_name();
  }
  return names;
}

bool is_usage_error(const Error& error) {
  return dynamic_cast<const UsageError*>(&error) != nullptr ||
         (error.code() == ErrorCode::invalid_argument && error.subject().starts_with("--"));
}

std::string usage_error(const CLI::App& program, const CLI::ParseError& error) {
  const CLI::App* app = &program;
  std::string path;  // "cache list"
  while (!app->get_subcommands().empty() && !passes_on(*app->get_subcommands().front())) {
    app = app->get_subcommands().front();
    path += (path.empty() ? "" : " ") + app->get_name();
  }
  const std::string names = command_names(*app);
  const std::string help = fmt::format("; see `{}{}{} --help`", program.get_name(), path.empty() ? "" : " ", path);
  const std::vector<std::string> left = app->remaining();
  const bool unknown_command = !names.empty() && !left.empty() && !left.front().starts_with('-');
  if (unknown_command) {
    return fmt::format("no command \"{}{}{}\"; expected {}", path, path.empty() ? "" : " ", left.front(), names);
  }
  const bool no_command = !names.empty() && dynamic_cast<const CLI::RequiredError*>(&error) != nullptr;
  std::string text = no_command ? "a command is missing: " + names : sentence(error.what());
  if (!left.empty()) {  // in their order, which CLI11's sentence reverses
    text = fmt::format("the following argument{} not expected: {}", left.size() == 1 ? " was" : "s were",
                       fmt::join(left, " "));
    if (path == "plan" && left.front().starts_with("--set")) {
      text += "; a model is named by its config.json: --config config.json";
    }
    // The shell takes the spec's words apart, and the > of its arrow for itself.
    if (path == "show" && !left.front().starts_with('-')) text += "; a spec is one argument: put it in quotes";
  }
  return (path.empty() ? "" : fmt::format("{} {}: ", program.get_name(), path)) + text + help;
}

}  // namespace ingot::tools
