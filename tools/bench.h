// The command `ingot bench`: finds a benchmark's program and becomes it.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ingot::tools {

struct Benchmark {
  std::string_view name;  // "gemm": its program is bench_gemm, its source bench/bench_gemm.cpp
  std::string_view description;
};
std::span<const Benchmark> benchmarks();

struct BenchOptions {
  bool list = false;
  bool json = false;                     // of the list
  std::string name{};                    // without --list
  std::vector<std::string> arguments{};  // of the benchmark
};

// Returns after --list. Otherwise the benchmark takes the place of this process, whose exit code is then its own.
// Throws Error{not_found, io_failed}.
void bench(const BenchOptions& options);

}  // namespace ingot::tools
