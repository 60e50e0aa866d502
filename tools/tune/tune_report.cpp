#include "tune/tune_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

namespace ingot::tools {
namespace {

using OrderedJson = nlohmann::ordered_json;

double tflops(const TuningRecord& record) {
  const auto& [m, n, k] = record.size;
  return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k) / record.us * 1e-6;
}

std::string ratio(double other_us, double us) { return other_us > 0 ? fmt::format("{:.3f}", other_us / us) : "-"; }

std::string label_of(const TunedGemm& gemm) {
  return gemm.planned.label.empty() ? print(kernel_spec(gemm.planned.call.spec)) : gemm.planned.label;
}

std::string kernel_text(const TunedGemm& gemm) {
  if (gemm.record) return kernel_of(gemm.record->chosen);
  return gemm.problem.empty() ? "not tuned yet" : gemm.problem;
}

OrderedJson to_json(const PlannedGemm& gemm) {
  const auto& [m, n, k] = gemm.call.size;
  return {{"label", gemm.label}, {"spec", print(kernel_spec(gemm.call.spec))}, {"m", m}, {"n", n}, {"k", k}};
}

OrderedJson to_json(const TunedGemm& gemm) {
  OrderedJson one = to_json(gemm.planned);
  one["tuned"] = gemm.record.has_value();
  if (gemm.record) {
    const TuningRecord& r = *gemm.record;
    const auto or_null = [](double us) { return us > 0 ? OrderedJson(us) : OrderedJson(nullptr); };
    one["kernel"] = kernel_of(r.chosen);
    one["us"] = r.us;
    one["tflops"] = tflops(r);
    one["cublaslt_us"] = or_null(r.cublaslt_us);
    one["bf16_us"] = or_null(r.bf16_us);
    one["date"] = r.date;
  } else if (!gemm.problem.empty()) {
    one["problem"] = gemm.problem;
  }
  return one;
}

std::string report_text(const OrderedJson& json) {
  return json.dump(2, ' ', false, OrderedJson::error_handler_t::replace);
}

}  // namespace

std::string list(const std::vector<PlannedGemm>& planned) {
  std::size_t width = 0;
  for (const PlannedGemm& gemm : planned) width = std::max(width, gemm.label.size() + 2);
  std::string text;
  for (const PlannedGemm& gemm : planned) text += fmt::format("{:<{}}{}\n", gemm.label, width, print(gemm.call));
  return text;
}

std::string list_json(const std::vector<PlannedGemm>& planned) {
  OrderedJson gemms = OrderedJson::array();
  for (const PlannedGemm& gemm : planned) gemms.push_back(to_json(gemm));
  return report_text({{"gemms", gemms}}) + "\n";
}

std::string table(const std::vector<TunedGemm>& gemms) {
  std::size_t labels = 6;
  std::size_t kernels = 8;
  for (const TunedGemm& gemm : gemms) {
    labels = std::max(labels, label_of(gemm).size() + 2);
    if (gemm.record) kernels = std::max(kernels, kernel_text(gemm).size() + 2);
  }
  std::string text = fmt::format("{:<{}}{:<20}{:<{}}{:>10}{:>8}{:>10}{:>8}\n", "GEMM", labels, "m x n x k", "kernel",
                                 kernels, "us", "TFLOPS", "cuBLASLt", "bf16");
  for (const TunedGemm& gemm : gemms) {
    const auto& [m, n, k] = gemm.planned.call.size;
    text += fmt::format("{:<{}}{:<20}{:<{}}", label_of(gemm), labels, fmt::format("{}x{}x{}", m, n, k),
                        kernel_text(gemm), gemm.record ? kernels : 0);
    if (gemm.record) {
      const TuningRecord& r = *gemm.record;
      text += fmt::format("{:>10.1f}{:>8.0f}{:>10}{:>8}", r.us, tflops(r), ratio(r.cublaslt_us, r.us),
                          ratio(r.bf16_us, r.us));
    }
    text += "\n";
  }
  return text +
         "\nThe last two columns: the speed relative to cuBLASLt's best algorithm and to the same GEMM in bf16.\n";
}

std::string json(const std::vector<TunedGemm>& gemms, const TuningMachine& machine) {
  OrderedJson all{{"device", machine.device},     {"target", machine.target},     {"driver", machine.driver},
                  {"compiler", machine.compiler}, {"cublaslt", machine.cublaslt}, {"gemms", OrderedJson::array()}};
  for (const TunedGemm& gemm : gemms) all["gemms"].push_back(to_json(gemm));
  return report_text(all);
}

}  // namespace ingot::tools
