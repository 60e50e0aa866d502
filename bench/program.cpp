#include "program.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <exception>

#include "ingot/runtime/cuda/driver.h"
#include "ingot/runtime/util/error.h"
#include "ingot/runtime/util/standard_output.h"
#include "ingot/runtime/util/write_file.h"

namespace ingot::bench {

int run_program(CLI::App& app, int argc, char** argv, const std::function<int()>& run) {
  reserve_standard_streams();
  try {
    int status = 0;
    try {
      app.parse(argc, argv);
      status = run();
    } catch (const CLI::ParseError& error) {
      status = app.exit(error) == 0 ? 0 : kUsage;
    }
    finish_standard_output();
    return status;
  } catch (const Error& error) {
    fmt::print(stderr, "{}: error: {}\n", app.get_name(), error.what());
    if (!error.log().empty()) fmt::print(stderr, "\n{}\n", error.log());
    return kFailed;
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}: error: {}\n", app.get_name(), error.what());
    return kFailed;
  }
}

void add_options(CLI::App& app, ResultOptions& options) {
  app.add_option("--json", options.json, "Write all figures to this file");
  app.add_option("--commit", options.commit, "The commit that was measured (default: git's for the current folder)");
}

void add_options(CLI::App& app, CaseOptions& options) {
  app.add_flag("--list", options.list, "Print the cases and exit; needs no GPU");
  app.add_option("--filter", options.filters, "Only cases with this text in their name; any of several")
      ->allow_extra_args(false);
  app.add_flag("--quick", options.quick, "Fewer and shorter rounds: does it run, not how fast");
  add_options(app, static_cast<ResultOptions&>(options));
}

bool is_chosen(const std::string& name, const std::vector<std::string>& filters) {
  return filters.empty() ||
         std::ranges::any_of(filters, [&](const std::string& text) { return name.find(text) != std::string::npos; });
}

std::optional<ContextOptions> cuda_options() {
  std::string problem;
  if (Driver::open(problem) == nullptr) {
    fmt::print("skipped: no CUDA device ({})\n", problem);
    return std::nullopt;
  }
  ContextOptions options = ContextOptions::from_environment();
  options.where = ContextOptions::Where::cuda;
  return options;
}

nlohmann::ordered_json header(const std::string& benchmark, const Machine& m) {
  return {{"benchmark", benchmark}, {"date", m.date},          {"device", m.device},     {"target", m.target},
          {"driver", m.driver},     {"nvrtc", m.nvrtc},        {"cublaslt", m.cublaslt}, {"ingot", m.ingot},
          {"commit", m.commit},     {"processor", m.processor}};
}

namespace {

constexpr std::size_t kWidth = 120;   // characters of a line that is not a case
constexpr std::size_t kCase = 2'000;  // characters of a case; a longer one gets a line for each of its parts

void add_lines(std::string& text, const std::string& before, const nlohmann::ordered_json& value,
               const std::string& after, std::size_t depth) {
  const std::string indent(depth, ' ');
  const std::string line = indent + before + value.dump() + after;
  const bool plain =
      std::ranges::none_of(value, [](const nlohmann::ordered_json& each) { return each.is_structured(); });
  const bool whole = (plain && depth > 1) || line.size() <= (depth == 1 ? kWidth : kCase);
  if (depth > 0 && (!value.is_structured() || value.empty() || whole)) {
    text += line + '\n';
    return;
  }
  text += indent + before + (value.is_object() ? "{\n" : "[\n");
  std::size_t left = value.size();
  for (const auto& [name, each] : value.items()) {
    const std::string label = value.is_object() ? nlohmann::ordered_json(name).dump() + ": " : "";
    add_lines(text, label, each, --left > 0 ? "," : "", depth + 1);
  }
  text += indent + (value.is_object() ? '}' : ']') + after + '\n';
}

}  // namespace

std::string results_text(const nlohmann::ordered_json& json) {
  std::string text;
  add_lines(text, "", json, "", 0);
  return text;
}

void write_json(const std::string& path, const nlohmann::ordered_json& json) { write_file(path, {results_text(json)}); }

}  // namespace ingot::bench
