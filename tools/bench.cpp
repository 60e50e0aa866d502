// The command `ingot bench`: finds a benchmark's program and becomes it.
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "commands.h"
#include "ingot/runtime/util/error.h"
#include "text.h"

namespace ingot::tools {
namespace {

namespace fs = std::filesystem;

struct Benchmark {
  std::string_view name;  // "gemm": its program is bench_gemm, its source bench/bench_gemm.cpp
  std::string_view description;
};

constexpr std::array kBenchmarks{
    Benchmark{"cast", "Casts and norms, against a copy in the same run"},
    Benchmark{"choice", "The kernels chosen without tuning, against the best that tuning finds"},
    Benchmark{"compile", "Cold compiles of kernels, one at a time and two at once; needs no GPU"},
    Benchmark{"gemm", "FP8 GEMMs, against cuBLASLt's in the same run"},
    Benchmark{"gradients", "The GEMMs of a layer's two gradients, in two launches and in one"},
    Benchmark{"grouped_gemm", "The GEMMs of a mixture of experts, in one launch and one after the other"},
    Benchmark{"linear", "A linear layer's step, forward and backward, with every recipe"},
    Benchmark{"runtime", "Lookups of loaded kernels and loads from a store and a bundle; needs no GPU"},
    Benchmark{"weight_only", "GEMMs with weights in 8, 6 or 4 bits, against cuBLASLt's with 16-bit weights"},
    Benchmark{"weight_only_experts", "The same of a mixture of experts in one launch, next to a read of the weights"}};

// Where benchmarks are as seen from this program's folder: of an installation, and of a build.
std::array<fs::path, 2> folders() {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  if (error) throw Error(ErrorCode::io_failed, "/proc/self/exe", "cannot be read: " + error.message());
  const fs::path here = program.parent_path();
  return {(here / INGOT_BENCH_FOLDER).lexically_normal(), (here.parent_path() / "bench").lexically_normal()};
}

std::string program_name(std::string_view name) { return fmt::format("bench_{}", name); }

// Empty if it is in none of the folders.
fs::path find_program(std::string_view name) {
  for (const fs::path& folder : folders()) {
    std::error_code ignored;
    if (fs::path file = folder / program_name(name); fs::is_regular_file(file, ignored)) return file;
  }
  return {};
}

void list(bool as_json) {
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const Benchmark& each : kBenchmarks) {
    const fs::path program = find_program(each.name);
    json.push_back({{"name", each.name}, {"description", each.description}, {"program", program.string()}});
    if (!as_json) fmt::print("{:<20}{}{}\n", each.name, each.description, program.empty() ? " (not built)" : "");
  }
  if (as_json) fmt::print("{}\n", dump(json));
}

// The benchmark takes the place of this process, whose exit code is then its own.
void run(const std::string& name, const std::vector<std::string>& arguments) {
  const fs::path program = find_program(name);
  if (program.empty()) {
    const auto [installed, built] = folders();
    throw Error(ErrorCode::not_found, program_name(name),
                fmt::format("is neither in {} nor in {}; build it (cmake --build <build folder> --target {}), or "
                            "install a build that has benchmarks (INGOT_BENCH=ON)",
                            installed.string(), built.string(), program_name(name)));
  }
  std::vector<std::string> words{program.string()};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  pointers.reserve(words.size() + 1);
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  ::execv(program.c_str(), pointers.data());
  throw Error(ErrorCode::io_failed, program.string(), "cannot be run: " + std::system_category().message(errno));
}

constexpr const char* kBenchNotes = R"(
Examples:
  ingot bench --list
      the benchmarks
  ingot bench gemm --help
      the options of one of them
  ingot bench gemm --quick --filter 4096x4096x4096
      run it; all that follows the name is its command line

Exit codes:
  0    the benchmark's own, as are all others
  1    an error, or the benchmark is not built
  2    the command line is wrong
  77   skipped: the benchmark needs a GPU, and there is none)";

struct BenchOptions {
  bool list = false;
  bool json = false;  // of the list
};

}  // namespace

void add_bench(CLI::App& app) {
  const auto options = std::make_shared<BenchOptions>();
  CLI::App* const command = app.add_subcommand("bench", "Run a benchmark by its name");
  command->require_subcommand(0, 1);
  CLI::Option* const list_flag = command->add_flag("--list", options->list, "Print the benchmarks and exit");
  command->add_flag("--json", options->json, "Print the list as JSON")->needs(list_flag);
  for (const Benchmark& each : kBenchmarks) {
    CLI::App* const named = command->add_subcommand(std::string(each.name), std::string(each.description));
    named->prefix_command();
    named->set_help_flag();
  }
  command->footer(kBenchNotes);
  command->callback([options, command] {
    const auto chosen = command->get_subcommands();
    if (chosen.empty() && !options->list) throw CLI::RequiredError("A benchmark");
    if (!chosen.empty() && options->list) throw CLI::ExcludesError("--list", "the name of a benchmark");
    if (options->list) return list(options->json);
    run(chosen.front()->get_name(), chosen.front()->remaining());
  });
}

}  // namespace ingot::tools
