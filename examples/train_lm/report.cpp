#include "report.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <span>

#include "ingot/runtime/util/write_file.h"

namespace train_lm {
namespace {

double mean(std::span<const float> values) {
  if (values.empty()) return std::numeric_limits<double>::quiet_NaN();
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

std::size_t steps_of(const Report& report) {
  std::size_t steps = 0;
  for (const NamedHistory& run : report.runs) steps = std::max(steps, run.history.losses.size());
  return steps;
}

double percent(double value, double base) { return 100.0 * (value - base) / base; }

constexpr std::array kColours{"#4c6ef5", "#e8590c"};

// Maps data to the picture's pixels; y grows downwards.
struct Axes {
  double left = 64, right = 780, top = 44, bottom = 400;
  double x_max, y_min, y_max;
  double y_step;  // between the lines across

  double x(double value) const { return left + (right - left) * value / x_max; }
  double y(double value) const { return bottom - (bottom - top) * (value - y_min) / (y_max - y_min); }
};

// A step of 1, 2 or 5 times a power of ten that divides `range` into about six.
double tick_step(double range) {
  const double rough = range / 6;
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (power * factor >= rough) return power * factor;
  }
  return power * 10;
}

// The mean of the last `window` losses at each step.
std::vector<double> smoothed(const std::vector<float>& losses, std::size_t window) {
  std::vector<double> result;
  double sum = 0;
  for (std::size_t i = 0; i < losses.size(); ++i) {
    sum += losses[i];
    if (i >= window) sum -= losses[i - window];
    result.push_back(sum / static_cast<double>(std::min(i + 1, window)));
  }
  return result;
}

// Axes that have room for every loss that is a number.
Axes axes_of(const Report& report, std::size_t window) {
  double lowest = std::numeric_limits<double>::max();
  double highest = 0;
  for (const NamedHistory& run : report.runs) {
    for (const double loss : smoothed(run.history.losses, window)) {
      if (!std::isfinite(loss)) continue;
      lowest = std::min(lowest, loss);
      highest = std::max(highest, loss);
    }
  }
  if (highest < lowest) lowest = 0;  // no loss is a number
  if (highest <= lowest) highest = lowest + 1;
  const double step = tick_step(highest - lowest);
  return {.x_max = static_cast<double>(std::max<std::size_t>(2, steps_of(report))),
          .y_min = std::floor(lowest / step) * step,
          .y_max = std::ceil(highest / step) * step,
          .y_step = step};
}

// The lines and numbers along both axes, and what the axes show.
std::string svg_axes(const Axes& axes, std::size_t window) {
  std::string text;
  for (double value = axes.y_min; value <= axes.y_max + axes.y_step / 2; value += axes.y_step) {
    text += fmt::format("<line x1=\"{}\" x2=\"{}\" y1=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"#dee2e6\"/>", axes.left,
                        axes.right, axes.y(value), axes.y(value));
    text += fmt::format("<text x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\" fill=\"#495057\">{:.4g}</text>\n",
                        axes.left - 8, axes.y(value) + 4, value);
  }
  const double step_x = std::max(1.0, tick_step(axes.x_max));
  for (double value = 0; value <= axes.x_max; value += step_x) {
    text += fmt::format("<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\" fill=\"#495057\">{:.0f}</text>\n",
                        axes.x(value), axes.bottom + 20, value);
  }
  text += fmt::format("<text x=\"{}\" y=\"440\" text-anchor=\"middle\" fill=\"#212529\">step</text>\n",
                      (axes.left + axes.right) / 2);
  text += fmt::format(
      "<text x=\"16\" y=\"{}\" text-anchor=\"middle\" fill=\"#212529\" transform=\"rotate(-90 16 {})\">loss "
      "(nats per byte, mean of {} steps)</text>\n",
      (axes.top + axes.bottom) / 2, (axes.top + axes.bottom) / 2, window);
  return text;
}

// One run's losses and its line of the legend.
std::string svg_curve(const Axes& axes, const NamedHistory& run, std::size_t i, std::size_t window) {
  const char* colour = kColours.at(i);
  // The second curve is dashed, so that both show where they coincide.
  const char* dash = i == 0 ? "" : " stroke-dasharray=\"6 4\"";
  std::string text = fmt::format("<polyline fill=\"none\" stroke=\"{}\" stroke-width=\"2\"{} points=\"", colour, dash);
  const std::vector<double> losses = smoothed(run.history.losses, window);
  const std::size_t stride = std::max<std::size_t>(1, losses.size() / 700);
  for (std::size_t step = 0; step < losses.size(); step += stride) {
    if (std::isfinite(losses[step])) {
      text += fmt::format("{:.1f},{:.1f} ", axes.x(static_cast<double>(step + 1)), axes.y(losses[step]));
    }
  }
  text += "\"/>\n";
  const double y = axes.top + 20 + 22 * static_cast<double>(i);
  text += fmt::format("<line x1=\"590\" x2=\"620\" y1=\"{}\" y2=\"{}\" stroke=\"{}\" stroke-width=\"2\"{}/>", y, y,
                      colour, dash);
  text += fmt::format("<text x=\"628\" y=\"{}\" fill=\"#212529\">{}: final {:.4f}</text>\n", y + 4, run.name,
                      final_loss(run.history));
  return text;
}

}  // namespace

double final_loss(const History& history) {
  const std::span<const float> losses(history.losses);
  return mean(losses.last(std::min(losses.size(), std::max<std::size_t>(1, losses.size() / 10))));
}

double tokens_per_second(const NamedHistory& run, std::int64_t tokens_per_step) {
  if (run.history.seconds <= 0) return 0;
  return static_cast<double>(run.history.timed_steps * tokens_per_step) / run.history.seconds;
}

std::string table(const Report& report) {
  const bool both = report.runs.size() == 2;
  std::string text = "\n   step";
  for (const NamedHistory& run : report.runs) text += fmt::format("   loss {:>5}", run.name);
  text += both ? "   difference\n" : "\n";

  // Each line has the mean over the steps since the line above.
  constexpr std::size_t kLines = 12;
  const std::size_t steps = steps_of(report);
  std::size_t begin = 0;
  for (std::size_t line = 1; line <= kLines; ++line) {
    const std::size_t end = steps * line / kLines;
    if (end == begin) continue;
    text += fmt::format("{:>7}", end);
    std::vector<double> means;
    for (const NamedHistory& run : report.runs) {
      means.push_back(mean(std::span(run.history.losses).subspan(begin, end - begin)));
      text += fmt::format("   {:>10.4f}", means.back());
    }
    text += both ? fmt::format("   {:>+9.3f} %\n", percent(means[1], means[0])) : "\n";
    begin = end;
  }
  text += fmt::format("\n{:.1f} million parameters, {} tokens per step, on {}\n",
                      static_cast<double>(report.parameters) / 1e6, report.tokens_per_step, report.device);
  for (const NamedHistory& run : report.runs) {
    text += fmt::format("{:<5} final loss {:.4f} (last tenth of the steps), validation loss {:.4f}, {:.0f} tokens/s\n",
                        run.name, final_loss(run.history), run.history.validation_loss,
                        tokens_per_second(run, report.tokens_per_step));
  }
  if (both) {
    text += fmt::format("fp8 against bf16: final loss {:+.3f} %, validation loss {:+.3f} %, tokens/s x {:.3f}\n",
                        percent(final_loss(report.runs[1].history), final_loss(report.runs[0].history)),
                        percent(report.runs[1].history.validation_loss, report.runs[0].history.validation_loss),
                        tokens_per_second(report.runs[1], report.tokens_per_step) /
                            tokens_per_second(report.runs[0], report.tokens_per_step));
  }
  if (report.device == "CPU reference")
    text += "(the CPU computes FP8 in software: its tokens/s say nothing about a GPU)\n";
  text += fmt::format("kernels: compiled {}, loaded from the store {}, launched {}\n", report.kernels.compiled,
                      report.kernels.loaded, report.kernels.launched);
  if (report.kernels.launched == 0 && report.kernels.compiled + report.kernels.loaded > 0) {
    text += fmt::format(
        "(without a GPU none is launched: they were compiled for {} to show that the compiler works here)\n",
        report.target);
  }
  return text;
}

std::string csv(const Report& report) {
  std::string text = "step";
  for (const NamedHistory& run : report.runs) text += fmt::format(",loss_{}", run.name);
  text += '\n';
  for (std::size_t step = 0; step < steps_of(report); ++step) {
    text += fmt::format("{}", step + 1);
    for (const NamedHistory& run : report.runs) text += fmt::format(",{:.9g}", run.history.losses[step]);
    text += '\n';
  }
  return text;
}

std::string svg(const Report& report) {
  const std::size_t window = std::max<std::size_t>(1, std::max<std::size_t>(2, steps_of(report)) / 50);
  const Axes axes = axes_of(report, window);
  std::string text =
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 820 450\" font-family=\"sans-serif\" font-size=\"13\">\n"
      "<rect width=\"820\" height=\"450\" fill=\"white\"/>\n";
  text += fmt::format(
      "<text x=\"{}\" y=\"24\" font-size=\"16\" fill=\"#212529\">Training loss, bf16 and FP8: {:.1f} M "
      "parameters on {}</text>\n",
      axes.left, static_cast<double>(report.parameters) / 1e6, report.device);
  text += svg_axes(axes, window);
  for (std::size_t i = 0; i < report.runs.size(); ++i) text += svg_curve(axes, report.runs[i], i, window);
  return text + "</svg>\n";
}

std::string json(const Report& report) {
  nlohmann::ordered_json result{{"device", report.device},
                                {"parameters", report.parameters},
                                {"tokens_per_step", report.tokens_per_step},
                                {"steps", steps_of(report)},
                                {"recipe", report.recipe},
                                {"seed", report.seed},
                                {"kernels",
                                 {{"compiled", report.kernels.compiled},
                                  {"loaded", report.kernels.loaded},
                                  {"launched", report.kernels.launched}}}};
  for (const auto& [name, value] : report.settings) result["settings"][name] = value;
  for (const NamedHistory& run : report.runs) {
    result["runs"][run.name] = {{"final_loss", final_loss(run.history)},
                                {"validation_loss", run.history.validation_loss},
                                {"tokens_per_second", tokens_per_second(run, report.tokens_per_step)}};
  }
  return result.dump(2) + "\n";
}

void write_report(const std::filesystem::path& folder, const Report& report) {
  ingot::write_file(folder / "loss.csv", {csv(report)});
  ingot::write_file(folder / "loss.svg", {svg(report)});
  ingot::write_file(folder / "summary.json", {json(report)});
}

}  // namespace train_lm
