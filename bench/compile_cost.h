// Measures what a cold compile costs: each kernel by itself, in wall time and processor time, and two kernels compiled
// at once against the same two in sequence. Every source differs from all earlier ones, so that no cached compilation
// can serve it.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ingot/runtime/jit/compiler.h"

namespace ingot::bench {

struct CompileCase {
  std::string label;                 // "wgmma, fast sums"
  std::string spec{};                // the kernel's spec; empty: an empty kernel, for NVRTC's own cost
  std::optional<double> limit_ms{};  // limit for the best wall time
};

std::vector<CompileCase> compile_cases();

struct CompileCost {
  CompileCase kernel;
  std::vector<double> wall_ms{};       // one per round
  std::vector<double> processor_ms{};  // one per round, for the whole process
};

// Two threads compile one kernel each, and one thread compiles the same two; the two ways alternate.
struct CompilePair {
  std::string first;
  std::string second;
  std::vector<double> serial_ms{};
  std::vector<double> parallel_ms{};

  double ratio() const;       // ratio of the medians
  double best_ratio() const;  // ratio of the best times: other work on the machine can only lengthen times
};

inline constexpr double kPairLimit = 0.6;

struct CompileReport {
  std::vector<CompileCost> kernels{};
  CompilePair pair{};
};

// Compiles all kernels one after the other, `rounds` times, for Hopper, whatever GPU the machine has.
CompileReport measure_compiles(const Compiler& compiler, int rounds);

std::string to_text(const CompileReport& report);
nlohmann::ordered_json to_json(const CompileReport& report);

}  // namespace ingot::bench
