#include "program.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <fstream>

#include "ingot/runtime/cuda/driver.h"
#include "ingot/runtime/error.h"

namespace ingot::bench {

int run_program(CLI::App& app, int argc, char** argv, const std::function<int()>& run) {
  try {
    app.parse(argc, argv);
    return run();
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kUsage;
  } catch (const Error& error) {
    fmt::print(stderr, "{}: error: {}\n", app.get_name(), error.what());
    if (!error.log().empty()) fmt::print(stderr, "\n{}\n", error.log());
    return kFailed;
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}: error: {}\n", app.get_name(), error.what());
    return kFailed;
  }
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

void write_json(const std::string& path, const nlohmann::ordered_json& json) {
  std::ofstream file(path);
  file << json.dump(1) << '\n';
  file.close();
  if (!file) throw Error(ErrorCode::io_failed, path, "cannot be written; check that its folder exists and has room");
}

}  // namespace ingot::bench
