#include "bench.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>

#include "ingot/runtime/error.h"

namespace ingot::tools {
namespace {

namespace fs = std::filesystem;

// Where benchmarks lie as seen from this program's folder: of an installation, and of a build.
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
  for (const Benchmark& each : benchmarks()) {
    const fs::path program = find_program(each.name);
    json.push_back({{"name", each.name}, {"description", each.description}, {"program", program.string()}});
    if (!as_json) fmt::print("{:<13}{}{}\n", each.name, each.description, program.empty() ? " (not built)" : "");
  }
  if (as_json) fmt::print("{}\n", json.dump(2));
}

}  // namespace

std::span<const Benchmark> benchmarks() {
  static constexpr std::array kBenchmarks{
      Benchmark{"cast", "Casts and norms, against a copy in the same run"},
      Benchmark{"choice", "The kernels chosen without tuning, against the best that tuning finds"},
      Benchmark{"compile", "Cold compiles of kernels, one at a time and two at once; needs no GPU"},
      Benchmark{"gemm", "FP8 GEMMs, against cuBLASLt's in the same run"},
      Benchmark{"gradients", "The GEMMs of a layer's two gradients, in two launches and in one"},
      Benchmark{"linear", "A linear layer's step, forward and backward, with every recipe"},
      Benchmark{"runtime", "Lookups of loaded kernels and loads from a store and a bundle; needs no GPU"},
      Benchmark{"weight_only", "GEMMs with weights in 8, 6 or 4 bits, against cuBLASLt's with 16-bit weights"}};
  return kBenchmarks;
}

void bench(const BenchOptions& options) {
  if (options.list) {
    list(options.json);
    return;
  }
  const fs::path program = find_program(options.name);
  if (program.empty()) {
    const auto [installed, built] = folders();
    throw Error(ErrorCode::not_found, program_name(options.name),
                fmt::format("is neither in {} nor in {}; build it (cmake --build <build folder> --target {}), or "
                            "install a build that has benchmarks (INGOT_BENCH=ON)",
                            installed.string(), built.string(), program_name(options.name)));
  }
  std::vector<std::string> words{program.string()};
  words.insert(words.end(), options.arguments.begin(), options.arguments.end());
  std::vector<char*> pointers;
  pointers.reserve(words.size() + 1);
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  ::execv(program.c_str(), pointers.data());
  throw Error(ErrorCode::io_failed, program.string(), "cannot be run: " + std::system_category().message(errno));
}

}  // namespace ingot::tools
