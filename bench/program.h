// What the benchmark programs have in common: their exit codes, how they end, and where their figures go.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "ingot/runtime/context.h"
#include "machine.h"

namespace CLI {
class App;
}

namespace ingot::bench {

inline constexpr int kFailed = 1;
inline constexpr int kUsage = 2;
inline constexpr int kSkipped = 77;

// Parses the arguments into what `app` was given, and runs: main()'s result. Errors go to stderr under the app's name.
int run_program(CLI::App& app, int argc, char** argv, const std::function<int()>& run);

// The CUDA device's options; none, and a line that says why the program is skipped, where there is no device.
std::optional<ContextOptions> cuda_options();

// What every file of figures begins with: what was measured, and with what.
nlohmann::ordered_json header(const std::string& benchmark, const Machine& machine);

// Throws Error{io_failed}.
void write_json(const std::string& path, const nlohmann::ordered_json& json);

}  // namespace ingot::bench
