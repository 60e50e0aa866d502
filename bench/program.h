// Shared by the benchmark programs: exit codes, error handling, and how they write their figures.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "ingot/runtime/context/context.h"
#include "ingot/runtime/util/error.h"
#include "machine.h"

namespace CLI {
class App;
}

namespace ingot::bench {

inline constexpr int kFailed = 1;
inline constexpr int kUsage = 2;
inline constexpr int kSkipped = 77;

// Parses the arguments into `app`, calls `run`, and returns main()'s result. Prints errors to stderr under the app's
// name.
int run_program(CLI::App& app, int argc, char** argv, const std::function<int()>& run);

// Where a benchmark's figures go.
struct ResultOptions {
  std::string json{};
  std::string commit{};
};

// What a benchmark of many cases is told.
struct CaseOptions : ResultOptions {
  bool list = false;
  bool quick = false;
  std::vector<std::string> filters{};
};

// --json and --commit; of a benchmark of cases --list, --filter and --quick too.
void add_options(CLI::App& app, ResultOptions& options);
void add_options(CLI::App& app, CaseOptions& options);

// Does the name of a case have one of these texts? Without filters, every case is chosen.
bool is_chosen(const std::string& name, const std::vector<std::string>& filters);

// Leaves the chosen cases. name_of gives a case's name. Throws Error{invalid_argument} if none is left.
template <class Case, class NameOf>
void keep_chosen(std::vector<Case>& cases, const std::vector<std::string>& filters, NameOf name_of) {
  std::erase_if(cases, [&](const Case& c) { return !is_chosen(name_of(c), filters); });
  if (cases.empty()) throw Error(ErrorCode::invalid_argument, "--filter", "no case has this text in its name: --list");
}

// Options for a CUDA context; without a CUDA device it prints why the program is skipped and returns nullopt.
std::optional<ContextOptions> cuda_options();

// The first fields of every results file: what was measured, on which machine.
nlohmann::ordered_json header(const std::string& benchmark, const Machine& machine);

// A results file: its head a field a line, then one case on a line. bench/results_form.py has the same form.
std::string results_text(const nlohmann::ordered_json& json);

// Writes results_text(). Throws Error{io_failed} if the file cannot be written.
void write_json(const std::string& path, const nlohmann::ordered_json& json);

}  // namespace ingot::bench
