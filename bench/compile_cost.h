// What a cold compile costs: each kernel alone, in wall and in processor time, and two at once against the same two one
// after the other. Every source differs from all before it, so that nothing that was compiled serves again.
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
  std::string spec{};                // the library's line; empty: an empty kernel, which is NVRTC's own cost
  std::optional<double> limit_ms{};  // of the best wall time
};

std::vector<CompileCase> compile_cases();

struct CompileCost {
  CompileCase kernel;
  std::vector<double> wall_ms{};       // of each round
  std::vector<double> processor_ms{};  // of the whole process
};

// Both kernels by two threads, and the same by one, in turns.
struct CompilePair {
  std::string first;
  std::string second;
  std::vector<double> serial_ms{};
  std::vector<double> parallel_ms{};

  double ratio() const;       // of the medians
  double best_ratio() const;  // of the best times: other work on the machine makes times longer, never shorter
};

inline constexpr double kPairLimit = 0.6;

struct CompileReport {
  std::vector<CompileCost> kernels{};
  CompilePair pair{};
};

// All kernels take turns, `rounds` times. For Hopper, whatever the machine has.
CompileReport measure_compiles(const Compiler& compiler, int rounds);

std::string to_text(const CompileReport& report);
nlohmann::ordered_json to_json(const CompileReport& report);

}  // namespace ingot::bench
