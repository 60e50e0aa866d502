// The report that a run prints and writes at its end.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "generation.h"
#include "model_shape.h"

namespace generate {

struct Run {
  std::string name;               // "bf16", "e4m3fn row"
  std::int64_t weight_bytes = 0;  // read by each step
  double seconds = 0;             // per step
  std::int64_t launches = 0;      // kernels per step; 0 on the CPU
};

struct Report {
  std::string device;
  ModelShape shape;
  std::int64_t batch = 0;
  std::int64_t prompt = 0;
  std::int64_t tokens = 0;
  std::vector<Run> runs;
  std::optional<Agreement> agreement{};  // between two runs
};

std::string table(const Report& report);
// Throws ingot::Error{io_failed}.
void write_report(const std::filesystem::path& file, const Report& report);

}  // namespace generate
