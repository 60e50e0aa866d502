#include "program.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <exception>

#include "ingot/runtime/cuda/driver.h"
#include "ingot/runtime/error.h"
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

void write_json(const std::string& path, const nlohmann::ordered_json& json) { write_file(path, {json.dump(1), "\n"}); }

}  // namespace ingot::bench
