#include "training/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>
#include <vector>

namespace training {
namespace {

constexpr std::int64_t kTableSteps = 1024;

}  // namespace

double learning_rate(const Schedule& schedule, std::int64_t step) {
  if (step < schedule.warmup_steps) {
    return schedule.peak * static_cast<double>(step + 1) / static_cast<double>(schedule.warmup_steps);
  }
  const double part = static_cast<double>(step - schedule.warmup_steps) /
                      static_cast<double>(std::max<std::int64_t>(1, schedule.steps - schedule.warmup_steps));
  const double above = 0.5 * (1.0 - schedule.last);
  return schedule.peak * (schedule.last + above * (1.0 + std::cos(std::numbers::pi * part)));
}

StepTable::StepTable(ingot::Backend& backend, std::int64_t steps, std::function<StepValues(std::int64_t)> values)
    : steps_(steps),
      values_(std::move(values)),
      table_(backend, kTableSteps * sizeof(StepValues)),
      at_(backend, sizeof(i64)),
      now_(backend, sizeof(StepValues)) {}

void StepTable::prepare(std::int64_t step, ingot::Stream& stream) {
  if (step != next_ || step >= first_ + count_) {
    first_ = step;
    count_ = std::min(kTableSteps, steps_ - step);
    std::vector<StepValues> lines;
    for (std::int64_t i = 0; i < count_; ++i) lines.push_back(values_(step + i));
    stream.device_api().copy_from_host(table_.data(), lines.data(), lines.size() * sizeof(StepValues), stream);
    stream.device_api().fill_zero(at_.data(), sizeof(i64), stream);
  }
  next_ = step + 1;
}

void StepTable::advance(OpRunner& ops) {
  ops.run(NextStep{.table = static_cast<const StepValues*>(table_.data()),
                   .at = static_cast<i64*>(at_.data()),
                   .now = static_cast<StepValues*>(now_.data())});
}

}  // namespace training
