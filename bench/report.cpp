#include "report.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "contenders.h"
#include "program.h"

namespace ingot::bench {
namespace {

using Json = nlohmann::ordered_json;

std::string verdict(const CaseResult& result, double ceiling) {
  if (!result.cast_case.target) return "";
  return passes(result, ceiling) ? "pass" : "short";
}

double of_same_size(const CaseResult& result) { return result.copy_us / result.timing.median_us; }

std::string case_line(const CaseResult& result, double ceiling) {
  const CastCase& c = result.cast_case;
  if (!result.fault.empty()) return fmt::format("{:<74} WRONG  {}\n", name(c), result.fault);
  return fmt::format("{:<74}{:>9.1f}{:>9.1f}{:>9.1f}   {:<30}{:>9.1f}{:>7.2f}{:>8.3f}{:>10.3f}{:>8} {}\n", name(c),
                     result.timing.median_us, result.timing.min_us, result.timing.max_us, c.traffic.text(),
                     ideal_bytes(c) * 1e-6, tb_per_s(result), tb_per_s(result) / ceiling, of_same_size(result),
                     c.target ? fmt::format("{:.2f}", *c.target) : "-", verdict(result, ceiling));
}

Json to_json(const CopyCeiling& ceiling) {
  return {{"tb_per_s", ceiling.tb_per_s}, {"copy_megabytes", ceiling.megabytes}};
}

Json to_json(const CaseResult& result, double ceiling) {
  const CastCase& c = result.cast_case;
  Json json{{"case", c.work},
            {"rows", c.rows},
            {"cols", c.cols},
            {"spec", c.spec},
            {"bytes_per_element", c.traffic.text()},
            {"ideal_bytes", ideal_bytes(c)},
            {"target", c.target ? Json(*c.target) : Json(nullptr)}};
  if (!result.fault.empty()) {
    json["wrong"] = result.fault;
    return json;
  }
  const Timing& timing = result.timing;
  json["us"] = timing_json(timing);
  json["rounds"] = timing.rounds;
  json["calls_per_replay"] = timing.calls;
  json["buffer_copies"] = timing.copies;
  json["tb_per_s"] = tb_per_s(result);
  json["of_copy_ceiling"] = tb_per_s(result) / ceiling;
  json["same_size_copy_us"] = result.copy_us;
  json["of_same_size_copy"] = of_same_size(result);
  json["pass"] = c.target ? Json(passes(result, ceiling)) : Json(nullptr);
  return json;
}

}  // namespace

double CastReport::ceiling() const { return std::max(before.tb_per_s, after.tb_per_s); }

double tb_per_s(const CaseResult& result) { return ideal_bytes(result.cast_case) / result.timing.median_us * 1e-6; }

bool passes(const CaseResult& result, double ceiling) {
  return result.fault.empty() && tb_per_s(result) >= result.cast_case.target.value_or(0) * ceiling;
}

std::string to_text(const CastReport& report) {
  const Machine& m = report.machine;
  std::string text = fmt::format("Ingot {} ({}), {} ({}), driver {}, NVRTC {}, {}\n", m.ingot, m.commit, m.device,
                                 m.target, m.driver, m.nvrtc, m.date);
  text += fmt::format(
      "copy ceiling: {:.3f} TB/s before the cases, {:.3f} TB/s after; the larger is the yardstick of \"of copy\";\n"
      "that of \"same size\" is a copy of as many bytes as the case, timed in turns with it\n\n"
      "{:<74}{:>9}{:>9}{:>9}   {:<30}{:>9}{:>7}{:>8}{:>10}{:>8}\n",
      report.before.tb_per_s, report.after.tb_per_s, "case", "us", "min", "max", "ideal B/element", "ideal MB", "TB/s",
      "of copy", "same size", "target");
  for (const CaseResult& result : report.cases) text += case_line(result, report.ceiling());
  if (report.host.empty()) return text;
  text += '\n';
  text += to_text(std::span<const HostCost>(report.host));
  return text;
}

Json to_json(const CastReport& report) {
  Json json = header("cast", report.machine);
  json["copy_ceiling"] = {
      {"before", to_json(report.before)}, {"after", to_json(report.after)}, {"tb_per_s", report.ceiling()}};
  json["cases"] = Json::array();
  json["host_cost"] = Json::array();
  for (const CaseResult& result : report.cases) json["cases"].push_back(to_json(result, report.ceiling()));
  for (const HostCost& cost : report.host) json["host_cost"].push_back(to_json(cost));
  return json;
}

}  // namespace ingot::bench
