#include "report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "ingot/runtime/util/write_file.h"

namespace generate {
namespace {

double tokens_per_second(const Report& report, const Run& run) {
  return static_cast<double>(report.batch) / run.seconds;
}
// Counts the weights only, not what a step reads besides (the cache, activations).
double gigabytes_per_second(const Run& run) { return static_cast<double>(run.weight_bytes) / run.seconds / 1e9; }

}  // namespace

std::string table(const Report& report) {
  // Models that are small enough for the CPU have far less than a gigabyte.
  const bool is_small =
      std::ranges::all_of(report.runs, [](const Run& run) { return static_cast<double>(run.weight_bytes) < 1e8; });
  const double unit = is_small ? 1e6 : 1e9;
  std::string text = fmt::format("{:<16} {:>12} {:>10} {:>10} {:>10} {:>9} {:>8}\n", "weights", "tokens/s", "ms/step",
                                 is_small ? "MB/step" : "GB/step", "GB/s", "launches", "speedup");
  for (const Run& run : report.runs) {
    text += fmt::format("{:<16} {:>12.1f} {:>10.3f} {:>10.3f} {:>10.{}f} {:>9} {:>7.2f}x\n", run.name,
                        tokens_per_second(report, run), 1e3 * run.seconds, static_cast<double>(run.weight_bytes) / unit,
                        gigabytes_per_second(run), is_small ? 3 : 1, run.launches,
                        report.runs.front().seconds / run.seconds);
  }
  if (report.agreement) {
    const Agreement& agreement = *report.agreement;
    text += fmt::format(
        "logits after the same {} tokens: cosine {:.6f} (lowest {:.6f}), SQNR {:.1f} dB, the same largest one {:.1f} "
        "%\n",
        agreement.tokens, agreement.mean_cosine, agreement.lowest_cosine, agreement.sqnr_db, 100 * agreement.top1);
  }
  return text;
}

void write_report(const std::filesystem::path& file, const Report& report) {
  using Json = nlohmann::ordered_json;
  Json runs = Json::array();
  for (const Run& run : report.runs) {
    runs.push_back({{"weights", run.name},
                    {"tokens_per_second", tokens_per_second(report, run)},
                    {"seconds_per_step", run.seconds},
                    {"weight_bytes_per_step", run.weight_bytes},
                    {"gigabytes_per_second", gigabytes_per_second(run)},
                    {"launches_per_step", run.launches}});
  }
  Json json{{"device", report.device},
            {"layers", report.shape.layers},
            {"hidden", report.shape.hidden},
            {"intermediate", report.shape.intermediate},
            {"vocabulary", report.shape.vocabulary},
            {"batch", report.batch},
            {"prompt", report.prompt},
            {"tokens", report.tokens},
            {"runs", runs}};
  if (report.agreement) {
    json["agreement"] = {{"tokens", report.agreement->tokens},
                         {"top1", report.agreement->top1},
                         {"mean_cosine", report.agreement->mean_cosine},
                         {"lowest_cosine", report.agreement->lowest_cosine},
                         {"sqnr_db", report.agreement->sqnr_db}};
  }
  ingot::write_file(file, {json.dump(2), "\n"});
}

}  // namespace generate
