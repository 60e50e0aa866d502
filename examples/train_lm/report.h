// A run's results: the table on the terminal, loss.csv, loss.svg, summary.json.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint.h"

namespace train_lm {

struct NamedHistory {
  std::string name;  // "bf16", "fp8"
  History history;
};

struct KernelCounts {
  std::int64_t compiled = 0, loaded = 0, launched = 0;
};

struct Report {
  std::vector<NamedHistory> runs;
  std::int64_t tokens_per_step = 0;
  std::int64_t parameters = 0;
  std::string device;
  std::string target;  // the kernels' architecture
  std::string recipe;  // the FP8 model's
  std::uint64_t seed = 0;
  // What was trained, for those who compare runs: "blocks", "clip" ...
  std::vector<std::pair<std::string, double>> settings{};
  KernelCounts kernels;
};

// The mean of the last tenth of the losses.
double final_loss(const History& history);
double tokens_per_second(const NamedHistory& run, std::int64_t tokens_per_step);

std::string table(const Report& report);
std::string csv(const Report& report);
std::string svg(const Report& report);
std::string json(const Report& report);

// Writes loss.csv, loss.svg and summary.json. Throws ingot::Error{io_failed}.
void write_report(const std::filesystem::path& folder, const Report& report);

}  // namespace train_lm
